"""Pictures described by two Ray nodes give the files that one process gives, whatever dies meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.nodes import cluster_of, kill, workers_of
from extraction.models import fill, write_model
from gqe.cluster.extracting import extract_on_cluster
from gqe.errors import InputError
from gqe.extraction import Whitening, extract, open_network, pictures_of_folder
from gqe.extraction.extracting import PART_SIZE

SETTINGS = {"batch_size": 8, "threads": 1}
PARTS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with cluster_of(2) as found:
        yield found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network, pictures for four parts (some of them no pictures), and what one process makes of them."""
    root = tmp_path_factory.mktemp("world")
    write_model(root / "net.onnx")
    (root / "net.toml").write_text('size = 16\nresize = "fit"\nstep = 4\n')
    fill(root / "pictures", PART_SIZE * (PARTS - 1) + 40)
    for number in (3, PART_SIZE + 1):
        (root / "pictures" / f"{number:04d}.png").write_text("a letter")
    network = open_network(root / "net.onnx", **SETTINGS)
    extract(pictures_of_folder(root / "pictures"), root / "plain.npy", network, folder=root / "pictures")
    return root


def contents(folder: Path, stem: str) -> dict[str, bytes]:
    return {p.name.removeprefix(stem): p.read_bytes() for p in folder.glob(f"{stem}.*") if p.is_file()}


def on_cluster(world: Path, output: Path, cluster: Any, **given: Any) -> Any:
    return extract_on_cluster(
        pictures_of_folder(world / "pictures"),
        output,
        str(world / "net.onnx"),
        cluster=cluster.address,
        settings=SETTINGS,
        folder=world / "pictures",
        **given,
    )


def test_the_files_are_those_of_one_process_though_workers_die(
    cluster: Any, world: Path, tmp_path: Path
) -> None:
    killed: list[int] = []

    def progress(done: int, total: int, name: str) -> None:
        if not killed:
            killed.extend(pid for node in cluster.worker_nodes for pid in workers_of(node))
            for pid in killed:
                kill(pid)

    written = on_cluster(world, tmp_path / "plain.npy", cluster, progress=progress)
    assert killed, "no task was running"
    assert contents(tmp_path, "plain") == contents(world, "plain")
    assert [line.split("\t")[0] for line in written.skipped.read_text().splitlines()] == [
        "0003.png",
        f"{PART_SIZE + 1:04d}.png",
    ]


def test_a_killed_driver_goes_on_and_makes_nothing_twice(cluster: Any, world: Path, tmp_path: Path) -> None:
    output, folder = tmp_path / "plain.npy", tmp_path / "plain.parts"
    command = [sys.executable, "-c", "from gqe.cli import main; main()", "extract", world / "pictures"]
    command += ["-o", output, "--network", world / "net.onnx", "--batch-size", 8, "--threads", 1]
    driver = subprocess.Popen([*map(str, command), "--cluster", cluster.address], stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 60
        while not list(folder.glob("part-*")) and driver.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert driver.poll() is None, driver.stderr.read() if driver.stderr else ""
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        driver.stderr.close()  # type: ignore[union-attr]
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("part-*")}
    assert 0 < len(before) < PARTS
    assert not output.exists()
    told: list[int] = []
    made: dict[str, int] = {}

    def progress(done: int, total: int, name: str) -> None:
        told.append(done)
        made.update({path.name: path.stat().st_mtime_ns for path in folder.glob("part-*")})

    on_cluster(world, output, cluster, progress=progress)
    assert {name: made[name] for name in before} == before
    assert len(told) == PARTS - len(before)
    assert contents(tmp_path, "plain") == contents(world, "plain")


def test_whitening_and_decoding_in_the_task(cluster: Any, world: Path, tmp_path: Path) -> None:
    white = Whitening(np.full(8, 0.1), np.random.default_rng(0).normal(size=(8, 3)))
    pictures = pictures_of_folder(world / "pictures")[:20]
    network = open_network(world / "net.onnx", **SETTINGS)
    plain = extract(pictures, tmp_path / "plain.npy", network, whitening=white)
    given: dict[str, Any] = {"cluster": cluster.address, "settings": SETTINGS, "whitening": white}
    ours = extract_on_cluster(pictures, tmp_path / "ours.npy", str(world / "net.onnx"), **given, workers=0)
    assert ours.about == plain.about
    assert contents(tmp_path, "ours")[".npy"] == contents(tmp_path, "plain")[".npy"]
    # All is done: nobody is asked, wherever they are.
    again = extract_on_cluster(
        pictures, tmp_path / "ours.npy", str(world / "net.onnx"), **given | {"cluster": "nobody:1"}
    )
    assert again.about == ours.about


def test_bad_input_is_one_line(cluster: Any, world: Path, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "one.png").write_text("a letter")
    pictures = pictures_of_folder(tmp_path / "letters")
    network, given = str(world / "net.onnx"), {"cluster": cluster.address, "settings": SETTINGS}
    with pytest.raises(InputError, match="no other of 1 pictures"):
        extract_on_cluster(pictures, tmp_path / "out.npy", network, **given)
    with pytest.raises(InputError, match="workers"):
        extract_on_cluster(pictures, tmp_path / "out.npy", network, **given, workers=-1)
    with pytest.raises(InputError, match="nobody answers"):
        extract_on_cluster(pictures, tmp_path / "new.npy", network, cluster="127.0.0.1:1")
