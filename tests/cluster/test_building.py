"""An index built by several Ray nodes is the index built by one process, whatever dies meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cluster import worlds
from cluster.nodes import kill, workers_of
from cluster.worlds import N, assert_same, build_whole
from gqe.cli import app
from gqe.cluster.building import build_index
from gqe.cluster.session import TaskRunner, connect
from gqe.cluster.storage import SharedFolder, fetch_index
from gqe.cluster.tasks import clean
from gqe.errors import InputError
from gqe.index import Index
from gqe.index.manifest import BUILDING, MANIFEST
from index.worlds import stacks, unit

SHARDS = 5


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    return worlds.table()


@pytest.fixture(scope="module")
def file(table: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given") / "vectors.npy"
    np.save(path, table)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """The same, built by this process."""
    return build_whole(tmp_path_factory.mktemp("whole") / "index")


def build(file: Path, path: Path | str, progress: Callable[..., None] | None = None, **how: Any) -> Any:
    how = {"dba": True, "shards": SHARDS, "cluster": "auto"} | how
    return build_index(file, stacks()["affinity"], path, progress=progress, **how)


def test_the_index_of_a_cluster_is_that_of_one_process(cluster, file, whole, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    summary = build(file, tmp_path / "index", lambda *step: seen.append(step))
    assert_same(tmp_path / "index", whole)
    assert (summary["nodes"], summary["workers"], summary["shards"]) == (3, 2, SHARDS)
    # Progress comes from the workers: one step for each task.
    assert [step for step in seen if step[2] == "neighbours"] == [
        (done, SHARDS**2, "neighbours") for done in range(1, SHARDS**2 + 1)
    ]
    assert {what for _, _, what in seen} == {"vectors", "neighbours", "level-1", "level-2"}
    assert json.loads((tmp_path / "index" / "cluster.json").read_text()) == summary


def test_bytes_over_the_network_are_counted(cluster, file, whole, tmp_path: Path) -> None:
    stages = build(file, tmp_path / "index")["stages"]
    width, row = whole._snapshot.manifest.width, 6 * 4
    # Every shard reads all others' vectors, and hands its lists on from shard to shard.
    assert stages["graph"]["read"] == N * row * (SHARDS - 1)
    assert stages["graph"]["sent"] == N * width * 8 * (SHARDS - 1)
    lists = whole._snapshot.graph.block(0, N).ids[:, :4]
    foreign = 0
    for start in range(0, N, N // SHARDS):
        ids = lists[start : start + N // SHARDS]
        foreign += len({i for i in ids.ravel().tolist() if not start <= i < start + N // SHARDS})
    assert stages["level-1"]["read"] == foreign * (row + 8 * width)  # rows, and the lists beside them
    assert stages["level-2"]["read"] == foreign * (2 * row + 8 * width)  # at level 1 and at first
    assert stages["level-1"]["read_per_item"] == pytest.approx(stages["level-1"]["read"] / N, abs=0.01)


def test_files_of_a_folder_from_and_to_addresses(cluster, table, whole, tmp_path: Path) -> None:
    given, made, copy = tmp_path / "given", tmp_path / "made", tmp_path / "copy"
    given.mkdir()
    np.save(given / "part-1.npy", table[:250])
    np.savez(given / "part-2.npz", vectors=table[250:])
    build(f"file://{given}", f"file://{made}")
    fetch_index(f"file://{made}", copy)
    assert_same(copy, whole)
    with pytest.raises(InputError, match="already holds an index"):
        build(f"file://{given}", f"file://{made}")
    with pytest.raises(InputError, match=r"is an address; bring it here with `gqe index fetch"):
        Index.open(f"file://{made}")
    (made / "ids.00000001.npy").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"ids\S* arrived damaged"):
        fetch_index(f"file://{made}", tmp_path / "another")


def test_a_wrong_row_ends_the_job_in_one_line(cluster, table, tmp_path: Path) -> None:
    broken = table.copy()
    broken[650] = 0
    np.save(tmp_path / "broken.npy", broken)
    with pytest.raises(InputError, match=r"^vectors: row 650 is all zeros and has no direction; remove it$"):
        build(tmp_path / "broken.npy", tmp_path / "index")
    assert not (tmp_path / "index" / MANIFEST).exists()
    with pytest.raises(InputError, match="no node of the cluster has a GPU"):
        build(tmp_path / "broken.npy", tmp_path / "another", device="cuda")


def test_the_command(cluster, file, whole, tmp_path: Path) -> None:
    build = ["index", "build", str(file), str(tmp_path / "index"), "--cluster", cluster.address]
    ran = CliRunner().invoke(app, [*build, "-m", "aqe-g:k=3", "--shards", "3", "--json"])
    assert ran.exit_code == 0, ran.output
    about = json.loads(ran.stdout)
    assert (about["items"], about["shards"], about["workers"]) == (N, 3, 2)
    opened = Index.open(tmp_path / "index", device="cpu")
    np.testing.assert_array_equal(
        opened._snapshot.graph.block(0, N).ids[:, :3], whole._snapshot.graph.block(0, N).ids[:, :3]
    )


def test_a_bounded_number_of_tasks_waits(cluster) -> None:
    import ray

    with connect() as session:
        crew = TaskRunner(ray, session, "cpu", "here")
        started, under_way, most = crew.task(clean), 0, 0

        def chain() -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            for _ in range(2):
                yield started.remote(SharedFolder(Path("/")))
            under_way -= 1

        crew.run(chain() for _ in range(12))
    assert (most, under_way) == (session.workers + 1, 0)


def test_a_killed_worker_changes_nothing(cluster, file, whole, tmp_path: Path) -> None:
    killed: list[int] = []

    def progress(done: int, total: int, what: str) -> None:
        if (what, done) in (("neighbours", 3), ("neighbours", 9), ("level-1", 2)):
            busy = [pid for node in cluster.worker_nodes for pid in workers_of(node)]
            if busy:
                kill(busy[0])
                killed.append(busy[0])

    build(file, tmp_path / "index", progress)
    assert killed
    assert_same(tmp_path / "index", whole)


def test_a_killed_node_changes_nothing(cluster, file, whole, tmp_path: Path) -> None:
    """With the lists that were on their way in its memory."""
    gone = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    cluster.wait_for_nodes()

    def progress(done: int, total: int, what: str) -> None:
        if (what, done) == ("neighbours", 12):
            cluster.remove_node(gone, allow_graceful=False)

    build(file, tmp_path / "index", progress)
    assert gone not in cluster.worker_nodes
    assert_same(tmp_path / "index", whole)


DRIVER = """
import os, signal, sys
from gqe.cluster.building import build_index
from index.worlds import stacks

