"""Several hosts: an index built and served by all of them, while hosts die and the network is cut.

Hosts are namespaces of this machine with networks and temporary folders of their own, see `cluster.hosts`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cluster import worlds
from cluster.hosts import PORT, SETTINGS, Host, Hosts, hosts, why_not
from cluster.s3 import KEYS
from gqe.index import Index

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

S3_PORT = 5000
Disturbances = Mapping[tuple[str, int], Callable[[], Any]]


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Three hosts in one cluster; objects are stored on the first."""
    for name, value in KEYS.items():
        monkeypatch.setitem(SETTINGS, name, value)
    with hosts(3, tmp_path / "hosts") as made:
        first, *others = made.all
        monkeypatch.setitem(SETTINGS, "AWS_ENDPOINT_URL", f"http://{first.address}:{S3_PORT}")
        np.save(made.shared / "vectors.npy", worlds.table())
        np.save(made.shared / "queries.npy", worlds.queries())
        with ThreadPoolExecutor() as threads:
            joining = [threads.submit(host.start_ray, first) for host in others]
            first.start_ray()
            for each in joining:
                each.result()
        yield made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """What one process makes of the same vectors."""
    return worlds.build_whole(tmp_path_factory.mktemp("whole") / "index")


class Driver:
    """A program on a host that uses the cluster, see `cluster.driver`."""

    def __init__(self, host: Host) -> None:
        self.process = host.start(sys.executable, "-m", "cluster.driver", f"{host.address}:{PORT}")

    def tell(self, *what: Any, **how: Any) -> Any:
        """Have it do something; the result."""
        self.write(json.dumps([*what, how]))
        return self.read()[1]

    def build(self, source: str, path: str, disturb: Disturbances, **how: Any) -> dict[str, Any]:
        """Build an index, and do something at some of its steps; what the job took."""
        self.write(json.dumps(["build", source, path, {"dba": True, "shards": 5} | how]))
        left = dict(disturb)
        while (said := self.read())[0] == "step":
            left.pop((said[1], said[2]), lambda: None)()
            self.write("")
        assert not left, "the job never came to these steps"
        taken: dict[str, Any] = said[1]
        return taken

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1][-3000:]
        return json.loads(line)  # nothing else may be written to stdout


def cut_for(network: Hosts, host: Host, seconds: float) -> Callable[[], None]:
    def cut() -> None:
        network.cut(host)
        time.sleep(seconds)
        network.cut()

    return cut


@pytest.mark.skipif(not (find_spec("moto") and find_spec("s3fs")), reason="moto and s3fs are not installed")
def test_nothing_is_shared_but_an_object_store(network: Hosts, whole: Index) -> None:
    """A host dies with lists in its memory, the network is cut and healed, a host that serves dies."""
    first, second, third = network.all
    server = first.start(sys.executable, "-m", "cluster.s3", str(S3_PORT), "/mnt/vectors.npy")
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    (network.shared / "vectors.npy").unlink()
    driver = Driver(first)
    disturb = {("neighbours", 7): third.kill, ("level-1", 2): cut_for(network, second, 0.7)}
    taken = driver.build("s3://bucket/vectors.npy", "s3://bucket/index", disturb)
    assert (taken["nodes"], taken["workers"]) == (3, 3)

    with ThreadPoolExecutor() as threads:
        gqe = str(Path(sys.executable).with_name("gqe"))
        fetching = threads.submit(second.run, gqe, "index", "fetch", "s3://bucket/index", "/tmp/index")
        driver.tell("fetch", "s3://bucket/index", "/tmp/index")
        fetching.result()
    worlds.assert_same(first.own / "index", whole)
    for host in (first, second):
        assert not [*host.own.glob("gqe-copies-*")]  # what tasks have copied

    driver.tell("serve", "/tmp/index", shards=1, replicas=2, device="cpu")
    assert_answers(driver, whole)
    second.kill()
    assert_answers(driver, whole)


ALONE = """
import signal, sys
from pathlib import Path
from cluster.hosts import hosts

with hosts(2, Path(sys.argv[1])) as made:
    print(made._wire.pid, *(each.process for each in made.all), flush=True)
    signal.pause()
"""


def test_hosts_end_with_the_tests_however_these_end(tmp_path: Path) -> None:
    run = [sys.executable, "-c", ALONE, str(tmp_path / "hosts")]
    process = subprocess.Popen(run, stdout=subprocess.PIPE, text=True, env=os.environ | SETTINGS)
    assert process.stdout is not None
    there = [Path("/proc", number) for number in process.stdout.readline().split()]
    assert len(there) == 3
    assert all(each.exists() for each in there)
    process.kill()
    process.wait()
    until = time.monotonic() + 10
    while any(each.exists() for each in there):
        assert time.monotonic() < until, "processes of hosts are still there"
        time.sleep(0.02)


