"""The big-ann-benchmarks files .fbin, .u8bin and .i8bin: rows and dimension as uint32, then the values."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats.blocks import check_stored_as, row_blocks
from gqe.formats.checks import Array, as_table, explaining, mapped

DTYPES: dict[str, np.dtype[Any]] = {
    ".fbin": np.dtype("<f4"),
    ".u8bin": np.dtype("u1"),
    ".i8bin": np.dtype("i1"),
}


def read_bigann(path: Path, ending: str) -> Array:
    """Map the table of a .fbin, .u8bin or .i8bin file."""
    dtype = DTYPES[ending]
    with explaining(path, f"{ending} file"):
        with path.open("rb") as stream:
            rows, dimension = struct.unpack("<II", stream.read(8))
        needed, size = 8 + rows * dimension * dtype.itemsize, path.stat().st_size
        if needed != size:
            raise InputError(
                f"{path}: its header promises {rows} rows of {dimension} ({needed} bytes), the file has "
                f"{size} bytes; write or download it again"
            )
        return as_table(mapped(path, dtype, (rows, dimension), 8), path)


def write_bigann(path: Path, array: Array, ending: str) -> None:
    """Write a table as .fbin, .u8bin or .i8bin, block by block."""
    dtype = DTYPES[ending]
    check_stored_as(array, dtype, ending)
    if max(array.shape) >= 1 << 32:
        raise InputError(f"array: {ending} files hold fewer than 2**32 rows; write .npy")
    with path.open("wb") as stream:
        stream.write(struct.pack("<II", *array.shape))
        for block in row_blocks(array, dtype):
            stream.write(block.data)
