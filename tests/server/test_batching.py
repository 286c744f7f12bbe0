"""Requests that come together are one call; one that is alone does not wait."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gqe.index import Index
from gqe.server import IndexEngine, Settings
from gqe.server.batching import Batcher, Busy
from server.worlds import build, serving, vectors


def test_what_waits_is_one_batch_and_answers_go_to_their_senders() -> None:
    seen, may_go = [], threading.Event()

    def run(jobs):
        seen.append(list(jobs))
        may_go.wait(10)
        return [job * 2 for job in jobs]

    batcher = Batcher(run, max_batch=4, wait=0.0)
    first = batcher.submit(1)
    while not seen:
        time.sleep(0.001)
    others = [batcher.submit(job) for job in (2, 3, 4, 5, 6)]
    may_go.set()
    assert [future.result(10) for future in [first, *others]] == [2, 4, 6, 8, 10, 12]
    assert seen == [[1], [2, 3, 4, 5], [6]]
    batcher.close()


def test_large_jobs_do_not_share_a_batch() -> None:
    seen, may_go = [], threading.Event()

    def run(jobs):
        seen.append(list(jobs))
        may_go.wait(10)
        return jobs

    batcher = Batcher(run, size=lambda job: job, max_batch=10, wait=0.0)
    futures = [batcher.submit(1)]
    while not seen:
        time.sleep(0.001)
    futures += [batcher.submit(job) for job in (6, 5, 50, 3, 7)]
    may_go.set()
    for future in futures:
        future.result(10)
    assert seen == [[1], [6], [5], [50], [3, 7]]
    batcher.close()


def test_a_lonely_job_never_waits() -> None:
    batcher = Batcher(lambda jobs: jobs, wait=5.0)
    begun = time.monotonic()
    for job in range(5):
        assert batcher.submit(job).result(10) == job
    assert time.monotonic() - begun < 2
    batcher.close()


def test_one_failure_is_its_own_and_a_cancelled_job_is_not_run() -> None:
    seen, may_go = [], threading.Event()

    def run(jobs):
        seen.extend(jobs)
        may_go.wait(10)
        return [ValueError(job) if job == 2 else job for job in jobs]

    batcher = Batcher(run, wait=0.0)
    first = batcher.submit(0)
    while not seen:
        time.sleep(0.001)
    good, bad, cancelled = batcher.submit(1), batcher.submit(2), batcher.submit(3)
    assert cancelled.cancel()
    may_go.set()
    assert (first.result(10), good.result(10)) == (0, 1)
    with pytest.raises(ValueError, match="2"):
        bad.result(10)
    assert seen == [0, 1, 2]
    batcher.close()


def test_closing_finishes_what_was_handed_in_and_takes_no_more() -> None:
    done = []

    def run(jobs):
        time.sleep(0.01)
        done.extend(jobs)
        return jobs

    batcher = Batcher(run, max_batch=2, wait=0.0)
    for job in range(9):
        batcher.submit(job)
    batcher.close()
    assert done == list(range(9))
    with pytest.raises(Busy):
        batcher.submit(10)


def test_a_full_queue_is_busy() -> None:
    started, may_go = threading.Event(), threading.Event()

    def run(jobs):
        started.set()
        may_go.wait(10)
        return jobs

    batcher = Batcher(run, max_queue=2, wait=0.0)
    batcher.submit(0)
    started.wait(10)
    batcher.submit(1)
    batcher.submit(2)
    with pytest.raises(Busy):
        batcher.submit(3)
    may_go.set()
    batcher.close()


class Counting(IndexEngine):
    """Counts the calls of the index, each of which takes a while."""

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self.sizes: list[int] = []

    def search(self, queries, exclude, options):
        self.sizes.append(len(queries))
        time.sleep(0.03)
        return super().search(queries, exclude, options)


def test_concurrent_requests_share_a_call_and_get_their_own_results(tmp_path) -> None:
    index = build(tmp_path / "index", expander="universal")
    queries = vectors(96, seed=8)
    expected = index.search(queries, 5)
    engine = Counting(index)
    with serving(engine, Settings(rate=0)) as served, ThreadPoolExecutor(32) as clients:
        engine.sizes.clear()

        def ask(row: int):
            return served.post("/v1/search", {"vectors": [queries[row].tolist()], "k": 5}).json()

        answers = list(clients.map(ask, range(96)))
        assert sum(engine.sizes) == 96
        assert len(engine.sizes) < 96 / 4
        assert max(engine.sizes) <= 64
        counted = served.get("/metrics").text
    for row, answer in enumerate(answers):
        assert answer["results"][0]["ids"] == expected.ids[row].tolist()
        np.testing.assert_allclose(answer["results"][0]["scores"], expected.scores[row], atol=1e-5)
    assert 'gqe_requests_total{route="/v1/search",status="200"} 96.0' in counted


def test_a_wrong_request_does_not_spoil_its_batch(tmp_path) -> None:
    engine = Counting(build(tmp_path / "index", metadata={"year": list(range(120))}))
    with serving(engine, Settings(rate=0)) as served, ThreadPoolExecutor(16) as clients:

        def ask(row: int) -> int:
            # An item that is not there, and a filter that fails in the engine itself.
            wrong = {"ids": [999]} if row % 3 == 0 else {"ids": [row], "filter": {"none": 1}}
            return served.post("/v1/search", {"ids": [row]} if row % 3 == 1 else wrong).status_code

        statuses = list(clients.map(ask, range(48)))
    assert statuses == [200 if row % 3 == 1 else 422 for row in range(48)]
