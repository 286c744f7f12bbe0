"""The neighbour lists of an index, on disk."""

from __future__ import annotations

from typing import Any

import numpy as np

from gqe.index.rows import Rows
from gqe.neighbors.updating import Lists

Array = np.ndarray[Any, Any]


class StoredGraph:
    """The neighbour lists of all items on disk.

    Args:
        rows: where they are.
        width: neighbours in a list.
    """

    def __init__(self, rows: Rows, width: int) -> None:
        self.rows = rows
        self.width = width

    def take(self, numbers: Array) -> Lists:
        """The lists of items (p,)."""
        return _unpacked(self.rows.take(numbers), self.width)

    def block(self, start: int, stop: int) -> Lists:
        """The lists of consecutive items."""
        return _unpacked(self.rows.block(start, stop), self.width)


def list_type(width: int) -> np.dtype[Any]:
    """One neighbour list in a file."""
    return np.dtype([("ids", "<i4", (width,)), ("similarities", "<f4", (width,))])


def packed(lists: Lists) -> Array:
    """Lists as they are stored."""
    result = np.empty(len(lists.ids), list_type(lists.ids.shape[1]))
    result["ids"], result["similarities"] = lists.ids, lists.similarities
    return result


def _unpacked(content: Array, width: int) -> Lists:
    return Lists(content[:, : 4 * width].view(np.int32), content[:, 4 * width :].view(np.float32))