file, path = sys.argv[1:]

def progress(done, total, what):
    if (what, done) == ("neighbours", 22):
        os.kill(os.getpid(), signal.SIGKILL)

build_index(file, stacks()["affinity"], path, dba=True, shards=5, cluster="auto", progress=progress)
"""


def test_a_killed_driver_goes_on_from_finished_shards(cluster, file, whole, tmp_path: Path) -> None:
    path, tests = tmp_path / "index", str(Path(__file__).parents[1])
    run = [sys.executable, "-c", DRIVER, str(file), str(path)]
    ended = subprocess.run(run, cwd=tests, capture_output=True, timeout=120, check=False)
    assert ended.returncode == -9, ended.stderr.decode()[-2000:]
    noted = json.loads((path / BUILDING).read_text())["done"]
    assert SHARDS < sum("-shard-" in name for name in noted) < 2 * SHARDS  # some lists, no level
    assert not (path / MANIFEST).exists()
    written = {name: (path / name).stat().st_mtime_ns for name in noted}

    summary = build(file, path, shards=None)  # in the shards of the first run
    assert summary["files_taken_over"] == len(written)
    assert summary["shards"] == SHARDS
    assert written == {name: (path / name).stat().st_mtime_ns for name in written}
    assert_same(path, whole)


def test_another_input_starts_anew(cluster, file, whole, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def progress(done: int, total: int, what: str) -> None:
        if what == "level-1":
            raise Stop

    other = tmp_path / "other.npy"
    np.save(other, unit(np.random.default_rng(5).normal(size=(300, 6))))
    with pytest.raises(Stop):
        build(other, tmp_path / "index", progress)
    assert build(file, tmp_path / "index")["files_taken_over"] == 0
    assert_same(tmp_path / "index", whole)
