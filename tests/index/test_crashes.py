"""kill -9 at any moment: the old state or the new one, never anything between, and nothing lost.

The package is imported once; each trial forks a worker, lets it work for a random part of the time the work
takes, kills it, and looks at what is on the disk.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gqe.errors import InputError
from gqe.index import Index, journal, verify
from index.worlds import assert_equals_rebuild, stacks, vectors

N = 120
TABLE = vectors(N, copies=4)
MORE = vectors(12, seed=5)


def build(path: Path) -> None:
    Index.build(TABLE, stacks()["affinity"], path, device="cpu")


def add(path: Path) -> None:
    Index.open(path, device="cpu").add(MORE, refresh=True)


def remove(path: Path) -> None:
    Index.open(path, device="cpu").remove(list(range(0, 40, 3)))


def update(path: Path) -> None:
    Index.open(path, device="cpu").update(MORE, list(range(5, 17)))


def compact(path: Path) -> None:
    Index.open(path, device="cpu").compact()


def state(index: Index) -> tuple:
    """Everything a user can see of an index."""
    queries = vectors(4, seed=9)
    found = index.search(queries, 8)
    return index.ids.tolist(), found.ids.tolist(), found.scores.round(4).tolist()


def names(path: Path) -> list[str]:
    """Of the files, without what is drawn anew by every change."""
    return sorted(re.sub("[0-9a-f]{16}", "*", file.name) for file in path.iterdir())


def forked(work: Callable[[Path], None], path: Path) -> int:
    """Start the work in a child; its exit status says whether it got to the end."""
    child = os.fork()
    if child:
        return child
    try:
        # A child of a fork has none of its parent's threads to wait for.
        torch.set_num_threads(1)
        work(path)
        os._exit(0)
    except BaseException:
        os._exit(9)
    finally:
        os._exit(8)


def finished(work: Callable[[Path], None], path: Path) -> float:
    """Seconds the work takes in a child."""
    begun = time.perf_counter()
    status = os.waitstatus_to_exitcode(os.waitpid(forked(work, path), 0)[1])
    assert status == 0
    return time.perf_counter() - begun


def killed(work: Callable[[Path], None], path: Path, after: float) -> bool:
    """Kill the work after some seconds; whether it was still at it."""
    child = forked(work, path)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize(("work", "trials"), [(add, 30), (remove, 24), (update, 24), (compact, 24)])
def test_a_killed_change_leaves_the_old_state_or_the_new(tmp_path: Path, work, trials: int) -> None:
    original, changed, trial = tmp_path / "original", tmp_path / "changed", tmp_path / "trial"
    build(original)
    if work is compact:
        add(original)
        remove(original)
    times = []
    for _ in range(3):  # the fastest tells how long it takes: another program may have slowed one down
        shutil.rmtree(changed, ignore_errors=True)
        shutil.copytree(original, changed)
        times.append(finished(work, changed))
    seconds = min(times)
    before, after = state(Index.open(original)), state(Index.open(changed))
    first, last = Index.open(original).version, Index.open(changed).version
    rng = np.random.default_rng(0)
    interrupted, seen = 0, set()
    for _ in range(trials):
        shutil.rmtree(trial, ignore_errors=True)
        shutil.copytree(original, trial)
        caught = killed(work, trial, rng.uniform(0, 1.1 * seconds))
        interrupted += caught
        seconds *= 1.05 if caught else 0.9  # a machine may become faster or slower meanwhile
        index = Index.open(trial, device="cpu")
        assert state(index) in (
            (before,) if index.version == first else (before, after) if work is compact else (after,)
        )
        seen.add(index.version)
        assert verify(trial) == []
    assert interrupted > trials // 4  # the kills fell into the work
    assert len(seen) > 1  # some before the swap, some after it
    if index.version != last:
        work(trial)  # what was interrupted can be done again
    Index.open(trial, device="cpu").remove([])  # any writer sweeps what a kill after the swap left behind
    assert state(Index.open(trial)) == after
    # Leftovers are swept: the files are those of an index that was never killed.
    assert names(trial) == names(changed)


def test_a_killed_build_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_CHECKPOINT", 0.0)
    monkeypatch.setattr(journal, "_BLOCK", 30)
    whole, beside = tmp_path / "whole", tmp_path / "beside"
    finished(build, whole)
    rng = np.random.default_rng(1)
    trial, interrupted, runs = tmp_path / "trial", 0, 0
    contents = {p.name: p.read_bytes() for p in whole.iterdir() if p.suffix == ".npy"}
    for _ in range(25):
        seconds = finished(build, beside)  # each time: the machine may have become faster or slower
        shutil.rmtree(beside)
        while True:
            runs += 1
            interrupted += killed(build, trial, rng.uniform(0, 0.9 * seconds))
            if (trial / "manifest.json").exists():
                break
            if trial.exists():
                with pytest.raises(InputError, match="build"):
                    Index.open(trial)
        assert verify(trial) == []
        assert {p.name: p.read_bytes() for p in trial.iterdir() if p.suffix == ".npy"} == contents
        shutil.rmtree(trial)
    assert interrupted >= 12
    assert runs > 25  # some were interrupted more than once
    assert_equals_rebuild(Index.open(whole), list(range(N)), TABLE)


def test_an_interrupted_build_does_not_begin_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_CHECKPOINT", 0.0)
    monkeypatch.setattr(journal, "_BLOCK", 10)

    class Stopped(Exception):
        pass

    told: list[tuple[int, str]] = []

    def stop_in_the_graph(done: int, total: int, what: str) -> None:
        told.append((done, what))
        if what == "neighbours" and done == 70:
            raise Stopped

    expander = stacks()["mean"]
    with pytest.raises(Stopped):
        Index.build(TABLE, expander, tmp_path / "index", progress=stop_in_the_graph)
    told.clear()
    index = Index.build(
        TABLE, expander, tmp_path / "index", progress=lambda done, total, what: told.append((done, what))
    )
    assert told[0] == (70, "neighbours")  # rows 60 to 69 were computed, but not noted yet
    assert_equals_rebuild(index, list(range(N)), TABLE)


def test_a_build_of_something_else_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Exception):
        pass

    def stop(done: int, total: int, what: str) -> None:
        if what == "level-1":
            raise Stopped

    with pytest.raises(Stopped):
        Index.build(TABLE, stacks()["mean"], tmp_path / "index", progress=stop)
    other = vectors(50, seed=3)
    index = Index.build(other, stacks()["affinity"], tmp_path / "index")
    assert_equals_rebuild(index, list(range(50)), other)
    assert verify(index.path) == []


def test_readers_while_a_writer_is_killed_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path)
    rng = np.random.default_rng(2)
    seconds = finished(add, path)
    rows = len(Index.open(path))
    for _ in range(20):
        child = forked(add, path)
        until = time.perf_counter() + rng.uniform(0, seconds)
        while time.perf_counter() < until:
            index = Index.open(path, device="cpu")
            assert (len(index) - N) % len(MORE) == 0
            assert len(index) >= rows
            rows = len(index)
            assert index.search(TABLE[:2], 3).ids.shape == (2, 3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert verify(path) == []
