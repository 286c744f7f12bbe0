"""MATLAB files, read only: level 5 (-v6, -v7), and level 7.3 as the HDF5 files they are.

Level 5 is parsed here because libraries trust the numbers in such a file: a wrong one in any of 280
bytes ends the whole process, and a length takes the memory it names. Here nothing is allocated that the file
does not hold. ("MAT-File Format", The MathWorks, describes the layout.)
"""

from __future__ import annotations

import math
import mmap
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gqe.errors import InputError
from gqe.formats.checks import (
    Array,
    as_table,
    check_growth,
    choose_key,
    is_table,
    optional_module,
    wrap_parse_errors,
)
from gqe.formats.hdf5 import list_datasets, read_dataset

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
NUMBERS = ("double", "single", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_KINDS = dict(enumerate(("cell", "struct", "object", "char", "sparse", *NUMBERS), 1))
_TYPES = dict(zip(NUMBERS, ("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), strict=True))
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_MATRIX, _COMPRESSED = 14, 15
_COMPLEX, _LOGICAL = 0x800, 0x200
_MAX_DEPTH = 20
_HEADER = 128
# Enough for the flags, sizes and name of a packed variable.
_BEGINNING = 4096


def read_matlab(path: Path, key: str | None) -> Array:
    """Read a matrix as MATLAB shows it: what is d x n there is (d, n) here, for the caller to transpose."""
    with wrap_parse_errors(path, ".mat file"):
        if not is_version_73(path):
            with open_level_5(path) as file:
                usable = [name for name, variable in file.variables.items() if variable.kind in NUMBERS]
                chosen = choose_key(path, key, usable, list(file.variables))
                return as_table(file.numbers(chosen), f"{path} ({chosen!r})")
        with _open_version_73(path) as found:
            usable = [name for name, item in found.items() if _is_matrix(name, item)]
            everything = [name for name in found if not name.startswith("#")]
            chosen = choose_key(path, key, usable, everything)
            # MATLAB stores columns first, so HDF5 sees every matrix transposed.
            return as_table(read_dataset(path, found[chosen]).T, f"{path} ({chosen!r})")


def matrix_names(path: Path) -> list[str]:
    """Names of the matrices of numbers in a file of either level."""
    with wrap_parse_errors(path, ".mat file"):
        if not is_version_73(path):
            with open_level_5(path) as file:
                return [name for name, v in file.variables.items() if v.kind in NUMBERS and len(v.shape) == 2]
        with _open_version_73(path) as found:
            return [name for name, item in found.items() if _is_matrix(name, item)]


def is_version_73(path: Path) -> bool:
    """Whether a .mat file is HDF5 inside, after MATLAB's own 512 bytes or (other programs) from the start."""
    with path.open("rb") as stream:
        start = stream.read(520)
    return start[512:] == _HDF5_SIGNATURE or start[:8] == _HDF5_SIGNATURE


@contextmanager
def _open_version_73(path: Path) -> Iterator[dict[str, Any]]:
    with optional_module("h5py", "a MATLAB 7.3 file").File(path, "r") as file:
        yield list_datasets(path, file)


def _is_matrix(name: str, item: Any) -> bool:
    """Variables are what lies at the top; deeper down are the parts of cells and structures."""
    kind = item.attrs.get("MATLAB_class", b"double")
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    return "/" not in name and kind in NUMBERS and item.shape is not None and is_table(item.shape, item.dtype)


class Variable(NamedTuple):
    """A variable of a file.

    Attributes:
        kind: "double", "char", "cell"..., "logical", or "other".
        shape: As MATLAB shows it.
        content: Its bytes in the file.
        compressed: Whether these are compressed.
    """

    kind: str
    shape: tuple[int, ...]
    content: memoryview
    compressed: bool


class Level5File:
    """An open file of level 5 and its variables by name."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self._path, self._data = path, data
        mark = bytes(data[126:128])
        if mark not in (b"IM", b"MI"):
            raise InputError(f"{path}: is not a MATLAB file of version 5 or later; save it with -v7")
        self._order = "<" if mark == b"IM" else ">"
        self.variables = self._list_variables()

    def numbers(self, name: str) -> Array:
        """A variable of real numbers, as MATLAB shows it."""
        value = self._matrix(self._content(name), squeeze=False)
        if not isinstance(value, np.ndarray):
            raise ValueError(f"{name!r} does not hold numbers")
        return value

    def value(self, name: str) -> Any:
        """Structures as dictionaries, several of them and cells as lists, text as str, numbers as arrays."""
        return self._matrix(self._content(name))

    def _list_variables(self) -> dict[str, Variable]:
        found, at = {}, _HEADER
        while at < len(self._data):
            kind, content, at = self._element(self._data, at)
            start = content[:_BEGINNING]
            if kind == _COMPRESSED:
                start = memoryview(zlib.decompressobj().decompress(content, _BEGINNING))[8:]
            elif kind != _MATRIX:
                raise ValueError(f"it holds an element of type {kind} where a variable is expected")
            if len(start):
                name, what, _, shape, _ = self._beginning(start)
                found[name] = Variable(what, shape, content, kind == _COMPRESSED)
        return found

    def _content(self, name: str) -> memoryview:
        variable = self.variables[name]
        return self._decompress(variable.content) if variable.compressed else variable.content

    def _decompress(self, content: memoryview) -> memoryview:
        machine = zlib.decompressobj()
        kind, size = struct.unpack(f"{self._order}II", machine.decompress(content, 8))
        check_growth(self._path, size, len(content))
        data = machine.decompress(machine.unconsumed_tail, size) if size else b""
        if kind != _MATRIX or len(data) != size:
            raise ValueError("a compressed variable is broken")
        # The checksum stands behind the last byte.
        machine.decompress(machine.unconsumed_tail, 1)
        if not machine.eof:
            raise ValueError("a compressed variable ends too early")
        return memoryview(data)

    def _element(self, data: memoryview, at: int) -> tuple[int, memoryview, int]:
        """Type and bytes of an element, and where the next one begins."""
        kind, size = struct.unpack_from(f"{self._order}II", data, at)
        if kind >> 16:  # up to four bytes lie in the place of their length
            kind, size, begin = kind & 0xFFFF, kind >> 16, at + 4
            if size > 4:
                raise ValueError("it holds a short element of more than four bytes")
            after = at + 8
        else:
            begin = at + 8
            after = begin + size + (0 if kind == _COMPRESSED else -size % 8)
        if begin + size > len(data):
            raise ValueError("it ends too early")
        return kind, data[begin : begin + size], after

    def _beginning(self, data: memoryview) -> tuple[str, str, int, tuple[int, ...], int]:
        """Name, kind, flags and shape of a variable, and where its values begin."""
        kind, flags_bytes, at = self._element(data, 0)
        if kind != 6 or len(flags_bytes) != 8:
            raise ValueError("the flags of a variable are broken")
        flags = struct.unpack(f"{self._order}II", flags_bytes)[0]
        kind, sizes, at = self._element(data, at)
        shape = tuple(int(length) for length in np.frombuffer(sizes, f"{self._order}i4"))
        if kind != 5 or not 2 <= len(shape) <= 32 or min(shape) < 0:
            raise ValueError("the size of a variable is broken")
        _, name, at = self._element(data, at)
        what = "logical" if flags & _LOGICAL else _KINDS.get(flags & 0xFF, "other")
        return bytes(name).decode("latin-1"), what, flags, shape, at

    def _matrix(self, data: memoryview, depth: int = 0, *, squeeze: bool = True) -> Any:
        if not len(data):
            return np.empty((0, 0))
        if depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
        _, what, flags, shape, at = self._beginning(data)
        if what == "struct":
            return self._structures(data, at, shape, depth)
        if what == "cell":
            return [value for value, _ in self._matrices(data, at, math.prod(shape), depth)]
        if what == "char":
            return self._text(data, at, shape)
        if what not in _TYPES and what != "logical":
            raise ValueError(f"it holds a {what}, only numbers, text, cells and structures are read")
        if flags & _COMPLEX:
            raise ValueError("it holds complex values, not real numbers")
        kind, content, _ = self._element(data, at)
        if kind not in _STORED:
            raise ValueError(f"it holds numbers of type {kind}")
        values: Array = np.frombuffer(content, f"{self._order}{_STORED[kind]}").astype(_TYPES.get(what, "?"))
        if values.size != math.prod(shape):
            raise ValueError(f"a variable of the size {shape} holds {values.size} values")
        values = values.reshape(shape, order="F")
        return values.squeeze() if squeeze else values

    def _matrices(self, data: memoryview, at: int, count: int, depth: int) -> Iterator[tuple[Any, int]]:
        """So many variables within another, each with the place behind it."""
        for _ in range(count):
            kind, content, at = self._element(data, at)
            if kind != _MATRIX:
                raise ValueError(f"it holds an element of type {kind} where a variable is expected")
            yield self._matrix(content, depth + 1), at

    def _structures(self, data: memoryview, at: int, shape: tuple[int, ...], depth: int) -> Any:
        _, width_bytes, at = self._element(data, at)
        (width,) = struct.unpack(f"{self._order}i", width_bytes)
        _, packed, at = self._element(data, at)
        if width < 1:
            raise ValueError("the names of a structure are broken")
        texts = (bytes(packed[start : start + width]) for start in range(0, len(packed), width))
        names = [text.partition(b"\0")[0].decode("latin-1") for text in texts]
        if not names:
            return []
        found = []
        for _ in range(math.prod(shape)):
            entry = {}
            for name in names:
                ((entry[name], at),) = self._matrices(data, at, 1, depth)
            found.append(entry)
        return found[0] if len(found) == 1 else found

    def _text(self, data: memoryview, at: int, shape: tuple[int, ...]) -> str | list[str]:
        if math.prod(shape) == 0:
            return ""
        kind, content, _ = self._element(data, at)
        if kind not in _TEXTS:
            raise ValueError(f"it holds text of type {kind}")
        coding = _TEXTS[kind] + (("-le" if self._order == "<" else "-be") if kind in (4, 17, 18) else "")
        text = bytes(content).decode(coding)
        rows = shape[0]
        if rows == 1:
            return text
        return [text[row::rows].rstrip(" ") for row in range(min(rows, len(text)))]


@contextmanager
def open_level_5(path: Path) -> Iterator[Level5File]:
    """Open a file; whatever is wrong with it becomes one InputError."""
    with wrap_parse_errors(path, ".mat file"), path.open("rb") as stream:
        # Closed with the last part of it that is still looked at.
        yield Level5File(path, memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)))
