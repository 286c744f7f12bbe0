"""An index served by actors answers as the index itself does, also while actors and nodes die."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cluster.nodes import kill
from gqe.cluster.serving import ShardedServing
from gqe.errors import InputError
from gqe.index import Index
from index.worlds import stacks, wide_vectors

N, DIM = 500, 6


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    made = wide_vectors(N, dim=DIM)
    made[[80, 81, 400]] = made[5]  # ties within a shard and across shards
    return made


@pytest.fixture(scope="module")
def queries(table: np.ndarray) -> np.ndarray:
    return np.concatenate([wide_vectors(6, seed=1, dim=DIM), table[[5, 400]]])


def built(table: np.ndarray, path: Path, **how: Any) -> Index:
    return Index.build(table, stacks()["affinity"], path, device="cpu", **how)


def assert_same(served: Any, expected: Any) -> None:
    np.testing.assert_array_equal(served.ids, expected.ids)
    np.testing.assert_array_equal(served.scores, expected.scores)


@pytest.mark.parametrize("dba", [False, True])
def test_answers_are_those_of_the_index(
    cluster: Any, table: np.ndarray, queries: np.ndarray, tmp_path: Path, dba: bool
) -> None:
    names = [f"item {i}" for i in range(N)]
    years = {"year": [2000 + i % 7 for i in range(N)]}
    index = built(table, tmp_path / "index", dba=dba, ids=names, metadata=years)
    index.remove(["item 3", "item 81"])
    if not dba:
        index.compact()
        index.remove(["item 80"])
    with ShardedServing(tmp_path / "index", shards=2, device="cpu") as serving:
        assert len(serving.bounds) == 2
        assert_same(serving.search(queries, 9), index.search(queries, 9))
        assert_same(serving.search(queries[0], 4), index.search(queries[0], 4))
        assert_same(serving.search(queries, 9, expand=False), index.search(queries, 9, expand=False))
        own = [*[None] * 6, "item 5", "item 400"]
        assert_same(serving.search(queries, 5, exclude=own), index.search(queries, 5, exclude=own))
        few = {"year": 2003}
        assert_same(serving.search(queries, 5, filter=few), index.search(queries, 5, filter=few))
        asked = torch.from_numpy(queries)
        np.testing.assert_array_equal(serving.expand(asked).numpy(), index.expand(asked).numpy())
        for settings in ({"rounds": 2}, {"rerank": "reciprocal:k1=6"}, {"dba": False}):
            assert_same(serving.search(queries, 9, **settings), index.search(queries, 9, **settings))
        assert (
            serving.explain(queries, rounds=2).ids.tolist() == index.explain(queries, rounds=2).ids.tolist()
        )
        assert_same(serving.search(queries, 600), index.search(queries, 600))  # more than there are
        with pytest.raises(InputError, match="k: at most 1,000,000 results can be asked for"):
            serving.search(queries, 1_000_001)
        with pytest.raises(InputError, match="dimension"):
            serving.search(np.ones((2, DIM + 1)), 3)


def test_requests_outlive_an_actor_and_a_node(
    cluster: Any, table: np.ndarray, queries: np.ndarray, tmp_path: Path
) -> None:
    index = built(table, tmp_path / "index", dba=True)
    expected = index.search(queries, 7)
    with ShardedServing(tmp_path / "index", shards=2, replicas=2, device="cpu") as serving:
        going, problems, answered = threading.Event(), list[BaseException](), [0, 0]

        def requests(number: int) -> None:
            try:
                while not going.is_set():
                    assert_same(serving.search(queries, 7), expected)
                    answered[number] += 1
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=requests, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()

        def until(more: int) -> None:
            """A few requests later."""
            wanted = [count + more for count in answered]
            while not problems and any(a < b for a, b in zip(answered, wanted, strict=True)):
                going.wait(0.01)

        try:
            until(1)
            kill(serving.processes()[0][0])
            until(4)
            cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
            until(3)
        finally:
            going.set()
            for thread in threads:
                thread.join()
    assert not problems, problems
    assert min(answered) >= 8


def test_without_replicas_a_request_waits_for_the_actor_to_come_back(
    cluster: Any, table: np.ndarray, queries: np.ndarray, tmp_path: Path
) -> None:
    index = built(table, tmp_path / "index")
    with ShardedServing(tmp_path / "index", device="cpu") as serving:
        before = serving.processes()
        kill(before[1][0])
        assert_same(serving.search(queries, 7), index.search(queries, 7))
        after = serving.processes()
        assert after[0] == before[0]
        assert after[1] != before[1]


def test_an_actor_that_could_not_open_its_shard_is_started_anew(
    cluster: Any, table: np.ndarray, queries: np.ndarray, tmp_path: Path
) -> None:
    """As on a node that does not see the folder; Ray gives such an actor up."""
    index = built(table, tmp_path / "index")
    expected = index.search(queries, 7)
    with ShardedServing(tmp_path / "index", device="cpu", shards=1) as serving:
        (tmp_path / "index" / "manifest.json").rename(tmp_path / "manifest.json")
        kill(serving.processes()[0][0])
        returns = threading.Timer(
            4.0, (tmp_path / "manifest.json").rename, [tmp_path / "index" / "manifest.json"]
        )
        returns.start()
        assert_same(serving.search(queries, 7), expected)
        returns.join()


def test_a_newer_version_is_served_by_new_actors(
    cluster: Any, table: np.ndarray, queries: np.ndarray, tmp_path: Path
) -> None:
    index = built(table, tmp_path / "index")
    with ShardedServing(tmp_path / "index", device="cpu", shards=2) as serving:
        before = serving.processes()
        index.add(queries + 0.01)
        assert len(serving.search(queries, 3).ids) == len(queries)
        serving.reopen()
        assert_same(serving.search(queries, 7), index.search(queries, 7))
        assert not {*serving.processes()[0]} & {*before[0], *before[1]}
        until = time.monotonic() + 20
        while any(Path(f"/proc/{process}").exists() for group in before for process in group):
            assert time.monotonic() < until, "actors of the version before are still there"
            time.sleep(0.05)


def test_bad_input_is_one_line(cluster: Any, table: np.ndarray, tmp_path: Path) -> None:
    index = built(table, tmp_path / "index")
    with pytest.raises(InputError, match="replicas"):
        ShardedServing(tmp_path / "index", replicas=0)
    with pytest.raises(InputError, match="shards"):
        ShardedServing(tmp_path / "index", shards=0)
    with pytest.raises(InputError, match="nowhere"):
        ShardedServing(tmp_path / "nowhere")
    late = ShardedServing(tmp_path / "index", device="cpu")
    index.remove([7])
    with pytest.raises(InputError, match="was changed since"), late:
        pass
    other = built(table, tmp_path / "other", dba=True)
    other.remove([7])  # some rows of the augmented database are written anew, in a file of their own
    with pytest.raises(InputError, match="compact"):
        ShardedServing(tmp_path / "other")
    other.compact()
    ShardedServing(tmp_path / "other")
