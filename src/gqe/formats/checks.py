"""What every file format asks of its file, and how it says no."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gqe.errors import InputError, StorageError

Array = NDArray[Any]

USUAL_KEYS = ("embeddings", "vectors", "database", "queries")
"""Names under which vectors are looked for in a file of several arrays, best first."""

_GROWTH, _GROWTH_BYTES = 100, 64 << 20
_BLOCK_BYTES = 8 << 20


def existing_file(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a Path if it is a readable file with something in it."""
    try:
        found = Path(path)
        if found.is_dir():
            raise InputError(f"{path}: is a folder; give the name of a file")
        if not found.exists():
            raise InputError(f"{path}: no such file; check the name")
        if not found.is_file():
            raise InputError(f"{path}: is not a regular file; copy its content into one")
        with found.open("rb") as stream:
            if not stream.read(1):
                raise InputError(f"{path}: is empty; write or download it again")
    except (OSError, ValueError, TypeError) as error:  # ValueError: a null character in the name
        if isinstance(error, InputError):
            raise
        _refuse_busy(path, error)
        raise InputError(
            f"{str(path)!r}: cannot be opened: {one_line(error)}; check name and rights"
        ) from error
    return found


@contextmanager
def wrap_parse_errors(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a parser throws at a broken file into one InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{path}: does not fit into memory; convert it to .npy, which is mapped") from error
    except Exception as error:
        _refuse_busy(path, error)
        raise InputError(
            f"{path}: is not a readable {kind}: {one_line(error)}; write or download it again"
        ) from error


def _refuse_busy(path: object, error: Exception) -> None:
    """Say that it is the system, and not the file, if the same call may succeed later."""
    if isinstance(error, OSError):
        storage_error = StorageError.of(error, path, "read")
        if storage_error.retryable:
            raise storage_error from error


def one_line(error: BaseException) -> str:
    """The first 200 characters of an error's message, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def check_growth(path: Path, promised: int, stored: int) -> None:
    """Refuse to unpack what would take far more memory than the file: no vectors can be packed so well.

    Args:
        path: the file.
        promised: bytes once unpacked.
        stored: bytes in the file.
    """
    if promised > max(_GROWTH * stored, _GROWTH_BYTES):
        raise InputError(
            f"{path}: promises {promised} bytes out of {stored}, which no vectors can be packed into; "
            "write it again without compression"
        )


def optional_module(name: str, purpose: str) -> Any:
    """Import a module of the `files` extra, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{purpose} needs {name.partition('.')[0]}: pip install 'gqe[files]'") from error


def choose_key(
    path: Path,
    key: str | None,
    usable: Sequence[str],
    everything: Sequence[str],
    usual: Sequence[str] = USUAL_KEYS,
) -> str:
    """Name the array to read: `key`, else the only usable one, else the first usable one with a usual name.

    Args:
        path: the file, for the message.
        key: what the user asked for, or None.
        usable: names of the arrays that can be vectors.
        everything: names of all arrays of the file.
        usual: names preferred when several are usable, best first.
    """
    if key is not None:
        if key in usable:
            return key
        if key in everything:
            raise InputError(f"{path}: {key!r} is not a table of numbers (n, d); {_advise(usable)}")
        raise InputError(f"{path}: holds nothing named {key!r}; {_advise(usable)}")
    if len(usable) == 1:
        return usable[0]
    for name in usual:
        if name in usable:
            return name
    if not usable:
        raise InputError(
            f"{path}: holds no table of numbers (n, d), only {_quote(everything)}; give another file"
        )
    raise InputError(f"{path}: holds several tables; choose one with key: {_quote(usable)}")


def _advise(names: Sequence[str]) -> str:
    return f"choose one of {_quote(names)}" if names else "no table in it can be read; give another file"


def _quote(names: Sequence[str]) -> str:
    if not names:
        return "nothing"
    shown = ", ".join(repr(name) for name in names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


def is_table(shape: Sequence[int], dtype: np.dtype[Any]) -> bool:
    """Whether an array of this shape and type can be vectors: two axes, real numbers."""
    return len(shape) == 2 and dtype.kind in "fiu"


def as_table(array: Array, source: object) -> Array:
    """Return `array` if it is (n, d) real numbers with d >= 1; `source` names it in the message."""
    if array.ndim != 2:
        raise InputError(
            f"{source}: has {array.ndim} axes {array.shape}; vectors are a table (n, d): reshape it"
        )
    if array.dtype.kind not in "fiu":
        raise InputError(f"{source}: holds {array.dtype}, not real numbers; convert it to float32")
    if array.shape[1] == 0:
        raise InputError(f"{source}: its {array.shape[0]} rows have no columns; vectors need at least one")
    return array


def map_array(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, *, fortran: bool = False
) -> Array:
    """Map part of a file as an array, after checking that the file reaches that far.

    An array without elements cannot be mapped and is returned as an ordinary one.
    """
    if min(shape, default=0) < 0:
        raise InputError(f"{path}: its header gives the size {shape}; write or download it again")
    length = math.prod(shape) * dtype.itemsize
    needed, size = offset + length, path.stat().st_size
    if needed > size:
        raise InputError(
            f"{path}: its header promises {' x '.join(map(str, shape))} values of {dtype} ({needed} bytes), "
            f"the file has {size} bytes; write or download it again"
        )
    order: Literal["C", "F"] = "F" if fortran else "C"
    if length == 0:
        return np.empty(shape, dtype, order=order)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)


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
