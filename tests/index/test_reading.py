"""Searches beyond the items there are, and reads while others write."""

from __future__ import annotations

import resource
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from gqe.errors import DamagedError, InputError, StorageError
from gqe.index import Index
from gqe.index.target import IndexTarget
from index.worlds import stacks, vectors


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("dba", [False, True])
def test_more_results_than_items_are_padded(tmp_path: Path, texts: bool, dba: bool) -> None:
    names = [f"n{i}" for i in range(9)] if texts else list(range(9))
    index = Index.build(vectors(9), stacks()["mean"], tmp_path / "index", ids=names, dba=dba)
    missing = None if texts else -1
    for left in (9, 5, 0):
        index.remove(index.ids[left:].tolist())
        expected = index.search(vectors(2, seed=1), max(left, 1))
        for expand, rerank in [(True, None), (False, None), (True, "reciprocal:k1=5:k2=3")]:
            found = index.search(vectors(2, seed=1), 20, expand=expand, rerank=rerank)
            assert found.scores.shape == found.ids.shape == (2, 20)
            assert (found.ids[:, left:] == missing).all()
            assert np.isneginf(found.scores[:, left:]).all()
            assert sorted(found.ids[0, :left].tolist()) == sorted(index.ids.tolist())
        alone = index.search(vectors(2, seed=1)[0], 20)
        assert alone.ids.shape == (20,)
        if left:
            np.testing.assert_array_equal(alone.ids[:left], expected.ids[0])
    with pytest.raises(InputError, match="k: at most 1,000,000 results can be asked for, got 1,000,001"):
        index.search(vectors(1), 1_000_001)
    tensors = index.search(torch.from_numpy(vectors(2)), 20)
    assert tensors.scores.shape == (2, 20)


def test_a_search_takes_memory_for_its_items_and_not_for_k(tmp_path: Path) -> None:
    index = Index.build(vectors(30), "aqe", tmp_path / "index", device="cpu")
    tracemalloc.start()
    try:
        found = index.search(vectors(1, seed=1), 1_000_000, expand=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    answer = found.ids.nbytes + found.scores.nbytes
    assert peak < 4 * answer  # ids are looked up from row numbers


def test_searches_near_the_number_of_items_while_others_remove(tmp_path: Path) -> None:
    index = Index.build(vectors(40), "aqe", tmp_path / "index", device="cpu")
    failed: list[BaseException] = []
    done = threading.Event()

    def search() -> None:
        try:
            while not done.is_set():
                assert index.search(vectors(1, seed=1), 40).ids.shape == (1, 40)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for item in range(12):
        index.remove([item])
    done.set()
    for thread in threads:
        thread.join()
    assert failed == []


READS = {
    "vectors": lambda index: index.vectors([5])[0].tolist(),
    "neighbors": lambda index: index.neighbors([5]).ids.tolist(),
    "ids": lambda index: index.ids.tolist(),
    "ids_at": lambda index: index.ids_at([3]).tolist(),
    "contains": lambda index: 5 in index,
    "stats": lambda index: index.stats(),
    "repr": repr,
}


@pytest.mark.parametrize("what", READS)
def test_everything_reads_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Another thread reopens the index between any two looks at it."""
    index = Index.build(vectors(20), stacks()["mean"], tmp_path / "index", device="cpu")
    before = READS[what](index)
    other = Index.open(index.path, device="cpu")
    other.remove([0, 2, 19])
    other.compact()  # every row has another number
    after, old, new = READS[what](other), index._target, other._target
    looks = 0

    def alternating(_: Index) -> IndexTarget:
        nonlocal looks
        looks += 1
        return old if looks % 2 else new

    monkeypatch.delattr(index, "_target")
    monkeypatch.setattr(Index, "_target", property(alternating), raising=False)
    assert READS[what](index) in (before, after)


def test_numbers_go_on_after_the_largest_there_is(tmp_path: Path) -> None:
    index = Index.build(vectors(4), "aqe", tmp_path / "index")
    index.add(vectors(1, seed=1), ids=[2**63 - 1])
    index.add(vectors(3, seed=2))
    assert index.ids.tolist() == [0, 1, 2, 3, 2**63 - 1, 4, 5, 6]
    index.remove([1, 5])
    index.add(vectors(3, seed=3))
    assert sorted(index.ids.tolist()) == [0, 1, 2, 3, 4, 5, 6, 7, 2**63 - 1]
    index.compact()
    index.add(vectors(1, seed=4))
    assert 8 in Index.open(index.path)
    nearly = Index.build(vectors(1), "aqe", tmp_path / "nearly", ids=[2**63 - 3])
    nearly.add(vectors(2, seed=1))
    assert nearly.ids.tolist() == [2**63 - 3, 2**63 - 2, 2**63 - 1]
    nearly.add(vectors(1, seed=2))
    assert nearly.ids.tolist()[-1] == 0


@pytest.mark.parametrize("what", ["model", "metadata"])
def test_a_process_with_too_many_open_files_finds_nothing_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    Index.build(vectors(40), "aqe-g", tmp_path / "index", metadata={"year": [1] * 40}, device="cpu")
    index = Index.open(tmp_path / "index", device="cpu")
    if what == "metadata":
        # pyarrow imports more of itself when it first reads a table.
        monkeypatch.delitem(sys.modules, "pyarrow.dataset", raising=False)

    def search() -> None:
        wanted = {"year": 1} if what == "metadata" else None
        index.search(vectors(1), 3, expand=what == "model", filter=wanted)

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(StorageError, match="Too many open files") as caught:
            search()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not isinstance(caught.value, DamagedError)
    assert caught.value.retryable
    search()
