"""What every kind of ground truth answers, and the readers of ids and labels they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gqe.errors import InputError

Ids = NDArray[np.int64]


class Protocol(NamedTuple):
    """Which groups of a query's labelled items count as positives, and which are deleted from the ranking."""

    positive: tuple[int, ...]
    junk: tuple[int, ...]


class GroundTruth(ABC):
    """Which database items are relevant to which query.

    A ground truth sorts the items it knows about each query into groups, and has one or more protocols, each
    a choice of groups. Everything else in the database is a plain negative.

    Attributes:
        queries: number of queries m.
        n: database size, or None where any size will do.
    """

    protocols: ClassVar[Mapping[str, Protocol]]
    main_protocol: ClassVar[str]
    queries: int
    n: int | None

    @abstractmethod
    def groups(self, query: int) -> tuple[Ids, ...]:
        """Give the ids of each group of one query; the groups are disjoint."""

    def relevance(self, n: int | None = None) -> sparse.csr_array:
        """Give the items relevant to each query under the main protocol.

        Args:
            n: database size, needed where the ground truth was made without one.

        Returns:
            (m, n) sparse bool matrix.
        """
        return self._matrix(self.protocols[self.main_protocol].positive, n)

    def ignored(self, n: int | None = None) -> sparse.csr_array:
        """Give the items that count neither for nor against each query: (m, n) sparse bool matrix."""
        return self._matrix(self.protocols[self.main_protocol].junk, n)

    def _matrix(self, chosen: tuple[int, ...], n: int | None) -> sparse.csr_array:
        size = self.size(n)
        rows = [np.sort(np.concatenate([self.groups(i)[g] for g in chosen])) for i in range(self.queries)]
        starts = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
        columns = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        if len(columns) and columns.max() >= size:
            raise InputError(f"n: a database of {size} items has no item {columns.max()} of the ground truth")
        return sparse.csr_array((np.ones(len(columns), bool), columns, starts), shape=(self.queries, size))

    def size(self, n: int | None = None) -> int:
        """Give the database size: the ground truth's own, which `n` may repeat, or `n`."""
        if n is None:
            n = self.n
        if n is None:
            raise InputError("n: this ground truth does not know the database size; give n")
        if self.n is not None and n != self.n:
            raise InputError(f"n: {n} differs from the ground truth's database of {self.n} items")
        return n


def to_numpy(value: Any, name: str) -> NDArray[Any]:
    """Turn an array, a tensor on any device, or nested lists into a NumPy array; copy only where needed."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        try:
            return np.asarray(value.numpy())
        except TypeError:  # bfloat16, which NumPy does not have
            return np.asarray(value.float().numpy())
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}: not an array; are its rows of equal length?") from error


def whole_numbers(value: Any, name: str, remedy: str) -> Ids:
    """Read a flat list of whole numbers as int64."""
    if (
        isinstance(value, Iterable)
        and not hasattr(value, "__array__")
        and not isinstance(value, (str, bytes, list))
    ):
        value = list(value)
    array = to_numpy(value, name)
    if array.ndim != 1:
        raise InputError(f"{name}: expected a flat list, got shape {array.shape}; {remedy}")
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu" or (array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max):
        raise InputError(f"{name}: expected whole numbers, got {array.dtype}; {remedy}")
    return array.astype(np.int64)
