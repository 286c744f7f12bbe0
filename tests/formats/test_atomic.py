"""Writing beside and renaming."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading

import pytest

from gqe.errors import InputError, StorageError
from gqe.formats.atomic import atomic_path
from index.faults import Disk, failing


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_new_file_appears_whole(tmp_path):
    target = tmp_path / "report.json"
    target.write_text("old")
    with atomic_path(target) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".json"
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert names(tmp_path) == ["report.json"]


@pytest.mark.parametrize(
    "error", [RuntimeError("midway"), KeyboardInterrupt(), OSError("disk"), SystemExit(1)]
)
@pytest.mark.parametrize("existed", [True, False])
def test_an_error_midway_leaves_what_was_there(tmp_path, error, existed):
    target = tmp_path / "model.bin"
    if existed:
        target.write_text("old")

    def write_half():
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(type(error)) as caught:
        write_half()
    assert caught.value is error
    assert names(tmp_path) == (["model.bin"] if existed else [])
    if existed:
        assert target.read_text() == "old"


def test_a_killed_process_leaves_the_old_file(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    code = (
        "import os, sys; from gqe.formats.atomic import atomic_path\n"
        "with atomic_path(sys.argv[1]) as t: t.write_text('half'); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(target)], env=dict(os.environ), check=False)
    assert done.returncode == -9
    assert target.read_text() == "old"


def test_permissions_are_those_of_any_new_file_or_of_the_old_one(tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    with atomic_path(tmp_path / "new"):
        pass
    assert (tmp_path / "new").stat().st_mode == plain.stat().st_mode
    plain.chmod(0o640)
    with atomic_path(plain) as temporary:
        temporary.write_text("x")
    assert stat.S_IMODE(plain.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "data").mkdir()
    real = tmp_path / "data" / "real.txt"
    real.write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(real)
    with atomic_path(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_reader_with_the_old_file_open_keeps_it(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with target.open() as reader:
        with atomic_path(target) as temporary:
            temporary.write_text("new")
        assert reader.read() == "old"


def test_many_writers_never_mix(tmp_path):
    target = tmp_path / "a.txt"

    def write(letter):
        for _ in range(5):
            with atomic_path(target) as temporary:
                temporary.write_text(letter * 10_000)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_text() in {letter * 10_000 for letter in "abcd"}
    assert names(tmp_path) == ["a.txt"]


def test_a_long_name_is_possible(tmp_path):
    target = tmp_path / ("ä" * 120 + ".npy")
    with atomic_path(target) as temporary:
        temporary.write_text("x")
    assert target.read_text() == "x"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent/a.txt", "does not exist; create it"),
        (".", "is a folder"),
        ("x" * 300, "cannot be written"),
        ("a\0b", "cannot be written"),
        ("/dev/null", "not a regular file"),
    ],
)
def test_impossible_targets(tmp_path, name, reason):
    with pytest.raises(InputError, match=reason), atomic_path(tmp_path / name):
        pytest.fail("the body must not run")
    assert names(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EMFILE])
@pytest.mark.parametrize("existed", [True, False])
def test_any_operation_may_fail(tmp_path, existed, code):
    """The old file or the whole new one, nothing beside it, and an error that tells what is wrong."""
    folder = tmp_path.resolve()
    at = 0
    while True:
        for path in folder.iterdir():
            path.unlink()
        if existed:
            (folder / "a.txt").write_text("old")
        disk, failed = Disk(folder, at, code), None
        with failing(disk):
            try:
                with atomic_path(folder / "a.txt") as temporary:
                    temporary.write_text("new")
            except StorageError as error:
                failed = error
        disk.close()
        left = {path.name: path.read_text() for path in folder.iterdir()}
        if not failed:
            assert left == {"a.txt": "new"}
            break
        assert failed.full == (code == errno.ENOSPC)
        assert ".tmp" not in str(failed)
        assert left in ([{"a.txt": "old"}] if existed else [{}]) or "flush" in disk.log[at]
        assert left in ([{"a.txt": "old"}, {"a.txt": "new"}] if existed else [{}, {"a.txt": "new"}])
        at += 1
    assert at >= 6


def test_an_error_of_something_else_stays_what_it_is(tmp_path):
    def read_another():
        with atomic_path(tmp_path / "a.txt"):
            (tmp_path / "absent").read_text()

    with pytest.raises(FileNotFoundError, match="absent"):
        read_another()
    assert names(tmp_path) == []


def test_a_link_is_replaced_if_it_shall_not_be_followed(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_path(tmp_path / "link", follow=False) as temporary:
        temporary.write_text("new")
    assert (tmp_path / "real").read_text() == "old"
    assert (tmp_path / "link").read_text() == "new"
    assert not (tmp_path / "link").is_symlink()


def test_a_folder_that_cannot_be_flushed_is_heard_of(tmp_path, monkeypatch):
    real = os.fsync

    def fail(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    code = errno.EINVAL  # so a file system says that it does not know how
    with atomic_path(tmp_path / "a.txt"):
        pass
    code = errno.EIO
    with pytest.raises(StorageError, match="the disk fails"), atomic_path(tmp_path / "b.txt"):
        pass
