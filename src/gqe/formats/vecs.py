"""Files of raw rows.

TEXMEX .fvecs, .bvecs, .ivecs: every row is its dimension as int32, then its values.
big-ann-benchmarks .fbin, .u8bin, .i8bin: rows and dimension as uint32, then the values.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats.checks import Array, as_table, check_stored_as, map_array, row_blocks, wrap_parse_errors

VECS_DTYPES: dict[str, np.dtype[Any]] = {
    ".fvecs": np.dtype("<f4"),
    ".bvecs": np.dtype("u1"),
    ".ivecs": np.dtype("<i4"),
}
BIN_DTYPES: dict[str, np.dtype[Any]] = {
    ".fbin": np.dtype("<f4"),
    ".u8bin": np.dtype("u1"),
    ".i8bin": np.dtype("i1"),
}

# Looking at every row's dimension reads a page of the disk per row. A row of another length shifts all rows
# after it, so in a larger file the first and last row and some between tell as much.
_CHECK_ALL_BELOW_BYTES = 64 << 20
_ROWS_CHECKED = 4096


def read_vecs(path: Path, ending: str, *, check_every_row: bool = False) -> Array:
    """Map the rows without their dimensions: no byte of the values is copied."""
    dtype = VECS_DTYPES[ending]
    with wrap_parse_errors(path, f"{ending} file"):
        size = path.stat().st_size
        with path.open("rb") as stream:
            first = stream.read(4)
        dimension = int.from_bytes(first, "little", signed=True)
        if len(first) < 4 or dimension < 1:
            raise InputError(
                f"{path}: its first row has the dimension {dimension}, a {ending} file starts with one of at "
                "least 1; check the ending"
            )
        row_bytes = 4 + dimension * dtype.itemsize
        rows, rest = divmod(size, row_bytes)
        if rest:
            raise InputError(
                f"{path}: rows of dimension {dimension} take {row_bytes} bytes, its {size} bytes end "
                f"{rest} bytes into row {rows}; write or download it again"
            )
        raw = map_array(path, np.dtype("u1"), (rows, row_bytes), 0)
        _check_dimensions(path, raw, dimension, check_every_row or size <= _CHECK_ALL_BELOW_BYTES)
        values: Array = raw[:, 4:].view(dtype)
        return values


def write_vecs(path: Path, array: Array, ending: str) -> None:
    """Write a table as .fvecs, .bvecs or .ivecs, block by block."""
    dtype = VECS_DTYPES[ending]
    check_stored_as(array, dtype, ending)
    if len(array) == 0:
        raise InputError(f"array: a {ending} file cannot hold a table without rows; write .npy")
    dimension = np.array([array.shape[1]], "<i4").view("u1")
    with path.open("wb") as stream:
        for block in row_blocks(array, dtype):
            rows = np.empty((len(block), 4 + block.shape[1] * dtype.itemsize), "u1")
            rows[:, :4] = dimension
            rows[:, 4:] = block.view("u1")
            stream.write(rows.data)


def _check_dimensions(path: Path, raw: Array, dimension: int, every_row: bool) -> None:
    rows = np.arange(len(raw))
    if not every_row and len(raw) > _ROWS_CHECKED:
        rows = np.linspace(0, len(raw) - 1, _ROWS_CHECKED).astype(np.int64)
    found = raw[rows, :4].view("<i4")[:, 0]
    wrong = np.flatnonzero(found != dimension)
    if len(wrong):
        row = int(rows[wrong[0]])
        raise InputError(
            f"{path}: row {row} has the dimension {int(found[wrong[0]])}, row 0 has {dimension}; "
            "all rows must have the same: write or download it again"
        )


def read_bin(path: Path, ending: str) -> Array:
    """Map the table of a .fbin, .u8bin or .i8bin file."""
    dtype = BIN_DTYPES[ending]
    with wrap_parse_errors(path, f"{ending} file"):
        with path.open("rb") as stream:
            rows, dimension = struct.unpack("<II", stream.read(8))
        needed, size = 8 + rows * dimension * dtype.itemsize, path.stat().st_size
        if needed != size:
            raise InputError(
                f"{path}: its header promises {rows} rows of {dimension} ({needed} bytes), the file has "
                f"{size} bytes; write or download it again"
            )
        return as_table(map_array(path, dtype, (rows, dimension), 8), path)


def write_bin(path: Path, array: Array, ending: str) -> None:
    """Write a table as .fbin, .u8bin or .i8bin, block by block."""
    dtype = BIN_DTYPES[ending]
    check_stored_as(array, dtype, ending)
    if max(array.shape) >= 1 << 32:
        raise InputError(f"array: {ending} files hold fewer than 2**32 rows; write .npy")
    with path.open("wb") as stream:
        stream.write(struct.pack("<II", *array.shape))
        for block in row_blocks(array, dtype):
            stream.write(block.data)
