"""The names of items: whole numbers or text, as the user gave them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from gqe.errors import DamagedError, InputError

Array = np.ndarray[Any, Any]
INT, TEXT = "int", "text"


class ItemIds:
    """Ids of all rows, removed ones included.

    Args:
        kind: "int" or "text".
        values: (n,) int64, or UTF-8 text of all rows laid end to end.
        ends: (n,) where each row's text ends; for text only.
    """

    def __init__(self, kind: str, values: Array, ends: Array | None = None) -> None:
        self.kind = kind
        self._values = values
        self._ends = ends

    def take(self, rows: Array) -> Array:
        """Ids of rows of any shape, -1 = missing: int64 with -1, or objects with None for the missing."""
        if self.kind == INT:
            if not len(self._values):
                return np.full(rows.shape, -1, dtype=np.int64)
            return np.where(rows >= 0, self._values[rows.clip(min=0)], -1).astype(np.int64)
        found = np.empty(rows.size, dtype=object)
        for place, row in enumerate(rows.reshape(-1).tolist()):
            found[place] = self._text(row) if row >= 0 else None
        return found.reshape(rows.shape)

    def find(self, ids: Sequence[Any] | Array, alive: Array, name: str = "ids") -> Array:
        """Rows (m,) of ids, all of which must be in the index.

        Args:
            ids: (m,) what to look for.
            alive: (n,) bool, rows that are not removed.
            name: what to call it in an error message.
        """
        wanted = check_ids(ids, None, self.kind, name)
        rows = self.look_up(wanted, alive)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            first = wanted[missing[0]]
            shown = first if self.kind == INT else repr(first)
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise InputError(f"{name}: no item {shown} in the index{more}; check the ids")
        return rows

    def look_up(self, wanted: Array, alive: Array) -> Array:
        """Rows (m,) of checked ids, -1 for those that are not in the index."""
        if not len(alive):
            return np.full(len(wanted), -1, dtype=np.int64)
        if self.kind == TEXT:
            known = self._rows_of_text
            # A removed item's id may have come back with a later row, which is the one in the dictionary.
            rows = np.array([known.get(text, -1) for text in wanted.tolist()], dtype=np.int64)
        else:
            order = self._order
            # The last of equal ids is the newest row.
            place = np.searchsorted(self._values[order], wanted, side="right") - 1
            rows = np.full(len(wanted), -1, dtype=np.int64)
            inside = place >= 0
            rows[inside] = order[place[inside]]
            rows[inside & (self._values[rows.clip(min=0)] != wanted)] = -1
        rows[(rows >= 0) & ~alive[rows.clip(min=0)]] = -1
        return rows

    def _text(self, row: int) -> str:
        assert self._ends is not None
        start = int(self._ends[row - 1]) if row else 0
        return _text(bytes(self._values[start : int(self._ends[row])]))

    @cached_property
    def _rows_of_text(self) -> dict[str, int]:
        assert self._ends is not None
        content, start, known = bytes(self._values), 0, {}
        for row, end in enumerate(self._ends.tolist()):
            known[_text(content[start:end])] = row
            start = end
        return known

    @cached_property
    def _order(self) -> Array:
        return np.argsort(self._values, kind="stable")


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise DamagedError("ids: damaged, not readable as texts; run `gqe index verify`") from None


def check_ids(ids: Any, count: int | None, kind: str | None, name: str = "ids") -> Array:
    """Ids as (n,) int64 or objects of str; refuses what is neither, given twice, or negative.

    Args:
        ids: array, list or tuple.
        count: how many there must be; None for any number.
        kind: "int" or "text", or None to take what comes.
        name: what to call it in an error message.
    """
    try:
        if isinstance(ids, list | tuple) and any(isinstance(value, str) for value in ids):
            values = np.empty(len(ids), dtype=object)  # NumPy would make texts of numbers among them
            values[:] = ids
        else:
            values = np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids)
    except (ValueError, TypeError):
        raise InputError(f"{name}: expected a list of whole numbers or of texts") from None
    if values.ndim != 1:
        raise InputError(f"{name}: expected a list, got shape {values.shape}")
    if count is not None and len(values) != count:
        raise InputError(f"{name}: {len(values)} ids for {count} vectors; give one for each")
    if values.size == 0:
        return np.empty(0, dtype=object if kind == TEXT else np.int64)
    if values.dtype.kind == "U" or (
        values.dtype.kind == "O" and all(isinstance(value, str) for value in values)
    ):
        found = TEXT
        values = values.astype(object)
        encode_text(values)  # refuses what cannot be written
    elif values.dtype.kind in "iu" or (
        values.dtype.kind == "O" and all(type(value) is int for value in values)
    ):
        found = INT
        if values.min() < 0 or values.max() >= 2**63:
            raise InputError(
                f"{name}: whole numbers must lie between 0 and 2**63 - 1; -1 marks a missing result"
            )
        values = values.astype(np.int64)
    else:
        kind_of = "a mixture" if values.dtype == object else values.dtype
        raise InputError(f"{name}: expected whole numbers or texts, got {kind_of}; convert them")
    if kind is not None and found != kind:
        says = {INT: "whole numbers", TEXT: "texts"}
        raise InputError(f"{name}: this index names its items by {says[kind]}; give {says[kind]}")
    _refuse_twice(values, name)
    return values


def encode_text(ids: Array) -> tuple[Array, Array]:
    """UTF-8 bytes of texts (n,) laid end to end, and where each ends."""
    try:
        parts = [text.encode() for text in ids]
    except UnicodeEncodeError as error:
        raise InputError(f"ids: {error.object!r} cannot be written as UTF-8; use other texts") from None
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64) if parts else np.empty(0, np.int64)
    return np.frombuffer(b"".join(parts), dtype=np.uint8), ends


def _refuse_twice(values: Array, name: str) -> None:
    if values.dtype == object:
        seen: set[str] = set()
        for row, value in enumerate(values):
            if value in seen:
                raise InputError(f"{name}: {value!r} is given twice (again in row {row}); ids must differ")
            seen.add(value)
        return
    order = np.argsort(values, kind="stable")
    same = np.flatnonzero(np.diff(values[order]) == 0)
    if len(same):
        row = int(order[same[0] + 1])
        raise InputError(f"{name}: {values[row]} is given twice (again in row {row}); ids must differ")
