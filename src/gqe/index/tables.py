"""Tables in mapped files: embeddings as float32, float16 or int8, and neighbour lists.

A table lies in several files that are read as if they were one; a later file's rows win. Rows are copied by
NumPy: torch's gather waits for its threads, which costs more than it gains for a few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import as_tensor
from gqe.errors import InputError
from gqe.neighbors.updating import NeighborLists
from gqe.transfer import PendingCopy

Array = np.ndarray[Any, Any]
# Bytes of joined rows that are cached.
_JOINED_BYTES = 64 << 20


class Piece(NamedTuple):
    """Rows written together.

    Attributes:
        content: (count, row bytes) uint8, mapped.
        start: number of the first row, when they follow each other.
        rows: (count,) their numbers, when they do not.
    """

    content: Array
    start: int
    rows: Array | None = None


class Rows:
    """Rows of equal size by number.

    Args:
        count: how many rows there are.
        row_bytes: the size of each.
        pieces: where they are. Rows that no piece holds must not be read.
    """

    def __init__(self, count: int, row_bytes: int, pieces: Sequence[Piece]) -> None:
        self.count = count
        self.row_bytes = row_bytes
        self.pieces = list(pieces)
        # Without rows by number the pieces simply follow each other.
        self.in_order = all(piece.rows is None for piece in self.pieces)
        # A block from several pieces: every search asks for the same one, where the first piece ends.
        self._last_block: tuple[tuple[int, int], Array] | None = None

    def take(self, numbers: Array) -> Array:
        """(p, row bytes) copies of rows by number (p,)."""
        if self.in_order and len(self.pieces) == 1:
            return np.take(self.pieces[0].content, numbers, axis=0)
        if self.in_order:
            return self._take_in_order(numbers)
        slots = self._slots[numbers]
        if len(slots) and slots.min() < 0:
            raise IndexError("a row was asked for that was never written")
        result = np.empty((len(numbers), self.row_bytes), dtype=np.uint8)
        first = 0
        for piece in self.pieces:
            here = np.flatnonzero((slots >= first) & (slots < first + len(piece.content)))
            if len(here):
                result[here] = np.take(piece.content, slots[here] - first, axis=0)
            first += len(piece.content)
        return result

    def block(self, start: int, stop: int) -> Array:
        """(stop - start, row bytes) consecutive rows, without a copy where they lie together."""
        if not self.in_order:
            slots = self._slots[start:stop]
            first = self.pieces[0]
            untouched = first.rows is None and first.start == 0 and stop <= len(first.content)
            if untouched and np.array_equal(slots, np.arange(start, stop)):
                return first.content[start:stop]
            return self.take(np.arange(start, stop))
        parts = [
            piece.content[max(start - piece.start, 0) : max(stop - piece.start, 0)] for piece in self.pieces
        ]
        parts = [part for part in parts if len(part)]
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return np.empty((0, self.row_bytes), np.uint8)
        joined = self._last_block  # read once: other threads may replace it
        if joined is None or joined[0] != (start, stop):
            joined = (start, stop), np.concatenate(parts)
            if joined[1].nbytes <= _JOINED_BYTES:
                self._last_block = joined
        return joined[1]

    def _take_in_order(self, numbers: Array) -> Array:
        """`take` from pieces that follow each other, without a table of where each row lies."""
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= self._ends[-1]):
            raise IndexError("a row was asked for that was never written")
        which = np.searchsorted(self._ends, numbers, side="right")
        # Numbers of 16 bits are sorted in one pass.
        order = np.argsort(which.astype(np.uint16) if len(self._ends) < 1 << 16 else which, kind="stable")
        ends = np.cumsum(np.bincount(which, minlength=len(self.pieces)))
        result = np.empty((len(numbers), self.row_bytes), dtype=np.uint8)
        for piece, end, count in zip(self.pieces, ends, np.diff(ends, prepend=0), strict=True):
            if count:
                here = order[end - count : end]
                result[here] = np.take(piece.content, numbers[here] - piece.start, axis=0)
        return result

    @cached_property
    def _ends(self) -> Array:
        """Where each of the pieces that follow each other ends; 0 where there is none."""
        return np.array([piece.start + len(piece.content) for piece in self.pieces] or [0])

    @cached_property
    def _slots(self) -> Array:
        """(count,) where each row lies in all pieces laid end to end; -1 where nowhere."""
        slots = np.full(self.count, -1, dtype=np.int64)
        first = 0
        for piece in self.pieces:
            places = np.arange(first, first + len(piece.content))
            if piece.rows is None:
                slots[piece.start : piece.start + len(piece.content)] = places
            else:
                slots[piece.rows] = places
            first += len(piece.content)
        return slots


def as_bytes(array: Array) -> Array:
    """(n, row bytes) uint8 view of an array (n, ...), mapped or not."""
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    if array.size == 0:
        return np.empty((len(array), row_bytes), dtype=np.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(len(array), row_bytes)


STORAGES = ("float32", "float16", "int8")
_TORCH = {"float32": torch.float32, "float16": torch.float16, "int8": torch.float32}


class Table:
    """Stored embeddings (n, d) with as much of a tensor's interface as searching and expanding use.

    float32 and float16 come as they are. int8 rows are whole numbers that were a unit vector's direction;
    they come as float32 of unit length.

    Args:
        rows: where they are.
        storage: how a row is stored.
        dimension: d.
    """

    def __init__(self, rows: Rows, storage: str, dimension: int) -> None:
        self.rows = rows
        self.storage = storage
        self.shape = torch.Size((rows.count, dimension))
        self.dtype = _TORCH[storage]
        self.device = torch.device("cpu")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows as a tensor."""
        return self.shape.numel() * self.element_size()

    def element_size(self) -> int:
        """Bytes of a number as it comes."""
        return 2 if self.storage == "float16" else 4

    def index_select(self, _: int, numbers: Tensor) -> Tensor:
        """(p, d) rows by number."""
        return decode_rows(self.rows.take(numbers.numpy()), self.storage, self.shape[1])

    def __getitem__(self, wanted: slice | Tensor) -> Tensor:
        if isinstance(wanted, Tensor):
            return self.index_select(0, wanted)
        start, stop, step = wanted.indices(len(self))
        assert step == 1
        return decode_rows(self.rows.block(start, stop), self.storage, self.shape[1])

    def to(self, *target: Any) -> Tensor:
        """All rows as a tensor of another type or on another device."""
        return self[:].to(*target)


