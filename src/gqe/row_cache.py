"""Rows that are computed when they are first read, and kept while there is room."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor


class RowCache:
    """Computed rows of one or several tables of n rows. Threads may share it.

    Args:
        n: how many rows there can be.
        max_bytes: when the rows take more, all are dropped before more are computed.
    """

    def __init__(self, n: int, max_bytes: int) -> None:
        self._places = torch.full((n,), -1, dtype=torch.int64)
        self._max_bytes = max_bytes
        self._tables: tuple[Tensor, ...] = ()
        self._count = 0  # of kept rows; there is room for more
        self._lock = threading.Lock()

    def rows(self, ids: Tensor, compute: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Rows (p, ...) of each table.

        Args:
            ids: (p,) in the host's memory.
            compute: gives rows of each table, of ids that rise.
        """
        with self._lock:
            missing = torch.unique(ids[self._places[ids] < 0])
            if len(missing) or not self._tables:
                row_bytes = sum(table[:1].nbytes for table in self._tables)
                if self._count * row_bytes > self._max_bytes:
                    self._places.fill_(-1)
                    self._count = 0
                    missing = torch.unique(ids)
                self._append(compute(missing))
                self._places[missing] = torch.arange(self._count - len(missing), self._count)
            places = self._places[ids]
            return tuple(table[places] for table in self._tables)

    def _append(self, rows: tuple[Tensor, ...]) -> None:
        """Put rows behind those that are kept; room doubles, so that they are seldom moved."""
        if not self._tables:
            self._tables = tuple(part.new_empty((0, *part.shape[1:])) for part in rows)
        start, end = self._count, self._count + len(rows[0])
        if end > len(self._tables[0]):
            room = max(end, 2 * start)
            self._tables = tuple(
                torch.cat([table[:start], table.new_empty((room - start, *table.shape[1:]))])
                for table in self._tables
            )
        for table, part in zip(self._tables, rows, strict=True):
            table[start:end] = part
        self._count = end
