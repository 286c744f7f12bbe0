"""Rows of a table in several mapped files, read as if they were one; a later file's rows win.

Rows are copied by NumPy: torch's gather waits for its threads, which costs more than it gains for a few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
# Joined rows that are kept.
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
        pieces: where they are. Rows that no piece holds must not be asked for.
    """

    def __init__(self, count: int, row_bytes: int, pieces: Sequence[Piece]) -> None:
        self.count = count
        self.row_bytes = row_bytes
        self.pieces = list(pieces)
        # Without rows by number the pieces simply follow each other.
        self.in_order = all(piece.rows is None for piece in self.pieces)
        # A block from several pieces: every search asks for the same one, where the first piece ends.
        self._joined: tuple[tuple[int, int], Array] | None = None

    def take(self, numbers: Array) -> Array:
        """(p, row bytes) copies of the rows of the given numbers (p,)."""
        if self.in_order and len(self.pieces) == 1:
            return np.take(self.pieces[0].content, numbers, axis=0)
        if self.in_order:
            return self._taken_in_order(numbers)
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
        joined = self._joined  # read once: other threads may replace it
        if joined is None or joined[0] != (start, stop):
            joined = (start, stop), np.concatenate(parts)
            if joined[1].nbytes <= _JOINED_BYTES:
                self._joined = joined
        return joined[1]

    def _taken_in_order(self, numbers: Array) -> Array:
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
