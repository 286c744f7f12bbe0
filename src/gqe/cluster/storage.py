"""Where a job on a cluster keeps its files: a folder that all nodes share, or an address of fsspec.

Files are whole or not there: they are written beside their place and renamed, or sent as a whole. From an
address every node copies what it reads into a folder of its own, once, and maps it there.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from gqe.errors import DamagedError, InputError, StorageError
from gqe.formats.addresses import explaining_address, is_address, open_filesystem
from gqe.formats.atomic import DISK_ERRORS, flush, flush_folder, replacing
from gqe.index.files import FileRecord, record_of
from gqe.index.manifest import BUILDING


class Storage(ABC):
    """Files by name; small enough to be sent to other processes."""

    place: str

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The content of a small file; None if it is not there."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Replace a small file."""

    @abstractmethod
    def put(self, name: str, make: Callable[[Path], FileRecord]) -> FileRecord:
        """Have a file made in a temporary place on this node, and keep it under its name."""

    @abstractmethod
    def bring(self, files: Mapping[str, FileRecord]) -> Path:
        """A folder of this node that holds these files; copies are compared with their checksums."""

    @abstractmethod
    def holds(self, name: str, record: FileRecord) -> bool:
        """Whether a file is what was written, as far as that can be told without copying it."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of a file; None if it is not there."""

    @abstractmethod
    def names(self) -> list[str]:
        """All files, those in folders left out."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def clean(self) -> None:
        """Remove the copies that this node has made."""


class SharedFolder(Storage):
    """A folder that every node sees under the same name.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = str(folder)

    def read(self, name: str) -> bytes | None:
        """See `Storage`."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """See `Storage`."""
        with replacing(self.folder / name, follow=False) as beside:
            beside.write_bytes(content)

    def put(self, name: str, make: Callable[[Path], FileRecord]) -> FileRecord:
        """See `Storage`."""
        self._check()
        target = self.folder / name
        target.parent.mkdir(exist_ok=True)
        # So named the next run sweeps it away, should this one be killed.
        beside = target.with_name(f".building.{secrets.token_hex(8)}{target.suffix}")
        try:
            record = make(beside)
            flush(beside)
            beside.replace(target)
            flush_folder(target.parent)
        finally:
            beside.unlink(missing_ok=True)
        return record

    def bring(self, files: Mapping[str, FileRecord]) -> Path:
        """See `Storage`."""
        self._check()
        return self.folder

    def holds(self, name: str, record: FileRecord) -> bool:
        """See `Storage`."""
        return self.size(name) == record.bytes and record_of(self.folder / name) == record

    def size(self, name: str) -> int | None:
        """See `Storage`."""
        path = self.folder / name
        return path.stat().st_size if path.is_file() else None

    def names(self) -> list[str]:
        """See `Storage`."""
        return [path.name for path in self.folder.iterdir() if path.is_file()]

    def remove(self, name: str) -> None:
        """See `Storage`."""
        (self.folder / name).unlink(missing_ok=True)

    def clean(self) -> None:
        """See `Storage`; there are none."""

    def _check(self) -> None:
        if not (self.folder / BUILDING).is_file():
            raise InputError(
                f"{self.folder}: node {socket.gethostname()} does not see it; build in a folder that all"
                " nodes share, or at an fsspec address"
            )


class RemoteFolder(Storage):
    """A folder at an address of fsspec.

    Args:
        address: such as "s3://bucket/my-index".
        job: names the copies that nodes make; another job makes its own.
    """

    def __init__(self, address: str, job: str = "") -> None:
        self.place = address.rstrip("/")
        self.job = job

    def read(self, name: str) -> bytes | None:
        """See `Storage`."""
        system, path = self._at(name)
        try:
            with explaining_address(self.place):
                return bytes(system.cat_file(path)) if system.exists(path) else None
        finally:
            system.invalidate_cache()

    def write(self, name: str, content: bytes) -> None:
        """See `Storage`."""
        system, path = self._at(name)
        with explaining_address(self.place):
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            system.pipe_file(path, content)

    def put(self, name: str, make: Callable[[Path], FileRecord]) -> FileRecord:
        """See `Storage`."""
        copy = self._copies() / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        beside = copy.with_name(f".{secrets.token_hex(8)}{copy.suffix}")
        system, path = self._at(name)
        try:
            record = make(beside)
            with explaining_address(self.place):
                system.makedirs(path.rpartition("/")[0], exist_ok=True)
                system.put_file(str(beside), path)
            beside.replace(copy)
        finally:
            beside.unlink(missing_ok=True)
        return record

    def bring(self, files: Mapping[str, FileRecord]) -> Path:
        """See `Storage`."""
        folder = self._copies()
        for name, record in files.items():
            copy = folder / name
            if copy.is_file():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            beside = copy.with_name(f".{secrets.token_hex(8)}{copy.suffix}")
            try:
                download(self.place, name, beside, record.bytes)
                if record_of(beside) != record:
                    raise DamagedError(f"{self.place}/{name}: arrived damaged; build the index again")
                beside.replace(copy)
            finally:
                beside.unlink(missing_ok=True)
        return folder

    def holds(self, name: str, record: FileRecord) -> bool:
        """See `Storage`; nodes compare checksums when they copy it."""
        return self.size(name) == record.bytes

    def size(self, name: str) -> int | None:
        """See `Storage`."""
        system, path = self._at(name)
        system.invalidate_cache()
        with explaining_address(self.place):
            return int(system.size(path)) if system.exists(path) else None

    def names(self) -> list[str]:
        """See `Storage`."""
        system, path = self._at("")
        system.invalidate_cache()
        with explaining_address(self.place):
            if not system.exists(path):
                return []
            found = system.ls(path, detail=True)
        return [str(info["name"]).rpartition("/")[2] for info in found if info["type"] == "file"]

    def remove(self, name: str) -> None:
        """See `Storage`."""
        system, path = self._at(name)
        with explaining_address(self.place):
            if system.exists(path):
                system.rm_file(path)

    def clean(self) -> None:
        """See `Storage`."""
        shutil.rmtree(self._copies(), ignore_errors=True)

    def _at(self, name: str) -> tuple[Any, str]:
        system, path = open_filesystem(self.place)
        return system, f"{path}/{name}" if name else path

    def _copies(self) -> Path:
        own = hashlib.blake2b(f"{self.place} {self.job}".encode(), digest_size=8).hexdigest()
        folder = Path(tempfile.gettempdir()) / f"gqe-copies-{own}"
        folder.mkdir(mode=0o700, exist_ok=True)
        # Everybody may write into the folder above; what another user has put there is not trusted.
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise InputError(f"{folder}: belongs to another user; set TMPDIR to a folder of your own")
        return folder


def open_storage(place: str | os.PathLike[str], job: str = "") -> Storage:
    """The storage at a folder or an address."""
    return RemoteFolder(str(place), job) if is_address(place) else SharedFolder(Path(place).absolute())


def download(address: str, name: str, target: Path, most: int) -> None:
    """Copy a file to this machine, and stop where more arrives than there may be, whatever size was told.

    Args:
        address: of a folder.
        name: of a file in it.
        target: where to write it.
        most: bytes that are taken.
    """

    def check(_: int | None, arrived: int, **__: Any) -> None:
        if arrived > most:
            raise DamagedError(f"{address}/{name}: arrived damaged, it does not end; fetch it again")

    system, inside = open_filesystem(address)
    path = f"{inside}/{name}"
    callback = import_module("fsspec.callbacks").Callback(hooks={"check": check})
    with explaining_address(f"{address}/{name}"):
        check(None, system.size(path) or 0)
        try:
            system.get_file(path, str(target), callback=callback)
        except OSError as error:
            if error.errno in DISK_ERRORS or error.filename == str(target):  # of this machine
                raise StorageError.of(error, target, "written") from error
            raise
