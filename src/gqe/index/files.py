"""The files of an index: written once, never changed, named by one manifest that is replaced in one step.

A change writes new files beside the old ones and then swaps the manifest. Whoever has the old files open goes
on reading them; a process that dies before the swap has changed nothing. What it leaves is noted, see
`gqe.index.drafts`, and removed by the next writer.
"""

from __future__ import annotations

import errno
import hashlib
import io
import math
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gqe.errors import DamagedError, InputError, StorageError
from gqe.formats.addresses import is_address
from gqe.redaction import redact, secrets_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
_CHUNK = 32 << 20
# Bytes of a file that one thread looks at, see `Checksum`.
_PIECE = 1 << 20


class FileRecord(NamedTuple):
    """What the manifest knows of a file."""

    bytes: int
    checksum: str


class Checksum:
    """Of a file's content: the checksum of the checksums of its pieces of 1 MiB.

    A GPU fills a file faster than one thread can look it over; pieces are looked at side by side.
    """

    def __init__(self) -> None:
        self._whole = hashlib.blake2b(digest_size=16)
        self._piece = hashlib.blake2b(digest_size=16)
        self._room = _PIECE  # bytes that still belong to the last piece

    def update(self, content: bytes | memoryview) -> None:
        """Go on with more of the content."""
        view = memoryview(content)
        pieces, shares, at = [self._piece], list[memoryview](), 0
        while len(view) - at > self._room:
            shares.append(view[at : at + self._room])
            at, self._room = at + self._room, _PIECE
            pieces.append(hashlib.blake2b(digest_size=16))
        shares.append(view[at:])
        self._room -= len(shares[-1])
        if len(pieces) == 1:
            self._piece.update(view)
            return
        with ThreadPoolExecutor(min(len(pieces), os.cpu_count() or 1)) as threads:
            list(threads.map(lambda piece, share: piece.update(share), pieces, shares))
        *full, self._piece = pieces
        for piece in full:
            self._whole.update(piece.digest())

    def hexdigest(self) -> str:
        """Of the content so far."""
        whole = self._whole.copy()
        whole.update(self._piece.digest())
        return whole.hexdigest()


class ArrayWriter:
    """Writes rows one after another into a .npy file whose length is known from the start.

    Args:
        path: the file; no one may be reading it. It must not be there, unless rows are done.
        dtype: of a row, or of its numbers.
        shape: of the whole array.
        done: rows already there from an interrupted run; what lies behind them is cut off.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], done: int = 0) -> None:
        self.path = path
        self.dtype = dtype
        self.rows = shape[0]
        self.done = done
        header = _header(dtype, shape)
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        self._digest = Checksum()
        if done == 0:
            self._file = path.open("x+b")
            self._write(header)
            return
        self._file = path.open("r+b")
        self._file.truncate(len(header) + done * row_bytes)
        for chunk in iter(lambda: self._file.read(_CHUNK), b""):
            self._digest.update(chunk)

    def append(self, block: np.ndarray[Any, Any]) -> None:
        """Write the next rows."""
        block = np.ascontiguousarray(block, dtype=self.dtype)
        if block.size:
            self._write(block.reshape(-1).view(np.uint8).data)
        self.done += len(block)

    def flush(self) -> None:
        """Bring everything written so far onto the disk; another thread may go on writing."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def record(self) -> FileRecord:
        """Size and checksum of the file, which others may read from here on; all rows must be written."""
        assert self.done == self.rows, f"{self.path}: {self.done} of {self.rows} rows written"
        self._file.flush()
        return FileRecord(self._file.tell(), self._digest.hexdigest())

    def checksum(self) -> str:
        """Of what has been written so far."""
        return self._digest.hexdigest()

    def close(self) -> FileRecord:
        """Finish the file and bring it onto the disk."""
        record = self.record()
        self.flush()
        self._file.close()
        return record

    def abandon(self) -> None:
        """Close without finishing."""
        self._file.close()

    def _write(self, content: bytes | memoryview) -> None:
        self._file.write(content)
        self._digest.update(content)


def write_array(path: Path, array: np.ndarray[Any, Any]) -> FileRecord:
    """Write a whole array as one .npy file."""
    writer = ArrayWriter(path, array.dtype, array.shape)
    try:
        writer.append(array)
        return writer.close()
    finally:
        writer.abandon()


class MappedArray(NamedTuple):
    """An array in a file.

    Attributes:
        array: read-only.
        path: the file.
        memory: its mapping; None for an empty array.
        bytes: how long the file must be.
    """

    array: np.ndarray[Any, Any]
    path: Path
    memory: mmap.mmap | None
    bytes: int

    def check(self) -> None:
        """Refuse a file that has been cut off: reading behind its end would end the process."""
        if self.memory is not None and self.memory.size() < self.bytes:
            raise _cut(self.path, self.memory.size(), self.bytes)


