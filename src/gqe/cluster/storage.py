"""Where a job on a cluster keeps its files: a folder that all nodes share, or an address of fsspec.

Files are whole or not there. A task writes one under a name that its content decides; the driver, which has
the task's record of it, gives it its own. So whatever a node still writes that was given up, no file that is
finished changes. From an address every node copies what it reads into a folder of its own, once, and maps it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from gqe.errors import DamagedError, InputError, StorageError
from gqe.formats.addresses import is_address, open_filesystem, wrap_address_errors
from gqe.formats.atomic import DISK_ERRORS, atomic_path, flush, flush_folder
from gqe.index.drafts import read_note, try_remove_leftovers, write_note
from gqe.index.files import FileRecord, check_file, create, record_of, wrap_os_errors, writer_lock
from gqe.index.manifest import BUILDING, MANIFEST, parse_manifest, read_manifest

# A manifest of an index of a hundred thousand shards is not as large.
_MAX_MANIFEST_BYTES = 256 << 20
# Of fsspec. They have no folders, and would make a bucket of a name that was mistyped.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss"})
# How often something is sent or fetched of which only a part has arrived.
_ATTEMPTS = 3
_AGAIN = "run it again: what is finished is kept"


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
        """Make a file on this node and store it, under a temporary name until it is committed."""

    @abstractmethod
    def commit(self, name: str, record: FileRecord) -> None:
        """Give a file that was put its own name; called by the driver."""

    @abstractmethod
    def fetch(self, files: Mapping[str, FileRecord]) -> Path:
        """A folder of this node that holds these files; copies are compared with their checksums."""

    @abstractmethod
    def contains(self, name: str, record: FileRecord) -> bool:
        """Whether a file is what was written, as far as can be checked without copying it."""

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
        """Remove the copies on this node."""


class SharedFolder(Storage):
    """A folder that every node sees under the same name.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = str(folder)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        with atomic_path(self.folder / name, follow=False) as beside:
            beside.write_bytes(content)

    def put(self, name: str, make: Callable[[Path], FileRecord]) -> FileRecord:
        self._check()
        target = self.folder / name
        target.parent.mkdir(exist_ok=True)
        # Under this prefix the next run removes it, should this one be killed.
        with _temporary_name(target, ".building.") as temporary:
            record = make(temporary)
            flush(temporary)
            temporary.replace(self.folder / _pending(name, record))
        return record

    def commit(self, name: str, record: FileRecord) -> None:
        target = self.folder / name
        (self.folder / _pending(name, record)).replace(target)
        flush_folder(target.parent)

    def fetch(self, files: Mapping[str, FileRecord]) -> Path:
        self._check()
        return self.folder

    def contains(self, name: str, record: FileRecord) -> bool:
        return self.size(name) == record.bytes and record_of(self.folder / name) == record

    def size(self, name: str) -> int | None:
        path = self.folder / name
        return path.stat().st_size if path.is_file() else None

    def names(self) -> list[str]:
        return [path.name for path in self.folder.iterdir() if path.is_file()]

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def clean(self) -> None:
        """There are none."""

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
        system, path = self._at(name)
        try:
            with wrap_address_errors(self.place):
                return bytes(system.cat_file(path)) if system.exists(path) else None
        finally:
            system.invalidate_cache()

    def write(self, name: str, content: bytes) -> None:
        self._send(name, len(content), lambda system, path: system.pipe_file(path, content))

    def put(self, name: str, make: Callable[[Path], FileRecord]) -> FileRecord:
        copy = self._copies() / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_name(copy, ".") as temporary:
            record = make(temporary)
            pending = _pending(name, record)
            self._send(pending, record.bytes, lambda system, path: system.put_file(str(temporary), path))
            temporary.replace(copy)
        return record

    def commit(self, name: str, record: FileRecord) -> None:
        system, pending = self._at(_pending(name, record))
        self._send(name, record.bytes, lambda system, path: system.cp_file(pending, path))
        with wrap_address_errors(self.place):
            system.rm_file(pending)

    def fetch(self, files: Mapping[str, FileRecord]) -> Path:
        folder = self._copies()
        for name, record in files.items():
            copy = folder / name
            if not _is_sound(copy, record):
                copy.parent.mkdir(parents=True, exist_ok=True)
                with _temporary_name(copy, ".") as temporary:
                    _download_sound(self.place, name, temporary, record)
                    temporary.replace(copy)
        return folder

    def contains(self, name: str, record: FileRecord) -> bool:
        """Nodes compare checksums when they copy it."""
        return self.size(name) == record.bytes

    def size(self, name: str) -> int | None:
        system, path = self._at(name)
        system.invalidate_cache()
        with wrap_address_errors(self.place):
            return int(system.size(path)) if system.exists(path) else None

    def names(self) -> list[str]:
        system, path = self._at("")
        system.invalidate_cache()
        with wrap_address_errors(self.place):
            if not system.exists(path):
                return []
            found = system.ls(path, detail=True)
        return [str(info["name"]).rpartition("/")[2] for info in found if info["type"] == "file"]

    def remove(self, name: str) -> None:
        system, path = self._at(name)
        with wrap_address_errors(self.place):
            if system.exists(path):
                system.rm_file(path)

    def clean(self) -> None:
        shutil.rmtree(self._copies(), ignore_errors=True)

    def _send(self, name: str, size: int, send: Callable[[Any, str], Any]) -> None:
        """Store something, and once more where less than all of it has arrived."""
        system, path = self._at(name)
        for _ in range(_ATTEMPTS):
            with wrap_address_errors(self.place):
                if not _OBJECT_STORES.intersection(_protocols(system)):
                    system.makedirs(path.rpartition("/")[0], exist_ok=True)
                send(system, path)
            if self.size(name) == size:
                return
        raise StorageError(f"{self.place}/{name}: only a part of it arrives; check the server and {_AGAIN}")

    def _at(self, name: str) -> tuple[Any, str]:
        system, path = open_filesystem(self.place)
        return system, f"{path}/{name}" if name else path

    def _copies(self) -> Path:
        own = hashlib.blake2b(f"{self.place} {self.job}".encode(), digest_size=8).hexdigest()
        folder = Path(tempfile.gettempdir()) / f"gqe-copies-{own}"
        folder.mkdir(mode=0o700, exist_ok=True)
        # Everybody may write into the folder above; what another user has put there is not trusted.
        user = os.getuid() if hasattr(os, "getuid") else folder.stat().st_uid  # Windows has no numbers
        if folder.is_symlink() or folder.stat().st_uid != user:
            raise InputError(f"{folder}: belongs to another user; set TMPDIR to a folder of your own")
        return folder