@pytest.mark.slow(reason="five builds, before each of which a host starts")
def test_a_host_dies_in_every_phase(network: Hosts, whole: Index) -> None:
    driver = Driver(network.all[0])
    for place, phase in enumerate(
        [("vectors", 2), ("search", 2), ("neighbours", 7), ("level-1", 2), ("level-2", 3)]
    ):
        path = f"/mnt/index-{place}"
        how = {"recall": 0.9} if phase[0] == "search" else {}  # so small that it is exact all the same
        driver.build("/mnt/vectors.npy", path, {phase: network.all[-1].kill}, **how)
        worlds.assert_same(network.shared / Path(path).name, whole)
        network.add().start_ray(network.all[0])
    driver.tell("serve", path, shards=2, device="cpu")
    assert_answers(driver, whole)


@pytest.mark.slow(reason="waits until a host is given up, four times")
def test_a_host_that_was_given_up_comes_back(network: Hosts, whole: Index) -> None:
    """It finishes its task, of which another host has made the file meanwhile."""
    driver = Driver(network.all[0])
    for place, phase in enumerate([("vectors", 2), ("neighbours", 7), ("level-1", 2), ("level-2", 3)]):
        path = f"/mnt/index-{place}"
        host = network.add()
        host.start_ray(network.all[0])
        cut = cut_for(network, host, 5.0)
        assert driver.build("/mnt/vectors.npy", path, {phase: cut})["nodes"] == 4
        time.sleep(2)
        worlds.assert_same(network.shared / Path(path).name, whole)


@pytest.mark.slow(reason="starts a cluster anew after each of three phases")
def test_the_head_dies_and_the_same_command_goes_on(network: Hosts, whole: Index) -> None:
    head = network.all[0]
    for phase in (("vectors", 3), ("neighbours", 22), ("level-1", 3)):
        driver = Driver(head)
        with pytest.raises((AssertionError, BrokenPipeError)):  # it was on this host
            driver.build("/mnt/vectors.npy", "/mnt/index", {phase: head.kill})
        for host in network.all:
            host.kill()
        head, second = network.add(), network.add()
        head.start_ray()
        second.start_ray(head)
    taken = Driver(head).build("/mnt/vectors.npy", "/mnt/index", {})
    assert taken["files_taken_over"] > 10  # vectors and lists of all shards, and more
    worlds.assert_same(network.shared / "index", whole)


@pytest.mark.slow(reason="frames are late and lost")
def test_a_slow_network_that_loses_frames(network: Hosts, whole: Index) -> None:
    network.disturb(0.005, 0.02)
    driver = Driver(network.all[0])
    driver.build("/mnt/vectors.npy", "/mnt/index", {})
    worlds.assert_same(network.shared / "index", whole)
    driver.tell("serve", "/mnt/index", shards=2, device="cpu")
    assert_answers(driver, whole)
    assert network.tell()["lost"] > 20


@pytest.mark.slow(reason="a million vectors take minutes")
def test_a_million_vectors(network: Hosts) -> None:
    """A host dies while neighbours are searched. A sample is compared with plain NumPy."""
    count, dim, near = 1_000_000, 128, 5
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5000, dim)).astype(np.float32)
    vectors = centres[rng.integers(5000, size=count)] + rng.normal(size=(count, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save(network.shared / "vectors.npy", vectors)
    network.add().start_ray(network.all[0])
    driver, begun = Driver(network.all[0]), time.monotonic()
    how = {"model": f"aqe-g:k={near}", "recall": 0.9, "shards": 4, "dba": False}
    taken = driver.build("/mnt/vectors.npy", "/mnt/index", {("neighbours", 7): network.all[1].kill}, **how)
    print(f"{time.monotonic() - begun:.0f} s: {json.dumps(taken)}")
    assert (taken["items"], taken["shards"], taken["nodes"]) == (count, 4, 4)

    index = Index.open(network.shared / "index", device="cpu")
    assert len(index) == count
    rows = rng.choice(count, 300, replace=False)
    similarities = vectors[rows] @ vectors.T
    similarities[np.arange(len(rows)), rows] = -1
    best = np.argpartition(-similarities, near, axis=1)[:, :near]
    lists = index.neighbors(rows).ids[:, :near]
    found = np.mean([len({*a} & {*b}) / near for a, b in zip(lists.tolist(), best.tolist(), strict=True)])
    print(f"recall {found:.3f}")
    assert found > 0.88
    sums = vectors[rows] + vectors[lists].sum(1)
    levels = index._snapshot.levels["level-1"].index_select(0, torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(levels, sums / np.linalg.norm(sums, axis=1, keepdims=True), atol=1e-5)
    np.save(network.shared / "queries.npy", vectors[rows[:50]] + 0.01)
    driver.tell("serve", "/mnt/index", replicas=2, device="cpu")
    ids, _ = driver.tell("search", "/mnt/queries.npy", k=3, expand=False)
    assert np.mean([mine[0] == row for mine, row in zip(ids, rows, strict=False)]) > 0.95


def assert_answers(driver: Driver, whole: Index) -> None:
    """Of shards, those of an index of one process."""
    expected = whole.search(worlds.queries(), 6)
    ids, scores = driver.tell("search", "/mnt/queries.npy", k=6)
    np.testing.assert_array_equal(ids, expected.ids)
    np.testing.assert_allclose(scores, expected.scores, atol=1e-6)
