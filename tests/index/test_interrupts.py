"""Ctrl+C, and other signals, at any moment of a change."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from gqe.errors import StorageError
from gqe.formats import atomic
from gqe.index import Index, drafts, manifest, verify
from gqe.models import expander
from index.faults import copied
from index.test_faults import expected_files, files, state
from index.worlds import vectors

WATCHED = {module.__file__ for module in (atomic, drafts, manifest)}
MORE = vectors(2, seed=3)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("interrupts") / "index"
    Index.build(vectors(12), expander("aqe-g", k=2), path, ids=[f"n{i}" for i in range(12)], device="cpu")
    return path


@contextmanager
def interrupted_at(line: int) -> Iterator[list[int]]:
    """A KeyboardInterrupt instead of one of the lines that write; gives the number of lines passed."""
    passed = [0]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            passed[0] += 1
            if passed[0] == line:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield passed
    finally:
        sys.settrace(before)


def check(path: Path, before: tuple, after: tuple, returned: bool) -> None:
    assert state(path) in ([after] if returned else [before, after])
    assert verify(path) == []
    Index.open(path, device="cpu").add(vectors(1, seed=9), ids=["later"])
    assert verify(path) == []
    assert files(path) == expected_files(path)


def walk(original: Path, tmp_path: Path, step: int) -> tuple[int, int]:
    """Interrupt a change at every few lines; how many lines there are, and how many times it took effect."""
    trial = copied(original, tmp_path / "trial")
    before = state(trial)
    Index.open(trial, device="cpu").add(MORE, ids=["a", "b"])
    after, changed, line = state(trial), 0, 1
    while True:
        copied(original, trial)
        index, returned = Index.open(trial, device="cpu"), False
        with interrupted_at(line) as passed:
            try:
                index.add(MORE, ids=["a", "b"])
                returned = True
            except KeyboardInterrupt:
                changed += state(trial) == after
        check(trial, before, after, returned)
        if returned:
            return passed[0], changed
        line += step


def test_an_interrupt_at_many_lines(original: Path, tmp_path: Path) -> None:
    lines, changed = walk(original, tmp_path, step=31)
    assert lines > 200
    assert changed > 0  # some came after the swap


@pytest.mark.slow  # half a minute: every line, where the test above takes some
def test_an_interrupt_at_any_line(original: Path, tmp_path: Path) -> None:
    walk(original, tmp_path, step=1)


def changing_for_ever(path: Path, acknowledged: int) -> None:
    """In a child: add one item after the other, and tell of each that was added."""
    torch.set_num_threads(1)
    index = Index.open(path, device="cpu")
    for number in range(100_000):
        index.add(vectors(1, seed=number), ids=[f"added-{number}"])
        os.write(acknowledged, b".")
        if number % 5 == 4:
            index.compact()


def signalled(path: Path, which: signal.Signals, after: float) -> int:
    """Send a signal to a child that changes an index; how many items it had acknowledged."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            changing_for_ever(path, write)
        finally:
            os._exit(0)
    os.close(write)
    time.sleep(after)
    os.kill(child, which)
    again = time.monotonic() + 1
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        # Python drops an interrupt that comes while a collection of garbage calls back.
        if time.monotonic() > again:
            os.kill(child, which)
            again += 1
        time.sleep(0.01)
    with os.fdopen(read, "rb") as answer:
        return len(answer.read())


def strike(original: Path, tmp_path: Path, trials: int) -> None:
    rng = np.random.default_rng(0)
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    for trial in range(trials):
        path = copied(original, tmp_path / "trial")
        told = signalled(path, signals[trial % 3], rng.uniform(0, 0.3))
        index = Index.open(path, device="cpu")
        added = len(index) - 12
        assert told <= added <= told + 1
        assert index.ids.tolist()[12:] == [f"added-{number}" for number in range(added)]
        assert verify(path) == []
        index.add(vectors(1, seed=9), ids=["later"])
        assert files(path) == expected_files(path)


def test_signals(original: Path, tmp_path: Path) -> None:
    strike(original, tmp_path, 9)


@pytest.mark.slow  # a minute: two hundred children
def test_many_signals(original: Path, tmp_path: Path) -> None:
    strike(original, tmp_path, 200)


def test_an_old_file_that_cannot_be_removed_is_a_warning(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = copied(original, tmp_path / "trial")
    index = Index.open(path, device="cpu")
    index.remove(["n1"])
    real = os.unlink

    def refuse(name: Any, **more: Any) -> None:
        if "removed.00000002" in str(name):
            raise PermissionError(1, "Operation not permitted", str(name))
        real(name, **more)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "unlink", refuse)
        index.add(MORE, ids=["a", "b"])
        index.compact()  # however long it lasts
        index.add(vectors(1, seed=9), ids=["c"])
    assert "old files are still there" in caplog.text
    assert len(Index.open(path)) == 14
    assert verify(path) == []
    index.remove(["a"])
    assert files(path) == expected_files(path)


def test_no_file_left_to_open(original: Path, tmp_path: Path) -> None:
    import resource

    path = copied(original, tmp_path / "trial")
    index = Index.open(path, device="cpu")
    before = state(path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit is one of numbers, not of files: numbers that were given back are taken first.
    last = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
    fillers = [os.open(os.devnull, os.O_RDONLY)]
    while fillers[-1] < last:
        fillers.append(os.open(os.devnull, os.O_RDONLY))
    taken = fillers[-1] + 1
    for spare in (1, 2, 3, 5, 8):
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + spare, limits[1]))
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("gqe.index.files._allow_more_open_files", lambda: False)
                with pytest.raises(StorageError) as caught:
                    index.add(MORE, ids=["a", "b"])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (caught.value.retryable, caught.value.full) == (True, False)
        assert state(path) == before
        assert verify(path) == []
    for filler in fillers:
        os.close(filler)
    index.add(MORE, ids=["a", "b"])
    assert files(path) == expected_files(path)
