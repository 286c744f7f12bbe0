"""A disk that fails, a process that dies, a machine that loses power: at every operation on a file.

What was acknowledged is there; what was not is there as a whole or not at all. Whatever happened, the index
is sound, can be changed, and holds nothing that does not belong to it after that.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gqe.cluster.storage import fetch_index
from gqe.errors import DamagedError, InputError, StorageError
from gqe.index import Index, journal, verify
from gqe.index.manifest import MANIFEST, read_manifest
from gqe.models import expander
from index.faults import Crash, Disk, copied, failing
from index.worlds import vectors

TABLE = vectors(12)
MORE = vectors(2, seed=3)
NAMES = [f"n{i}" for i in range(12)]


def build(path: Path) -> None:
    Index.build(TABLE, expander("aqe-g", k=2), path, ids=NAMES, device="cpu")


def fetch(path: Path) -> None:
    fetch_index(f"file://{path.parent / 'remote'}", path)


CHANGES: dict[str, Callable[[Index], None]] = {
    "add": lambda index: index.add(MORE, ids=["a", "b"]),
    "update": lambda index: index.update(MORE, ["n3", "n4"], refresh=True),
    "remove": lambda index: index.remove(["n1", "n7"]),
    "refresh": Index.refresh,
    "compact": Index.compact,
}


def change(name: str) -> Callable[[Path], None]:
    return lambda path: CHANGES[name](Index.open(path, device="cpu"))


WORKS: dict[str, Callable[[Path], None]] = {"build": build, "fetch": fetch} | {
    name: change(name) for name in CHANGES
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an index that has rows out of date and removed ones."""
    monkeypatch.setattr(journal, "_CHECKPOINT", 0.0)
    monkeypatch.setattr(journal, "_BLOCK", 6)
    world = tmp_path.resolve()
    build(world / "index")
    Index.open(world / "index").add(vectors(1, seed=8), ids=["extra"])
    Index.open(world / "index").remove(["n9"])
    copied(world / "index", world / "remote")
    (world / "empty").mkdir()
    return world


def state(path: Path) -> tuple:
    """All that a user can see."""
    index = Index.open(path, device="cpu")
    ids = index.ids.tolist()
    return ids, index.vectors(ids).tolist(), index.search(TABLE[:2], 4).ids.tolist()


def expected_files(path: Path) -> set[str]:
    return {MANIFEST, "lock", *read_manifest(path).files}


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()}


def check(path: Path, work: Callable[[Path], None], allowed: list[tuple], is_new: bool) -> None:
    """The index is as before or as after, sound, and whole again after one more change."""
    if not (path / MANIFEST).exists():
        assert is_new
        with pytest.raises(InputError):
            Index.open(path)
        work(path)  # it goes on, or starts anew
        allowed = allowed[-1:]
    assert state(path) in allowed
    assert verify(path) == []
    Index.open(path, device="cpu").add(vectors(1, seed=9), ids=["later"])
    assert "later" in Index.open(path)
    assert verify(path) == []
    assert files(path) == expected_files(path)


def shape(path: Path) -> tuple:
    """What there is by name and size; tokens are drawn anew each time."""
    there = ((str(file.relative_to(path)), file) for file in path.rglob("*"))
    sizes = ((name, 0 if file.is_dir() else file.stat().st_size) for name, file in there)
    return tuple(sorted((re.sub("[0-9a-f]{16}", "*", name), size) for name, size in sizes))


def walk(world: Path, name: str, step: int = 1) -> int:
    """Let the work crash at every operation; how many there were."""
    work, is_new = WORKS[name], name in ("build", "fetch")
    original, trial = world / ("empty" if is_new else "index"), world / "trial"
    copied(original, trial)
    before = [] if is_new else [state(trial)]
    work(trial)
    allowed, seen, at = [*before, state(trial)], set(), 0
    while True:
        copied(original, trial)
        disk = Disk(trial, at)
        with failing(disk):
            try:
                work(trial)
            except BaseException:
                assert disk.crashed, disk.log[-3:]
        ends = [trial]
        for number, surviving in enumerate(["", ".*", r"manifest\.json", r".*\.npy"]):
            lost = copied(world / "empty", world / f"lost-{number}")
            disk.after_power_loss(lost, surviving)
            ends.append(lost)
        disk.close()
        for end in ends:
            if shape(end) not in seen or not disk.crashed:
                seen.add(shape(end))
                check(end, work, allowed if disk.crashed else allowed[-1:], is_new)
        if not disk.crashed:
            return disk.count
        at += step


@pytest.mark.parametrize("name", sorted(WORKS))
def test_a_crash_at_many_operations(world: Path, name: str) -> None:
    assert walk(world, name, step=9 if name in ("build", "fetch") else 5) > 20


@pytest.mark.slow  # half a minute: every operation, where the test above takes some
@pytest.mark.parametrize("name", sorted(WORKS))
def test_a_crash_at_any_operation(world: Path, name: str) -> None:
    assert walk(world, name) > 20


def walk_errors(world: Path, name: str, error: int, step: int = 1) -> int:
    """Let every operation fail; how many there were."""
    work, is_new = WORKS[name], name in ("build", "fetch")
    original, trial = world / ("empty" if is_new else "index"), world / "trial"
    copied(original, trial)
    before = [] if is_new else [state(trial)]
    work(trial)
    allowed, at = [*before, state(trial)], 0
    while True:
        copied(original, trial)
        disk = Disk(trial, at, error)
        raised = None
        with failing(disk):
            try:
                work(trial)
            except StorageError as failure:
                raised = failure
        disk.close()
        if raised is not None:
            assert not isinstance(raised, DamagedError)
            assert raised.full == (error == errno.ENOSPC)
            assert raised.retryable == (error in (errno.ENOSPC, errno.EMFILE))
            assert "\n" not in str(raised)
        check(trial, work, allowed if raised else allowed[-1:], is_new)
        if disk.count <= at:
            return disk.count
        at += step


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS])
def test_an_error_at_many_operations(world: Path, error: int) -> None:
    assert walk_errors(world, "update", error, step=11) > 20


@pytest.mark.slow  # minutes: every operation of all works with four errors
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS])
@pytest.mark.parametrize("name", sorted(WORKS))
def test_an_error_at_any_operation(world: Path, name: str, error: int) -> None:
    assert walk_errors(world, name, error) > 20


def test_the_layer_sees_what_it_must(world: Path) -> None:
    """That a crash is one: no write, no removal comes after it, and what was not flushed is lost."""
    disk = Disk(world / "index", at=1)
    with failing(disk), pytest.raises(Crash):
        (world / "index" / "a").write_text("written")
    with failing(disk), pytest.raises(Crash):
        (world / "index" / "a").unlink()
    assert (world / "index" / "a").read_text() == ""
    disk.after_power_loss(world / "lost")
    disk.after_power_loss(world / "named", ".*")
    disk.close()
    assert files(world / "lost") == expected_files(world / "lost")
    assert files(world / "named") == {"a", *expected_files(world / "named")}
    np.testing.assert_equal(state(world / "lost"), state(world / "index"))
