"""Files that fail, and machines that stop, at any chosen operation.

Every operation of this process that changes files under a folder is counted: creating, writing, flushing,
renaming, cutting, removing, making folders. The chosen one fails with an error of the system, or is the last
one: a `Crash` is raised instead of it, and from then on nothing is written or removed any more, so that no
clean-up can run. What was flushed is remembered, so that a loss of power can be played as well.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_open = os.open


class Crash(BaseException):
    """The machine stops here."""


class Disk:
    """Counts what is done to the files under a folder, and fails when told to.

    Args:
        folder: whose files are watched.
        at: number of the operation that fails; None for none.
        error: errno of the failure; None for a crash.
    """

    def __init__(self, folder: Path, at: int | None = None, error: int | None = None) -> None:
        self.folder = folder
        self.at = at
        self.error = error
        self.count = 0
        self.log: list[str] = []
        self.crashed = False
        self._lock = threading.Lock()
        self._held: dict[int, int] = {}
        # What is safe: content by inode, and inodes by name in each folder.
        self.content: dict[int, bytes] = {}
        self.names: dict[str, dict[str, int]] = {}
        for place in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
            self._note_names(place)
            for path in place.iterdir():
                if path.is_file():
                    self.hold(path)
                    self.content[path.stat().st_ino] = path.read_bytes()

    def reached(self, what: str, path: Any) -> None:
        """Called before every operation; raises if it is the one that fails, or later than a crash."""
        with self._lock:
            if self.crashed:
                raise Crash
            self.count += 1
            self.log.append(f"{what} {Path(os.fspath(path)).name}")
            if self.at is None or self.count - 1 != self.at:
                return
            if self.error is None:
                self.crashed = True
                raise Crash
        raise OSError(self.error, os.strerror(self.error), os.fspath(path))

    def watches(self, path: Any) -> bool:
        if isinstance(path, int) or path is None:
            return False
        place = str(Path(path).absolute())
        return place == str(self.folder) or place.startswith(f"{self.folder}/")

    def hold(self, path: Any) -> None:
        """Keep a file open, so that its number is not given to another while it is remembered."""
        inode = Path(path).stat().st_ino
        if inode not in self._held:
            self._held[inode] = _open(path, os.O_RDONLY)

    def close(self) -> None:
        """Let go of all files."""
        for descriptor in self._held.values():
            os.close(descriptor)

    def flushed(self, path: Path) -> None:
        """A file or a folder has been brought onto the disk."""
        if path.is_dir():
            self._note_names(path)
        else:
            self.content[path.stat().st_ino] = path.read_bytes()

    def after_power_loss(self, target: Path, surviving: str = "") -> None:
        """Write what is certain to be there: flushed content under flushed names.

        Args:
            target: a new folder.
            surviving: a pattern of names that are as they were last, though the folder was not flushed.
        """
        for place in [self.folder, *(path for path in self.folder.rglob("*") if path.is_dir())]:
            if place != self.folder and place.name not in self._lasting(place.parent, surviving):
                continue
            there = target / place.relative_to(self.folder)
            there.mkdir(parents=True, exist_ok=True)
            for name, inode in self._lasting(place, surviving).items():
                if not (place / name).is_dir():
                    (there / name).write_bytes(self.content.get(inode, b""))

    def _lasting(self, folder: Path, surviving: str) -> dict[str, int]:
        now, durable = _names_in(folder), self.names.get(str(folder), {})
        there = {name: inode for name, inode in durable.items() if not re.fullmatch(surviving, name)}
        return there | {name: inode for name, inode in now.items() if re.fullmatch(surviving, name)}

    def _note_names(self, folder: Path) -> None:
        self.names[str(folder)] = _names_in(folder)


@contextmanager
def failing(disk: Disk) -> Iterator[Disk]:
    """While this is open, all files under the disk's folder pass through it."""
    real_open, real_io, opened_names = os.open, io.open, dict[int, str]()

    def open_descriptor(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if disk.watches(path):
            if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                disk.reached("create" if flags & os.O_CREAT else "open", path)
            elif disk.crashed:
                raise Crash
        descriptor = real_open(path, flags, *rest, **more)
        if disk.watches(path):
            opened_names[descriptor] = str(Path(path).absolute())
            if flags & os.O_CREAT:
                disk.hold(path)
        else:
            opened_names.pop(descriptor, None)
        return descriptor

    def open_file(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if not disk.watches(file):
            return real_io(file, mode, *rest, **more)
        if set(mode) & set("wxa+"):
            disk.reached("create", file)
        elif disk.error == errno.EMFILE:
            disk.reached("read", file)
        elif disk.crashed:
            raise Crash
        opened = real_io(file, mode, *rest, **more)
        opened_names[opened.fileno()] = str(Path(file).absolute())
        if set(mode) & set("wxa+"):
            disk.hold(file)
        return _Writer(disk, opened, file) if set(mode) & set("wxa+") else opened

    def flush(descriptor: int) -> None:
        # Nothing is brought onto a real disk, which would take most of the time.
        path = opened_names.get(descriptor)
        if path is None:
            return
        disk.reached("flush", path)
        disk.flushed(Path(path))

    def watched(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, **more: Any) -> Any:
            if disk.watches(path):
                disk.reached(what, path)
            return real(path, *rest, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", open_descriptor)
        patch.setattr(io, "open", open_file)
        patch.setattr(builtins, "open", open_file)
        patch.setattr(os, "fsync", flush)
        for name in ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "chmod", "link", "truncate"):
            patch.setattr(os, name, watched(name, getattr(os, name)))
        try:
            yield disk
        finally:
            patch.undo()


def _names_in(folder: Path) -> dict[str, int]:
    return {path.name: path.lstat().st_ino for path in folder.iterdir()}


class _Writer:
    """A file whose every write may fail."""

    def __init__(self, disk: Disk, file: Any, path: Any) -> None:
        self._disk = disk
        self._file = file
        self._path = path

    def write(self, content: Any) -> int:
        self._disk.reached("write", self._path)
        written = self._file.write(content)
        self._file.flush()  # what was written before a crash is in the file
        return int(written)

    def truncate(self, *given: Any) -> Any:
        self._disk.reached("truncate", self._path)
        return self._file.truncate(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)


def copied(source: Path, target: Path) -> Path:
    """A fresh copy of a folder."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target, symlinks=True))
