"""The check of all vectors: every array of embeddings enters the package here and is checked once.

Embeddings are (n, d), finite and of unit length. float32 is used as it is; float16 and bfloat16 stay as they
are stored and become float32 a block at a time; float64 and integers are converted to float32. Nothing is
copied when nothing has to change, so a memory-mapped file stays on disk. What a row becomes never depends on
the other rows.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gqe.errors import InputError

Array: TypeAlias = "np.ndarray[Any, Any] | Tensor"

# How far from 1 the length of a stored row may lie before it is normalised again: a little more than rounding
# alone moves a unit vector in that type. Numbers of float32, so that every comparison says the same.
LENGTH_TOLERANCE = {
    torch.float32: float(np.float32(1e-5)),
    torch.float16: float(np.float32(1e-3)),
    torch.bfloat16: float(np.float32(8e-3)),
}
_BLOCK_BYTES = 32 << 20
_DATABASE_NAMES = re.compile("database|gallery|corpus")


def look_swapped(database: str | None, queries: str | None, items: int, num_queries: int) -> bool:
    """Whether database and queries were very likely given in each other's place: by file names, or by sizes.

    Args:
        database: name of the file, if known.
        queries: name of the file, if known.
        items: size of the database.
        num_queries: how many queries there are.

    Example:
        >>> look_swapped("queries.npy", "base.npy", 70, 5000), look_swapped(None, None, 500, 5000)
        (True, False)
    """
    if num_queries <= items:
        return False
    ours, theirs = (PurePath(name or "").stem.lower() for name in (database, queries))
    if "quer" in ours and "quer" not in theirs:
        return True
    if _DATABASE_NAMES.search(theirs) and not _DATABASE_NAMES.search(ours):
        return True
    # A handful of prototypes may well have thousands of queries.
    return items >= 32 and num_queries >= 20 * items


def as_table(vectors: object, name: str = "vectors", *, dim: int | None = None, first_row: int = 0) -> Tensor:
    """Check embeddings and give them as a torch tensor that shares their memory where possible.

    Args:
        vectors: (n, d) NumPy array (also memory-mapped), torch tensor or nested list. n may be 0.
        name: what to call it in an error message.
        dim: the dimension it must have.
        first_row: what to call the first row in an error message, if these are a part of a larger table.

    Returns:
        (n, d) tensor on the same device, rows of unit length; float32, or the 16-bit type it is stored in.

    Raises:
        InputError: wrong shape or type, a value that is not finite, or a vector of zeros.

    Example:
        >>> as_table([[3.0, 4.0]])
        tensor([[0.6000, 0.8000]])
    """
    table = _convert(vectors, name)
    if table.ndim != 2:
        hint = "; give one vector as x[None]" if table.ndim == 1 else ""
        raise InputError(f"{name}: expected shape (n, d), got {tuple(table.shape)}{hint}")
    if table.shape[1] == 0:
        raise InputError(f"{name}: the vectors have no dimensions (shape {tuple(table.shape)})")
    if dim is not None and table.shape[1] != dim:
        raise InputError(
            f"{name}: dimension {table.shape[1]} does not match the database's {dim};"
            " use embeddings from the same network"
        )
    return as_unit_rows(table.detach(), name, first_row)


def as_unit_rows(table: Tensor, name: str, first_row: int = 0) -> Tensor:
    """`as_table` for a tensor (n, d) of numbers: the values are checked, the form is not."""
    if not _has_unit_rows(table, name, first_row):
        return _normalize(table)
    return table if table.dtype in LENGTH_TOLERANCE else table.to(torch.float32)


def like(result: Tensor, template: object) -> Any:
    """Give a result back as the kind of array that came in: a tensor on its device, or a NumPy array."""
    return result.to(template.device) if isinstance(template, Tensor) else result.cpu().numpy()


def rows(table: Tensor, ids: Tensor, device: torch.device) -> Tensor:
    """Gather rows as float32 on a device.

    Args:
        table: (n, d) embeddings on any device; n may be 0 when all ids are missing.
        ids: integer ids of any shape, all within the table (missing ones already replaced by any valid id).
        device: where the rows are needed.

    Returns:
        ids.shape + (d,) float32.
    """
    flat = table.index_select(0, ids.reshape(-1).to(table.device))
    return flat.to(device, torch.float32).reshape(*ids.shape, table.shape[1])


def blocks(n: int, bytes_per_row: int, budget: int = _BLOCK_BYTES) -> Iterator[slice]:
    """Slices that cover range(n), each holding at most `budget` bytes (at least one row)."""
    step = max(1, budget // max(1, bytes_per_row))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def _convert(vectors: object, name: str) -> Tensor:
    if isinstance(vectors, Tensor):
        if vectors.dtype == torch.bool or vectors.dtype.is_complex:
            raise InputError(f"{name}: {vectors.dtype} values are not embeddings; use float32")
        if vectors.layout != torch.strided:
            raise InputError(f"{name}: a {vectors.layout} tensor is not supported; use to_dense()")
        return vectors
    try:
        array = np.asarray(vectors)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}: not an array of vectors of equal length ({error})") from None
    if np.ma.is_masked(vectors):
        raise InputError(f"{name}: it has masked values; fill them or remove their rows")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name}: values of type {array.dtype} are not embeddings; use float32")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.float32)  # torch has no wide unsigned integers to compute with
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = np.ascontiguousarray(array)  # torch steps forwards, by whole values
    return as_tensor(array)


def as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor that shares the array's memory, which nobody may write into: it may be a read-only map."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)


def _has_unit_rows(table: Tensor, name: str, first_row: int) -> bool:
    """Whether all rows have unit length; refuses rows that no length can be given to."""
    unit, tolerance = True, _tolerance(table.dtype)
    for part in blocks(table.shape[0], table.shape[1] * 4):
        block = _computable(table[part])
        lengths = torch.linalg.vector_norm(block, dim=1)
        shortest, longest = (float(length) for length in torch.aminmax(lengths))
        if 1 - shortest <= tolerance and longest - 1 <= tolerance:  # neither is so if one is NaN
            continue
        unit = False
        odd = torch.nonzero(~torch.isfinite(lengths) | (lengths < 1e-30))[:, 0]
        if len(odd):
            _refuse(block[odd], odd + part.start + first_row, name)
    return unit


def _refuse(odd_rows: Tensor, numbers: Tensor, name: str) -> None:
    """Raise for the first bad row; rows that are merely very long or short pass (they can be normalised)."""
    largest = odd_rows.abs().amax(dim=1)  # NaN where the row holds one
    for number, value in zip(numbers.tolist(), largest.tolist(), strict=True):
        if value != value:
            raise InputError(f"{name}: row {number} contains NaN; remove the row or repair its embedding")
        if value == float("inf"):
            raise InputError(f"{name}: row {number} contains an infinite value; repair its embedding")
        if value == 0:
            raise InputError(f"{name}: row {number} is all zeros and has no direction; remove it")


def _normalize(table: Tensor) -> Tensor:
    """A float32 copy in which the rows that are not of unit length are brought to it."""
    result = torch.empty(table.shape, dtype=torch.float32, device=table.device)
    for part in blocks(table.shape[0], table.shape[1] * 4):
        block = _computable(table[part])
        lengths = torch.linalg.vector_norm(block, dim=1, keepdim=True)
        unit = (lengths - 1).abs() <= _tolerance(table.dtype)
        scaled = block / block.abs().amax(dim=1, keepdim=True)  # keeps squares of extreme values finite
        scaled = scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
        result[part] = torch.where(unit, block, scaled)
    return result


def _tolerance(stored: torch.dtype) -> float:
    return LENGTH_TOLERANCE.get(stored, LENGTH_TOLERANCE[torch.float32])


def _computable(block: Tensor) -> Tensor:
    """float64 as it is, since its extremes fit no float32; all other types as float32."""
    return block if block.dtype == torch.float64 else block.to(torch.float32)
