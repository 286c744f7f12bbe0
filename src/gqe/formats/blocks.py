"""Rows in blocks, so that a table larger than memory can be written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats.checks import Array

_BLOCK_BYTES = 8 << 20


def row_blocks(array: Array, dtype: np.dtype[Any]) -> Iterator[Array]:
    """Yield `array` (n, d) as contiguous blocks of rows of type `dtype`, each of about 8 MiB."""
    row_bytes = max(1, array.shape[1] * max(dtype.itemsize, array.dtype.itemsize))
    rows = max(1, _BLOCK_BYTES // row_bytes)
    for start in range(0, len(array), rows):
        try:
            # A float64 beyond float32 would silently become infinite.
            with np.errstate(over="raise"):
                block = np.ascontiguousarray(array[start : start + rows], dtype=dtype)
        except FloatingPointError as error:
            stop = min(start + rows, len(array)) - 1
            raise InputError(
                f"array: a value in rows {start} to {stop} is too large for {dtype}; "
                "rescale the rows or write .npy, which keeps float64"
            ) from error
        yield block


def check_stored_as(array: Array, dtype: np.dtype[Any], ending: str) -> None:
    """Refuse a table whose numbers a file of this ending cannot hold.

    Floats may be narrowed to the file's float type; whole numbers must fit exactly.
    """
    fits = np.can_cast(array.dtype, dtype, "safe") or (array.dtype.kind == "f" and dtype.kind == "f")
    if not fits:
        raise InputError(
            f"array: {ending} files hold {dtype.name}, not {array.dtype.name}; convert it or write .npy"
        )
