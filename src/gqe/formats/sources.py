"""Vectors read some rows at a time from a file, from all files of a folder, or from an address.

A source is small: it can be sent to other processes, each of which opens the files that it reads.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats.addresses import is_address, open_filesystem, wrap_address_errors
from gqe.formats.checks import Array
from gqe.formats.numpy_files import read_header
from gqe.formats.vectors import READABLE_ENDINGS, read_vectors


class VectorSource:
    """A table of vectors (n, d) in one or several files, to be sliced like an array.

    Args:
        files: names or addresses, in the order of their rows.
        key: which array of files of several.

    Attributes:
        shape: (n, d).
        dtype: of the first file.
        identity: name, size and time of each file; they differ when the content does.
    """

    ndim = 2

    def __init__(self, files: list[str], key: str | None = None) -> None:
        self.files = files
        self.key = key
        self._open: dict[int, Any] = {}
        parts = [self._part(number) for number in range(len(files))]
        dimensions = [int(part.shape[1]) for part in parts]
        for name, dimension in zip(files, dimensions, strict=True):
            if dimension != dimensions[0]:
                raise InputError(
                    f"{name}: vectors of dimension {dimension}, those of {files[0]} have {dimensions[0]}"
                )
        self._starts = np.concatenate([[0], np.cumsum([part.shape[0] for part in parts])]).tolist()
        self.shape = (int(self._starts[-1]), dimensions[0])
        self.dtype: np.dtype[Any] = parts[0].dtype
        self.identity = [_identity(name) for name in files]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        """(stop - start, d) consecutive rows."""
        start, stop, step = rows.indices(len(self))
        assert step == 1
        stop = max(start, stop)
        if len(self.files) == 1:
            return np.asarray(self._part(0)[start:stop])
        found = []
        for number in range(max(0, bisect_right(self._starts, start) - 1), len(self.files)):
            first, end = self._starts[number], self._starts[number + 1]
            if first >= stop:
                break
            if end > start:
                found.append(self._part(number)[max(start - first, 0) : min(stop, end) - first])
        return np.concatenate(found) if found else np.empty((0, self.shape[1]), self.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}}

    def _part(self, number: int) -> Any:
        if number not in self._open:
            name = self.files[number]
            read = _read_remote if is_address(name) else read_vectors
            self._open[number] = read(name, key=self.key)
        return self._open[number]


def open_source(place: str | os.PathLike[str], *, key: str | None = None) -> VectorSource:
    """Vectors from a file, from the files of a folder in the order of their names, or from an address.

    Of an address .npy files are read some rows at a time; files of other kinds are copied to this machine.

    Args:
        place: file, folder, or an address such as "s3://bucket/vectors".
        key: which array of files of several.

    Example:
        >>> from gqe.formats import write_vectors
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_vectors(folder / "a.npy", np.zeros((3, 2), np.float32))
        >>> write_vectors(folder / "b.npy", np.ones((3, 2), np.float32))
        >>> open_source(folder)[2:4]
        array([[0., 0.],
               [1., 1.]], dtype=float32)
    """
    if is_address(place):
        address = str(place)
        system, name = open_filesystem(address)
        with wrap_address_errors(address):
            names = [name]
            if system.isdir(name):
                names = _list_vector_files(system.ls(name, detail=False), address)
            return VectorSource([system.unstrip_protocol(file) for file in names], key)
    folder = Path(place)
    if folder.is_dir():
        return VectorSource(_list_vector_files([str(path) for path in folder.iterdir()], place), key)
    return VectorSource([str(place)], key)


def _list_vector_files(names: list[str], folder: str | os.PathLike[str]) -> list[str]:
    plain = [name for name in names if not name.rpartition("/")[2].startswith(".")]
    found = sorted(name for name in plain if Path(name).suffix.lower() in READABLE_ENDINGS)
    if not found:
        raise InputError(f"{folder}: no file of vectors in it; they end in {', '.join(READABLE_ENDINGS)}")
    return found


def _read_remote(address: str, *, key: str | None) -> Any:
    system, name = open_filesystem(address)
    with wrap_address_errors(address):
        if name.lower().endswith(".npy"):
            return _RemoteArray(address, system, name)
        folder = tempfile.TemporaryDirectory(prefix="gqe-")
        copy = Path(folder.name) / Path(name).name
        system.get_file(name, str(copy))
    # Where it is mapped it stays readable without its name.
    with folder:
        return read_vectors(copy, key=key)


class _RemoteArray:
    """Rows of a .npy file at an address."""

    def __init__(self, address: str, system: Any, name: str) -> None:
        self.address, self._system, self._name = address, system, name
        with system.open(name, "rb") as stream:
            header = read_header(address, stream)
        if len(header.shape) != 2 or header.fortran or header.dtype.kind not in "fiu":
            raise InputError(f"{address}: holds no table of numbers (n, d) in the order of its rows")
        self.shape, self.dtype, self._offset = header.shape, header.dtype, header.length

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        row_bytes = self.dtype.itemsize * self.shape[1]
        with wrap_address_errors(self.address), self._system.open(self._name, "rb") as stream:
            stream.seek(self._offset + start * row_bytes)
            content = stream.read((stop - start) * row_bytes)
        if len(content) != (stop - start) * row_bytes:
            raise InputError(f"{self.address}: ends early; write it again")
        return np.frombuffer(content, self.dtype).reshape(stop - start, self.shape[1])


def _identity(name: str) -> list[str]:
    if not is_address(name):
        about = Path(name).stat()
        return [str(Path(name).resolve()), str(about.st_size), str(about.st_mtime_ns)]
    system, inside = open_filesystem(name)
    info = system.info(inside)
    times = [str(info[field]) for field in ("mtime", "LastModified", "updated", "ETag") if field in info]
    return [name, str(info.get("size")), *times]