@contextmanager
def _temporary_name(target: Path, prefix: str) -> Iterator[Path]:
    """A name beside a file, under which it is written first; what is left there is removed."""
    path = target.with_name(f"{prefix}{secrets.token_hex(8)}{target.suffix}")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _pending(name: str, record: FileRecord) -> str:
    """The name of a file until it is committed; the next run knows it as temporary."""
    own = hashlib.blake2b(f"{name} {record.checksum}".encode(), digest_size=8).hexdigest()
    path = PurePosixPath(name)
    return str(path.with_name(f".building.{own}{path.suffix}"))


def _protocols(system: Any) -> tuple[str, ...]:
    protocol = system.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _is_sound(copy: Path, record: FileRecord) -> bool:
    """Whether there is a copy of what was written; each is read through once in a process."""
    try:
        check_file(copy, record)
    except (InputError, OSError):
        return False
    return True


def _download_sound(address: str, name: str, target: Path, record: FileRecord) -> None:
    """`download`, and once more where something else arrives."""
    for _ in range(_ATTEMPTS):
        download(address, name, target, record.bytes)
        if record_of(target) == record:
            return
    raise DamagedError(f"{address}/{name}: arrived damaged; fetch it again, or build the index again")


def open_storage(place: str | os.PathLike[str], job: str = "") -> Storage:
    """The storage at a folder or an address."""
    return RemoteFolder(str(place), job) if is_address(place) else SharedFolder(Path(place).absolute())