def map_array(path: Path, record: FileRecord, dtype: np.dtype[Any], shape: tuple[int, ...]) -> MappedArray:
    """Map the array at the end of a file; only its size is checked, so this takes no time."""
    try:
        return _map(path, record, dtype, shape)
    except OSError as error:
        if error.errno != errno.EMFILE or not _allow_more_open_files():
            raise
        return _map(path, record, dtype, shape)


def _map(path: Path, record: FileRecord, dtype: np.dtype[Any], shape: tuple[int, ...]) -> MappedArray:
    needed = dtype.itemsize * math.prod(shape)
    with _open_for_reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != record.bytes or needed > size:
            raise _cut(path, size, record.bytes)
        if needed == 0:
            return MappedArray(np.empty(shape, dtype), path, None, 0)
        memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    array = np.frombuffer(memory, np.uint8, offset=size - needed)
    return MappedArray(array.view(dtype).reshape(shape), path, memory, size)


def _cut(path: Path, size: int, expected: int) -> DamagedError:
    return DamagedError(
        f"{path}: has {size} bytes instead of {expected}; restore it or build the index again"
    )


def _open_for_reading(path: Path) -> io.BufferedReader:
    """A file for reading; a pipe would never answer, and some devices never end."""
    if not path.is_file() and path.exists():
        raise DamagedError(f"{path}: is not a regular file; restore it or build the index again")
    return path.open("rb")


def _allow_more_open_files() -> bool:
    """An index of many shards maps more files than a process may have open unless it asks for more."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return False
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now == most:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return True


def record_of(path: Path) -> FileRecord:
    """Size and checksum of a file, read through once."""
    digest, size = Checksum(), 0
    with _open_for_reading(path) as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            digest.update(chunk)
            size += len(chunk)
    return FileRecord(size, digest.hexdigest())


def check_file(path: Path, record: FileRecord) -> None:
    """Refuse a file that is not what was written, before it is copied into another.

    It is read through once in a process, and again if anybody has touched it.
    """
    try:
        about = path.stat()
        unchanged = _is_sound(
            path, record, (about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        )
    except FileNotFoundError as error:
        raise DamagedError(f"{path}: is missing; restore it or build the index again") from error
    if not unchanged:
        raise DamagedError(
            f"{path}: damaged, its checksum does not match; nothing was changed, restore it from a copy"
        )


@lru_cache(maxsize=4096)
def _is_sound(path: Path, record: FileRecord, _: tuple[int, ...]) -> bool:
    return record_of(path) == record


def create(path: Path) -> None:
    """Make an empty file where there is none, for a library that would overwrite one."""
    path.open("xb").close()


@contextmanager
def writer_lock(folder: Path) -> Iterator[None]:
    """Hold the index's lock; the system frees it when the process ends, however it ends."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise StorageError.of(error, folder, "written") from error
    try:
        try:
            _lock_exclusively(lock)
        except BlockingIOError as error:
            raise StorageError(
                f"{folder}: another process or object is changing this index; try again when it has finished",
                retryable=True,
            ) from error
        except OSError as error:
            raise StorageError.of(error, folder / LOCK, "locked") from error
        yield
    finally:
        os.close(lock)


def _lock_exclusively(descriptor: int) -> None:
    """Lock an open file; raises BlockingIOError where another process or object holds it."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    locking: Any = vars(msvcrt)
    try:
        locking["locking"](descriptor, locking["LK_NBLCK"], 1)
    except PermissionError as error:  # how Windows says that it is held
        raise BlockingIOError(*error.args) from error


@contextmanager
def wrap_os_errors(folder: Path, verb: str = "written") -> Iterator[None]:
    """Turn what the system says about files into one line that names the file or the index."""
    try:
        yield
    except OSError as error:
        raise StorageError.of(error, folder, verb) from error


def check_folder(path: str | os.PathLike[str]) -> Path:
    """The folder of an index; refuses what cannot name one."""
    try:
        folder = Path(path)
    except TypeError:
        raise InputError(f"path: expected the name of a folder, got {path!r}") from None
    if is_address(path):
        shown = redact(path, secrets_of(str(path)))
        raise InputError(f"{shown}: is an address; bring it here with `gqe index fetch ADDRESS FOLDER`")
    if "\0" in str(folder) or not os.fspath(path):
        raise InputError(f"path: {os.fspath(path)!r} is no name of a folder")
    return folder


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    content = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(content, described)
    return content.getvalue()