def row_dtype(storage: str, dimension: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The NumPy type and the shape of one row in a file."""
    if storage == "int8":
        return np.dtype([("values", "i1", (dimension,)), ("scale", "<f4")]), ()
    return np.dtype("<f4" if storage == "float32" else "<f2"), (dimension,)


def copy_to_host(vectors: Tensor, storage: str) -> PendingCopy:
    """Start copying unit vectors (n, d) to the host in the type they are stored in, for `encode_rows`."""
    return PendingCopy(vectors.detach().to(_TORCH[storage]))


def encode_rows(vectors: Tensor | PendingCopy, storage: str) -> np.ndarray[Any, Any]:
    """Unit vectors (n, d) as they are stored."""
    arriving = vectors if isinstance(vectors, PendingCopy) else copy_to_host(vectors, storage)
    (vectors,) = arriving.wait()
    if storage != "int8":
        return vectors.numpy()
    values = torch.round(vectors * (127 / vectors.abs().amax(dim=1, keepdim=True).clamp(min=1e-30)))
    result = np.empty(len(vectors), row_dtype("int8", vectors.shape[1])[0])
    result["values"] = values.to(torch.int8).numpy()
    # Squares of whole numbers are summed without rounding, so the scale never depends on the batch.
    squares = (values.to(torch.float64) ** 2).sum(dim=1)
    result["scale"] = squares.rsqrt().to(torch.float32).numpy()
    return result


def decode_rows(content: np.ndarray[Any, Any], storage: str, dimension: int) -> Tensor:
    """Stored rows (n, row bytes) as vectors (n, d): float32, or float16 for that storage."""
    if not len(content):
        return torch.empty((0, dimension), dtype=_TORCH[storage])
    if storage != "int8":
        return as_tensor(content).view(_TORCH[storage])
    values = as_tensor(content)[:, :dimension].view(torch.int8)
    scale = np.ascontiguousarray(content[:, dimension:]).view(np.float32)
    return values.to(torch.float32) * torch.from_numpy(scale)


def round_rows(vectors: Tensor, storage: str) -> Tensor:
    """What a reader would see of these vectors (n, d) had they been stored."""
    if storage == "float32":
        return vectors
    if storage == "float16":
        return vectors.to(torch.float16)
    return decode_rows(as_bytes(encode_rows(vectors, storage)), storage, vectors.shape[1])


def check_storage(storage: object, levels: int) -> list[str]:
    """One storage for each stored level, given as one name or a list of names (the last one repeats)."""
    names = [storage] if isinstance(storage, str) else storage if isinstance(storage, list | tuple) else []
    if not names or any(name not in STORAGES for name in names):
        raise InputError(
            f"storage: expected {', '.join(STORAGES)}, or a list of them by level, got {storage!r}"
        )
    if len(names) > levels:
        raise InputError(
            f"storage: {len(names)} types for {levels} stored levels; give one for each, or one for all"
        )
    return [*names, *names[-1:] * (levels - len(names))]


class StoredGraph:
    """The neighbour lists of all items on disk.

    Args:
        rows: where they are.
        width: neighbours in a list.
    """

    def __init__(self, rows: Rows, width: int) -> None:
        self.rows = rows
        self.width = width

    def take(self, numbers: Array) -> NeighborLists:
        """The lists of items (p,)."""
        return _unpack(self.rows.take(numbers), self.width)

    def block(self, start: int, stop: int) -> NeighborLists:
        """The lists of consecutive items."""
        return _unpack(self.rows.block(start, stop), self.width)


def list_dtype(width: int) -> np.dtype[Any]:
    """One neighbour list in a file."""
    return np.dtype([("ids", "<i4", (width,)), ("similarities", "<f4", (width,))])


def pack_lists(lists: NeighborLists) -> Array:
    """Lists as they are stored."""
    result = np.empty(len(lists.ids), list_dtype(lists.ids.shape[1]))
    result["ids"], result["similarities"] = lists.ids, lists.similarities
    return result


def _unpack(content: Array, width: int) -> NeighborLists:
    return NeighborLists(content[:, : 4 * width].view(np.int32), content[:, 4 * width :].view(np.float32))
