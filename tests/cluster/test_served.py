"""`gqe serve --cluster`: the service answers as in front of the index, whatever dies or changes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the service: pip install 'gqe[serve]'")

from cluster.nodes import kill
from gqe import cli
from gqe.cluster.session import connect
from gqe.index import Index
from gqe.server import Settings
from gqe.server.sharded_engine import ShardedEngine
from index.worlds import stacks, wide_vectors
from server.worlds import READ, TOKENS, WRITE, Served, bearer, serving, wait_until

N, DIM, K = 400, 6, 7
QUERIES = wide_vectors(8, seed=1, dim=DIM)
ASKED = {"vectors": QUERIES.tolist(), "k": K}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with connect("local", workers=2):
        yield


def built(path: Path) -> Index:
    made = {"year": [2000 + row % 7 for row in range(N)]}
    return Index.build(wide_vectors(N, dim=DIM), stacks()["affinity"], path, device="cpu", metadata=made)


@pytest.fixture
def index(cluster: None, tmp_path: Path) -> Index:
    return built(tmp_path / "index")


def ids_of(answer: httpx.Response) -> list[list[int]]:
    assert answer.status_code == 200, answer.text
    return [hits["ids"] for hits in answer.json()["results"]]


def engine_of(served: Served) -> ShardedEngine:
    engine: ShardedEngine = served.app.state.service.engine
    return engine


def test_routes_tokens_and_limits_are_those_of_the_service(index: Index) -> None:
    engine = ShardedEngine(index.path, shards=2, device="cpu")
    with serving(engine, Settings(tokens=TOKENS, read_only=True, max_k=50)) as served:
        may = {"headers": bearer(READ)}
        assert served.post("/v1/search", ASKED).status_code == 401
        assert ids_of(served.post("/v1/search", ASKED, **may)) == index.search(QUERIES, K).ids.tolist()
        for how, same in (
            ({"expand": False}, {"expand": False}),
            ({"filter": {"year": 2003}}, {"filter": {"year": 2003}}),
            ({"rerank": "reciprocal"}, {"rerank": "reciprocal"}),
            ({"method": "index:rounds=2"}, {"rounds": 2}),
        ):
            found = index.search(QUERIES, K, **same)
            assert ids_of(served.post("/v1/search", ASKED | how, **may)) == found.ids.tolist()
        own = served.post("/v1/search", {"ids": [5], "k": 3}, **may)
        assert ids_of(own) == index.search(index.vectors([5]), 3, exclude=[5]).ids.tolist()
        assert served.post("/v1/search", ASKED | {"k": 51}, **may).status_code == 422
        assert served.post("/v1/explain", {"vectors": ASKED["vectors"][:1]}, **may).json()["nodes"]
        assert served.post("/v1/items/describe", {"ids": [5]}, **may).json()["items"][0]["metadata"]
        refused = served.post("/v1/items/remove", {"ids": [5]}, headers=bearer(WRITE))
        assert (refused.status_code, refused.json()["detail"]) == (403, "this service is read-only")
        about = served.get("/v1/about", **may).json()
        assert (about["items"], about["read_only"]) == (N, True)
        assert "<html" in served.get("/").text
    assert served.app is not None


def test_changes_through_it_are_refused_in_one_line(index: Index) -> None:
    with serving(ShardedEngine(index.path, shards=2, device="cpu")) as served:
        for route, change in (
            ("/v1/items", {"vectors": QUERIES[:1].tolist()}),
            ("/v1/items/remove", {"ids": [5]}),
        ):
            answer = served.post(route, change)
            assert answer.status_code == 422
            assert "use `gqe index" in answer.json()["detail"]
    assert len(Index.open(index.path)) == N


class Load:
    """Clients that search all the time; every answer has to be that of a version that was there."""

    def __init__(self, served: Served, clients: int = 3) -> None:
        self.served = served
        self.right = [[]]
        self.statuses = Counter[int]()
        self.wrong: list[Any] = []
        self.slowest = 0.0
        self._going = threading.Event()
        self._threads = [threading.Thread(target=self._search) for _ in range(clients)]

    def _search(self) -> None:
        with httpx.Client(base_url=self.served.url, timeout=60) as client:
            while not self._going.is_set():
                begun = time.monotonic()
                answer = client.post("/v1/search", json=ASKED)
                self.slowest = max(self.slowest, time.monotonic() - begun)
                self.statuses[answer.status_code] += 1
                if answer.status_code != 200 or ids_of(answer) not in self.right:
                    self.wrong.append(answer.text)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._going.set()
        for thread in self._threads:
            thread.join()


def disturb(index: Index, seconds: float, every: float) -> Load:
    """Kill a process of a shard now and then, and change the index, under load."""
    engine = ShardedEngine(index.path, shards=2, replicas=2, device="cpu")
    rng = np.random.default_rng(0)
    with serving(engine, Settings(poll_seconds=0.2, rate=0)) as served, Load(served) as load:
        load.right = [index.search(QUERIES, K).ids.tolist()]
        until, version = time.monotonic() + seconds, index.version
        while time.monotonic() < until:
            shard, replica = rng.integers(2, size=2)
            before = engine._serving.processes()
            kill(before[shard][replica])
            time.sleep(every)
            changed = Index.open(index.path, device="cpu")
            changed.add(QUERIES[:2] + 0.1 * rng.normal(size=(2, DIM)), metadata={"year": [2024, 2025]})
            load.right.append(changed.search(QUERIES, K).ids.tolist())
            wait_until(lambda now=changed.version: engine.version == now)
            wait_until(
                lambda old=before: not any(Path(f"/proc/{each}").exists() for group in old for each in group)
            )
        assert engine.version > version
        assert ids_of(served.post("/v1/search", ASKED)) == load.right[-1]
    return load


def test_processes_die_and_the_index_changes_without_a_failed_request(index: Index) -> None:
    load = disturb(index, seconds=1, every=0.5)
    assert not load.wrong, load.wrong[:3]
    assert load.statuses[200] > 20


@pytest.mark.slow  # a minute of load
def test_a_minute_of_load(index: Index) -> None:
    load = disturb(index, seconds=60, every=3)
    print(load.statuses, f"slowest {load.slowest:.2f} s")
    assert not load.wrong, load.wrong[:3]


def test_the_command(tmp_path: Path) -> None:
    index = built(tmp_path / "index")
    command = [sys.executable, "-c", "from gqe.cli import main; main()", "serve", str(index.path)]
    options = ["--cluster", "local", "--shards", "2", "--port", "0", "--json", "--device", "cpu"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = json.loads("".join(process.stdout.readline() for _ in range(3)))["url"]
        client = httpx.Client(base_url=url, transport=httpx.HTTPTransport(retries=5), timeout=60)
        answer = client.post("v1/search", json=ASKED)
        assert ids_of(answer) == index.search(QUERIES, K).ids.tolist()
        assert client.get("v1/about").json()["read_only"] is True
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["INDEX", "--replicas", "2"], "--replicas, --shards: belong to --cluster"),
        (["INDEX", "--shards", "2"], "--replicas, --shards: belong to --cluster"),
        (["--demo", "--cluster", "local"], "leave one of --demo and --cluster out"),
        (["postgresql://me@db/shop?table=items", "--cluster", "local"], "searched where it is; leave it out"),
        (["INDEX", "--cluster", "nowhere"], "use auto, local or host:port"),
    ],
)
def test_no_option_is_ignored(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    built(tmp_path / "index")
    given = [str(tmp_path / "index") if each == "INDEX" else each for each in options]
    monkeypatch.setattr("sys.argv", ["gqe", "serve", *given, "--port", "0"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
