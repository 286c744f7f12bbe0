"""An acknowledged write is there, whatever happens to the server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from gqe.index import Index, verify
from gqe.index.files import writer_lock
from gqe.server import IndexEngine, Settings
from server.worlds import build, free_port, serving, vectors, wait_until


def test_added_items_are_found_and_removed_ones_are_not(tmp_path) -> None:
    new = vectors(3, seed=4)
    with serving(build(tmp_path / "index")) as served:
        added = served.post("/v1/items", {"vectors": new.tolist()}).json()
        assert added == {"ids": [120, 121, 122], "items": 123, "version": 2}
        plain = {"vectors": new.tolist(), "k": 1, "expand": False}
        assert [r["ids"] for r in served.post("/v1/search", plain).json()["results"]] == [[120], [121], [122]]
        assert served.post("/v1/items/remove", {"ids": [121]}).json() == {
            "ids": [121],
            "items": 122,
            "version": 3,
        }
        assert served.post("/v1/search", plain).json()["results"][1]["ids"] != [121]
        assert served.post("/v1/search", {"ids": [121]}).status_code == 422
        assert served.get("/v1/items", params={"start": 119, "count": 5}).json()["ids"] == [119, 120, 122]
    assert Index.open(tmp_path / "index").ids.tolist() == [*range(121), 122]


def test_texts_and_metadata(tmp_path) -> None:
    names = [f"a/{i}" for i in range(30)]
    index = build(tmp_path / "index", n=30, ids=names, metadata={"year": list(range(30))})
    with serving(index) as served:
        new = {"vectors": vectors(2, seed=4).tolist(), "ids": ["x", "ä/\U0001f600"]}
        assert served.post("/v1/items", new).status_code == 422  # the year is missing
        added = served.post("/v1/items", new | {"metadata": {"year": [1, 99]}})
        assert added.json()["ids"] == new["ids"]
        found = served.post("/v1/search", {"ids": ["a/1"], "filter": {"year": 99}, "k": 3})
        assert found.json()["results"][0]["ids"] == ["ä/\U0001f600"]
        again = served.post("/v1/items", new | {"metadata": {"year": [1, 99]}})
        assert again.status_code == 422
        assert "already" in again.json()["detail"]


@pytest.mark.parametrize(
    "content",
    [
        {"vectors": []},
        {"vectors": [[1.0, 2.0]]},
        {"vectors": vectors(2).tolist(), "ids": [500]},
        {"vectors": vectors(2).tolist(), "ids": [500, 500]},
        {"vectors": vectors(2).tolist(), "ids": [500, "a"]},
        {"vectors": vectors(1).tolist(), "ids": [3]},
        {"vectors": vectors(1).tolist(), "metadata": {"a": [1]}},
        {"vectors": vectors(1).tolist(), "metadata": {"a": []}},
    ],
)
def test_wrong_items_change_nothing(tmp_path, content) -> None:
    with serving(build(tmp_path / "index")) as served:
        assert served.post("/v1/items", content).status_code == 422
    assert Index.open(tmp_path / "index").version == 1


def test_another_writer_is_waited_for_by_the_client(tmp_path) -> None:
    with serving(build(tmp_path / "index")) as served:
        with writer_lock(tmp_path / "index"):
            answer = served.post("/v1/items", {"vectors": vectors(1).tolist()})
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
        assert served.post("/v1/items", {"vectors": vectors(1).tolist()}).status_code == 200


def test_what_another_process_changes_is_seen(tmp_path) -> None:
    with serving(build(tmp_path / "index"), Settings(poll_seconds=0.05)) as served:
        other = Index.open(tmp_path / "index", device="cpu")
        other.add(vectors(2, seed=9), ids=[500, 501])
        wait_until(lambda: served.get("/v1/about").json()["items"] == 122)
        assert served.post("/v1/search", {"ids": [500], "k": 1}).status_code == 200
        assert served.post("/v1/items", {"vectors": vectors(1).tolist()}).json()["ids"] == [502]
        other.compact()
        wait_until(lambda: served.get("/v1/about").json()["version"] == other.version)
        wait_until(lambda: not served.app.state.service.engine.is_outdated())


class Slow(IndexEngine):
    """Counts its changes, which take a while."""

    adds = 0

    def add(self, vectors, ids, metadata):
        self.adds += 1
        time.sleep(0.05)
        return super().add(vectors, ids, metadata)


def test_writes_that_wait_are_stored_together_and_fail_alone(tmp_path) -> None:
    engine = Slow(build(tmp_path / "index"))
    with serving(engine) as served, ThreadPoolExecutor(16) as clients:

        def add(number: int) -> httpx.Response:
            wrong = number % 8 == 3
            ids = [5 if wrong else 1000 + number]
            return served.post("/v1/items", {"vectors": vectors(1, seed=number).tolist(), "ids": ids})

        # All right: far fewer commits than requests.
        answers = list(clients.map(lambda number: add(8 * number), range(32)))
        assert {answer.status_code for answer in answers} == {200}
        assert [answer.json()["ids"] for answer in answers] == [[1000 + 8 * n] for n in range(32)]
        assert engine.adds <= 16
        mixed = list(clients.map(add, range(1, 8)))
    assert [answer.status_code for answer in mixed] == [200, 200, 422, 200, 200, 200, 200]
    index = Index.open(tmp_path / "index")
    assert set(index.ids.tolist()) == {*range(120), *range(1000, 1256, 8), 1001, 1002, *range(1004, 1008)}


class Process:
    """`gqe serve` in a process of its own."""

    def __init__(self, index: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        command = "from gqe.cli import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, "serve", str(index), "--port", str(port), "--device", "cpu"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            text=True,
        )
        wait_until(self.answers)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()[1]
        try:
            return httpx.get(self.url + "/ready").status_code == 200
        except httpx.TransportError:
            return False


def load(url: str, stop: threading.Event, first: int, acknowledged: list[int]) -> None:
    """Add items one after the other; whatever the server acknowledges is noted."""
    number = first
    with httpx.Client(base_url=url, timeout=20) as client:
        while not stop.is_set():
            content = {"vectors": vectors(1, seed=number).tolist(), "ids": [number]}
            try:
                answer = client.post("/v1/items", json=content)
            except httpx.TransportError:
                return
            if answer.status_code != 200:
                return
            acknowledged.append(number)
            number += 1


def acknowledged_until(served: Process, how: signal.Signals | None) -> set[int]:
    """Four clients add items; a signal, if there is one, comes amid them."""
    stop = threading.Event()
    notes: list[list[int]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=load, args=(served.url, stop, 10_000 * (i + 1), note))
        for i, note in enumerate(notes)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: min(map(len, notes)) >= 5)
    if how is not None:
        served.process.send_signal(how)
    else:
        stop.set()
    for thread in threads:
        thread.join()
    return {number for note in notes for number in note}


def test_a_killed_server_loses_nothing_that_was_acknowledged(tmp_path) -> None:
    path = tmp_path / "index"
    build(path)
    served = Process(path)
    acknowledged = acknowledged_until(served, signal.SIGKILL)
    served.process.communicate(timeout=30)
    there = set(Index.open(path).ids.tolist())
    assert len(acknowledged) >= 20
    assert acknowledged <= there
    assert verify(path) == []
    # What was under way without an answer is there as a whole or not at all.
    assert len(there - acknowledged - set(range(120))) <= 4


def test_a_server_told_to_end_finishes_what_it_accepted(tmp_path) -> None:
    path = tmp_path / "index"
    build(path)
    served = Process(path)
    acknowledged = acknowledged_until(served, None)
    many = {"vectors": vectors(300, seed=1).tolist()}
    with httpx.Client(base_url=served.url, timeout=30) as client, ThreadPoolExecutor(3) as threads:
        waiting = [
            threads.submit(client.post, "/v1/items", json=many | {"ids": list(range(first, first + 300))})
            for first in (1000, 2000, 3000)
        ]

        def all_accepted() -> bool:
            done = sum(each.done() for each in waiting)
            counted = re.search(r"^gqe_requests_under_way (\d+)", client.get("/metrics").text, re.M)
            assert counted is not None
            return done + int(counted[1]) - 1 >= 3

        wait_until(all_accepted)
        served.process.send_signal(signal.SIGTERM)
        answers = [each.result() for each in waiting]
    _, errors = served.process.communicate(timeout=30)
    assert served.process.returncode == 0
    assert "Traceback" not in errors
    assert [answer.status_code for answer in answers] == [200] * 3
    large = {i for first in (1000, 2000, 3000) for i in range(first, first + 300)}
    assert set(Index.open(path).ids.tolist()) == {*range(120), *acknowledged, *large}


def test_a_second_interrupt_shows_no_traceback(tmp_path) -> None:
    build(tmp_path / "index", n=1000)
    served = Process(tmp_path / "index")
    many = {"vectors": vectors(1000).tolist(), "k": 200}

    def ask() -> None:
        with suppress(httpx.TransportError):  # it is cut off
            httpx.post(served.url + "/v1/search", json=many, timeout=30)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)  # some of them are under way
    served.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    if served.process.poll() is None:
        served.process.send_signal(signal.SIGINT)
    _, errors = served.process.communicate(timeout=60)
    for thread in threads:
        thread.join()
    assert served.process.returncode == 130
    assert "Traceback" not in errors
