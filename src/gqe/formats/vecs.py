"""The TEXMEX files .fvecs, .bvecs and .ivecs: every row is its dimension as int32, then its values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats.blocks import check_stored_as, row_blocks
from gqe.formats.checks import Array, explaining, mapped

DTYPES: dict[str, np.dtype[Any]] = {
    ".fvecs": np.dtype("<f4"),
    ".bvecs": np.dtype("u1"),
    ".ivecs": np.dtype("<i4"),
}

# Looking at every row's dimension reads a page of the disk per row. A row of another length shifts all rows
# after it, so in a larger file the first and last row and some between tell as much.
_CHECK_ALL_BELOW_BYTES = 64 << 20
_ROWS_CHECKED = 4096


def read_vecs(path: Path, ending: str, *, check_every_row: bool = False) -> Array:
    """Map the rows without their dimensions: no byte of the values is copied."""
    dtype = DTYPES[ending]
    with explaining(path, f"{ending} file"):
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
        raw = mapped(path, np.dtype("u1"), (rows, row_bytes), 0)
        everything = check_every_row or size <= _CHECK_ALL_BELOW_BYTES
        _check_dimensions(path, raw, dimension, everything)
        values: Array = raw[:, 4:].view(dtype)
        return values


def write_vecs(path: Path, array: Array, ending: str) -> None:
    """Write a table as .fvecs, .bvecs or .ivecs, block by block."""
    dtype = DTYPES[ending]
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


def _check_dimensions(path: Path, raw: Array, dimension: int, everything: bool) -> None:
    rows = np.arange(len(raw))
    if not everything and len(raw) > _ROWS_CHECKED:
        rows = np.linspace(0, len(raw) - 1, _ROWS_CHECKED).astype(np.int64)
    found = raw[rows, :4].view("<i4")[:, 0]
    wrong = np.flatnonzero(found != dimension)
    if len(wrong):
        row = int(rows[wrong[0]])
        raise InputError(
            f"{path}: row {row} has the dimension {int(found[wrong[0]])}, row 0 has {dimension}; "
            "all rows must have the same: write or download it again"
        )