def download(address: str, name: str, target: Path, most: int) -> None:
    """Copy a file to this machine, and stop where more arrives than there may be, whatever size it has.

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
    with wrap_address_errors(f"{address}/{name}"):
        check(None, system.size(path) or 0)
        try:
            system.get_file(path, str(target), callback=callback)
        except OSError as error:
            if error.errno in DISK_ERRORS or error.filename == str(target):  # of this machine
                raise StorageError.of(error, target, "written") from error
            raise


def fetch_index(
    address: str, folder: str | os.PathLike[str], *, progress: Callable[[int, int, str], None] | None = None
) -> None:
    """Copy an index; files of an earlier fetch that are sound stay.

    An index that is there already is replaced by its newer version, in one step.

    Args:
        address: where the index is, such as "s3://bucket/my-index".
        folder: where it shall be.
        progress: called with files done, files in all, and the file's name.

    Raises:
        InputError: nothing is at the address, or the folder holds something else.
        DamagedError: what is at the address is damaged, or arrives so.
    """
    if not is_address(address):
        raise InputError(f"{address}: is no address; open the folder as it is")
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / MANIFEST
        download(address, MANIFEST, copy, _MAX_MANIFEST_BYTES)
        content = copy.read_bytes()
    files, target = parse_manifest(content, f"{address}/{MANIFEST}").files, Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError.of(error, target, "made") from error
    with writer_lock(target), wrap_os_errors(target):
        missing, token = _begin_fetch(target, files)
        for number, name in enumerate(missing, len(files) - len(missing)):
            if progress is not None:
                progress(number, len(files), name)
            _fetch_file(address, name, files[name], target, token)
        for part in {(target / name).parent for name in files}:
            flush_folder(part)
        with atomic_path(target / MANIFEST, follow=False) as beside:
            beside.write_bytes(content)
        try_remove_leftovers(target)


def _begin_fetch(folder: Path, files: Mapping[str, FileRecord]) -> tuple[list[str], str]:
    """The files that a folder lacks, and the token of temporary files; refuses what must not be replaced."""
    new = not (folder / MANIFEST).exists()
    if new and (folder / BUILDING).exists():
        raise InputError(f"{folder}: holds an interrupted build; fetch into another folder")
    # Files of the present version must not change, since it stays the index until the end.
    present = {} if new else read_manifest(folder).files
    note = read_note(folder)
    own = {*present, *(note.names if note else ())}
    if note is not None:
        for path in folder.iterdir():
            if note.token in path.name and path.name not in present:
                path.unlink()
    missing = []
    for name, record in files.items():
        path = folder / name
        if path.parent.is_symlink():
            raise InputError(f"{path.parent}: is a link; fetch into a new folder")
        if present.get(name, record) != record:
            raise InputError(f"{folder}: holds another index; fetch into a new folder")
        if path.is_file() and record_of(path) == record:
            continue
        if (path.exists() or path.is_symlink()) and name not in own:
            raise InputError(f"{path}: is not of this index; move it, or fetch into a new folder")
        missing.append(name)
    return missing, write_note(folder, {*own, *files}, new=new)


def _fetch_file(address: str, name: str, record: FileRecord, folder: Path, token: str) -> None:
    temporary = folder / f"fetch.{token}.part"
    create(temporary)
    try:
        _download_sound(address, name, temporary, record)
        flush(temporary)
        (folder / name).parent.mkdir(exist_ok=True)
        temporary.replace(folder / name)
    finally:
        temporary.unlink(missing_ok=True)
