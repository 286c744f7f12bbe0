"""What a request asks belongs to one version; what must be made first keeps nobody else waiting."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gqe.index import Index
from gqe.models import Expander, expander
from gqe.server import IndexEngine, Settings
from gqe.server.expanders import Expanders
from server.worlds import build, serving, vectors, wait_until


class Interrupted(IndexEngine):
    """Others change the index between any two things that a request asks."""

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self.changes = []

    def vectors(self, ids):
        found = super().vectors(ids)
        if self.changes:
            self.changes.pop()()
        return found


@pytest.mark.parametrize("method", ["index", "none", "aqe-g:k=3"])
def test_a_request_sees_one_version(tmp_path, method) -> None:
    build(tmp_path / "index", n=12)
    engine = Interrupted(Index.open(tmp_path / "index", device="cpu"))
    other = Index.open(tmp_path / "index", device="cpu")
    asked = {"ids": [3], "k": 12, "method": method}
    with serving(engine, Settings(poll_seconds=60)) as served:
        before = served.post("/v1/search", asked).json()

        def change() -> None:
            other.remove([3, 4, 5])
            engine.reload()

        engine.changes.append(change)
        during = served.post("/v1/search", asked)
        assert during.status_code == 200, during.text
        assert during.json() == before
        assert served.post("/v1/search", asked).status_code == 422  # the item is gone
        after = served.post("/v1/search", asked | {"ids": [6]})
        assert sorted(after.json()["results"][0]["ids"]) == [0, 1, 2, 7, 8, 9, 10, 11]


def test_searches_for_everything_while_items_are_removed(tmp_path) -> None:
    with serving(build(tmp_path / "index", n=30)) as served, ThreadPoolExecutor(1) as remover:

        def remove() -> None:
            for item in range(15):
                assert served.post("/v1/items/remove", {"ids": [item]}).status_code == 200

        removing = remover.submit(remove)
        asked = {"vectors": vectors(2, seed=1).tolist(), "k": 30}
        answers = [served.post("/v1/search", asked)]
        while not removing.done():
            answers.append(served.post("/v1/search", asked))
        removing.result()
        answers.append(served.post("/v1/search", asked))
    assert {answer.status_code for answer in answers} == {200}
    results = [hits["ids"] for answer in answers for hits in answer.json()["results"]]
    assert all(-1 not in ids and len(set(ids)) == len(ids) >= 15 for ids in results)
    assert len(results[-1]) == 15


def test_what_is_prepared_keeps_nobody_waiting(tmp_path, monkeypatch) -> None:
    make, go_on = Expanders.make, threading.Event()

    def slowly(self, index, method):
        go_on.wait(30)
        return make(self, index, method)

    monkeypatch.setattr(Expanders, "make", slowly)
    settings = Settings(max_preparing=2, timeout=20)
    with serving(build(tmp_path / "index"), settings) as served, ThreadPoolExecutor(8) as clients:

        def ask(k: int):
            return served.post("/v1/search", {"ids": [1], "method": f"alpha-g:k={k}"})

        waiting = [clients.submit(ask, k) for k in (2, 2, 3, 4, 5, 6)]
        wait_until(lambda: sum(each.done() for each in waiting) == 3)  # two methods wait, one of them twice
        refused = [each.result() for each in waiting if each.done()]
        assert {answer.status_code for answer in refused} == {503}
        assert {answer.headers["retry-after"] for answer in refused} == {"10"}
        begun = time.perf_counter()
        assert served.post("/v1/search", {"ids": [1]}).status_code == 200
        assert served.post("/v1/explain", {"ids": [1]}).status_code == 200
        assert time.perf_counter() - begun < 10
        go_on.set()
        assert sorted(each.result().status_code for each in waiting) == [200] * 3 + [503] * 3


def test_a_prepared_method_leaves_nothing_to_the_reader(tmp_path) -> None:
    engine = IndexEngine(build(tmp_path / "index"))
    assert engine.ready_for("alpha-g:k=40") is None
    engine.prepare("alpha-g:k=40")
    ready = engine.ready_for("alpha-g:k=40")
    assert ready is not None
    source = ready._bound.context(vectors(1)[0], None).source
    assert set(source._levels) == set(range(1, source.depth))
    assert all(level.missing is None for level in source._levels.values())


def test_other_methods_run_on_the_device_of_the_service(tmp_path, monkeypatch) -> None:
    fit, devices = Expander.fit, []

    def spy(self, *args, device="auto", **kwargs):
        devices.append(str(device))
        return fit(self, *args, device=device, **kwargs)

    monkeypatch.setattr(Expander, "fit", spy)
    with serving(IndexEngine(build(tmp_path / "index"))) as served:  # opened with device="cpu"
        asked = {"ids": [1], "method": "alpha-g:k=4"}
        assert served.post("/v1/search", asked).status_code == 200
        assert served.post("/v1/explain", asked).status_code == 200
    assert devices == ["cpu"]


def test_only_a_few_methods_are_kept(tmp_path) -> None:
    engine = IndexEngine(build(tmp_path / "index"))
    for k in range(2, 9):
        engine.prepare(f"aqe-g:k={k}")
    ready = [k for k in range(2, 9) if engine.ready_for(f"aqe-g:k={k}") is not None]
    assert ready == [6, 7, 8]
    engine.add(vectors(1, seed=3), None, None)
    assert engine.ready_for("aqe-g:k=8") is None  # it knows nothing of the new item


def test_a_reranker_is_prepared_once_for_a_version(tmp_path) -> None:
    engine = IndexEngine(build(tmp_path / "index", expander=expander("aqe-g", k=50)))
    assert engine.ready_for("index", "egt") is None
    engine.prepare("index", "egt")
    assert engine.ready_for("index", "egt") is not None
    engine.add(vectors(1, seed=3), None, None)
    assert engine.ready_for("index", "egt") is None


def test_a_large_search_is_answered_part_by_part(tmp_path) -> None:
    index = build(tmp_path / "index")
    queries = vectors(50, seed=2)
    expected = index.search(queries, 5).ids
    with serving(index, Settings(max_batch=8)) as served, ThreadPoolExecutor(4) as clients:
        answers = list(
            clients.map(
                lambda _: served.post("/v1/search", {"vectors": queries.tolist(), "k": 5}).json(), range(4)
            )
        )
        by_id = served.post("/v1/search", {"ids": list(range(20)), "k": 3}).json()["results"]
    for answer in answers:
        np.testing.assert_array_equal([hits["ids"] for hits in answer["results"]], expected)
    assert all(item not in hits["ids"] for item, hits in enumerate(by_id))
