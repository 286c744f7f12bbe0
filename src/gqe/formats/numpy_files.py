"""NumPy's own files: one array (.npy) or several by name (.npz)."""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from gqe.errors import InputError
from gqe.formats.checks import (
    Array,
    as_table,
    check_growth,
    choose_key,
    existing_file,
    is_table,
    map_array,
    row_blocks,
    wrap_parse_errors,
)

# NumPy itself refuses longer ones.
_LONGEST_HEADER = 16_384


class NpyHeader(NamedTuple):
    """What a .npy file says of its array."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    length: int  # bytes before the data


def read_npy(path: Path) -> Array:
    """Map the array of a .npy file."""
    with wrap_parse_errors(path, ".npy file"):
        with path.open("rb") as stream:
            header = read_header(path, stream)
        return as_table(_map(path, header), path)


def read_npz(path: Path, key: str | None) -> Array:
    """Map (or, if compressed, read) one array of a .npz file."""
    with wrap_parse_errors(path, ".npz file"), _members(path) as (archive, members):
        headers = {name: _member_header(path, archive, info) for name, info in members.items()}
        usable = [name for name, header in headers.items() if is_table(header.shape, header.dtype)]
        chosen = choose_key(path, key, usable, list(headers))
        return as_table(_load(path, archive, members[chosen], headers[chosen]), f"{path} ({chosen!r})")


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read every array of a .npz file by name, for example a benchmark file.

    Arrays stored without compression (`np.savez`) are mapped and read-only; compressed ones are read whole.
    Arrays of Python objects are refused, because reading them can run code.

    Args:
        path: a .npz file.

    Returns:
        The arrays, of any shape and type, by name.

    Raises:
        InputError: the file is missing, broken, or not a .npz file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "benchmark.npz"
        >>> np.savez(path, queries=np.ones((2, 4)), query_labels=np.array([0, 1]))
        >>> {name: array.shape for name, array in read_arrays(path).items()}
        {'queries': (2, 4), 'query_labels': (2,)}
    """
    found = existing_file(path)
    if found.suffix.lower() != ".npz":
        raise InputError(f"{path}: arrays by name are read from .npz files; write it with numpy.savez")
    with wrap_parse_errors(found, ".npz file"), _members(found) as (archive, members):
        return {
            name: _load(found, archive, info, _member_header(found, archive, info))
            for name, info in members.items()
        }


def write_npy(path: Path, array: Array) -> None:
    """Write a table as .npy, block by block."""
    with path.open("wb") as stream:
        _write(stream, array)


def write_npz(path: Path, array: Array, key: str | None) -> None:
    """Write a table as the only, uncompressed member of a .npz file."""
    info = zipfile.ZipInfo(f"{key or 'embeddings'}.npy")
    # Padding in the member's header puts the data at a multiple of 64 bytes, so the mapped array is aligned.
    # 30 bytes are the header's fixed part, 20 the field for sizes over 4 GiB, 4 the head of the padding.
    padding = -(30 + len(info.filename.encode()) + 20 + 4) % 64
    info.extra = struct.pack("<HH", 0xD935, padding) + bytes(padding)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive,
        archive.open(info, "w", force_zip64=True) as stream,
    ):
        _write(stream, array)


def _write(stream: IO[bytes], array: Array) -> None:
    dtype = array.dtype.newbyteorder("<")
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(stream, description)
    for block in row_blocks(array, dtype):
        stream.write(block.data)


@contextmanager
def _members(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    with zipfile.ZipFile(path) as archive:
        members = {
            info.filename.removesuffix(".npy"): info
            for info in archive.infolist()
            if info.filename.endswith(".npy")
        }
        if not members:
            raise InputError(f"{path}: holds no arrays; write it with numpy.savez")
        yield archive, members


def _member_header(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NpyHeader:
    if info.flag_bits & 1:
        raise InputError(f"{path}: {info.filename!r} is encrypted; write it without a password")
    with archive.open(info) as stream:
        header = read_header(path, stream)
    if min(header.shape, default=0) < 0:
        raise ValueError(f"its header gives the size {header.shape}")
    promised = header.length + math.prod(header.shape) * header.dtype.itemsize
    # What follows a compressed array would be unpacked for nothing.
    packed = info.compress_type != zipfile.ZIP_STORED
    if promised > info.file_size or (packed and promised < info.file_size):
        raise InputError(
            f"{path}: {info.filename!r} promises {promised} bytes and holds {info.file_size}; "
            "write or download it again"
        )
    return header


def _load(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: NpyHeader) -> Array:
    if info.compress_type != zipfile.ZIP_STORED:
        check_growth(path, info.file_size, info.compress_size)
        with archive.open(info) as stream:
            array: Array = np.lib.format.read_array(stream, allow_pickle=False)
            # Reading to the end lets zipfile compare the checksum.
            while stream.read(1 << 20):
                pass
        return array
    with path.open("rb") as stream:  # only the member's own header knows how long that header is
        stream.seek(info.header_offset)
        fixed = stream.read(30)
    name_length, extra_length = struct.unpack("<HH", fixed[26:30])
    return _map(path, header, info.header_offset + 30 + int(name_length) + int(extra_length))


def _map(path: Path, header: NpyHeader, start: int = 0) -> Array:
    offset = start + header.length
    return map_array(path, header.dtype, header.shape, offset, fortran=header.fortran)


def read_header(path: object, stream: IO[bytes]) -> NpyHeader:
    """Read the header of a .npy file or member; `path` names it in messages."""
    # A header may claim to be 4 GiB long, which NumPy reads before it refuses it.
    start = io.BytesIO(stream.read(_LONGEST_HEADER))
    version = np.lib.format.read_magic(start)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(start)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(start)
    else:  # version 3 exists for field names beyond Latin-1 only
        raise InputError(f"{path}: holds an array with named fields; store plain numbers")
    if dtype.hasobject:
        raise InputError(f"{path}: holds an array of Python objects, which can run code; store plain numbers")
    return NpyHeader(tuple(shape), bool(fortran), dtype, start.tell())
