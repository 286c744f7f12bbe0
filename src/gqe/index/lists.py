"""The stored neighbour lists, and how they follow when items come and go.

A list holds a few neighbours more than the aggregators listen to. A removed neighbour is struck out and the
next one moves up; only a list that has become too short is searched for again. What stands in a list is
always the exact beginning of the item's true list (if the graph was built exactly): a new item is entered
only where it is nearer than the last one known, since behind that others may lie that the list does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import blocks
from gqe.index.rows import Rows
from gqe.index.tables import Table
from gqe.neighbors.candidates import inner_products
from gqe.neighbors.graph import NeighborGraph
from gqe.neighbors.rescoring import ROUNDING, cosines

# Neighbours kept beyond those that are listened to, for removals to use up.
SPARE_NEIGHBORS = 8
# Items compared with all new ones at a time: at most so many, and so many bytes of similarities.
_BLOCK = 4096
_SCORE_BYTES = 64 << 20

Array = np.ndarray[Any, Any]


class Lists(NamedTuple):
    """Neighbour lists of some items: ids (p, width) int32, -1 = none, and falling similarities (p, width)."""

    ids: Array
    similarities: Array

    @property
    def lengths(self) -> Array:
        """(p,) how many neighbours each list holds."""
        return np.asarray((self.ids >= 0).sum(axis=1))


class StoredGraph:
    """The neighbour lists of all items on disk, as the hierarchy reads them.

    Args:
        rows: where they are.
        width: neighbours in a list.
    """

    def __init__(self, rows: Rows, width: int) -> None:
        self.rows = rows
        self.width = width
        self.recall: float | None = None

    def take(self, numbers: Array) -> Lists:
        """The lists of items (p,)."""
        return _unpacked(self.rows.take(numbers), self.width)

    def block(self, start: int, stop: int) -> Lists:
        """The lists of consecutive items."""
        return _unpacked(self.rows.block(start, stop), self.width)

    def neighbors(self, numbers: Array, k: int) -> NeighborGraph:
        """The first k neighbours of items (p,)."""
        lists = self.take(numbers)
        return NeighborGraph(lists.ids[:, :k], lists.similarities[:, :k])

    @property
    def ids(self) -> _Column:
        """(n, width) ids, to be indexed by item numbers of any shape."""
        return _Column(self, 0)

    @property
    def similarities(self) -> _Column:
        """(n, width) similarities, to be indexed by item numbers of any shape."""
        return _Column(self, 1)


@dataclass(frozen=True)
class _Column:
    graph: StoredGraph
    place: int

    def __getitem__(self, numbers: Any) -> Array:
        asked = np.asarray(numbers)
        found: Array = self.graph.take(asked.reshape(-1))[self.place]
        return found.reshape(*asked.shape, self.graph.width)


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


class ListChange(NamedTuple):
    """What a change did to a block of lists.

    Attributes:
        rows: (p,) numbers of the items whose lists are different now.
        lists: their new lists.
        changed_at: (p,) the first place that differs.
        too_short: (q,) numbers of items whose lists must be searched for again.
    """

    rows: Array
    lists: Lists
    changed_at: Array
    too_short: Array


class ListUpdate:
    """Brings stored lists up to date with removed and new items.

    Args:
        table: all embeddings, new ones included.
        graph: the lists before the change.
        alive_before: (rows before,) bool, the items before the change.
        alive: (rows,) bool, the items after it.
        needed: how many neighbours every list must hold, where there are so many items.
    """

    def __init__(
        self, table: Table, graph: StoredGraph, alive_before: Array, alive: Array, needed: int
    ) -> None:
        self.table = table
        self.graph = graph
        self.alive = alive
        self.rows_before = len(alive_before)
        self.items_before = int(alive_before.sum())
        self.new = np.flatnonzero(alive[self.rows_before :]) + self.rows_before
        self.gone = alive_before & ~alive[: self.rows_before]
        self.needed = min(needed, max(0, int(alive.sum()) - 1))
        self._new_vectors = table.index_select(0, torch.from_numpy(self.new)).to(torch.float32)

    def blocks(self) -> list[tuple[int, int]]:
        """Consecutive items to be updated at a time."""
        step = max(16, min(_BLOCK, _SCORE_BYTES // (4 * max(1, len(self.new)))))
        return [(at, min(at + step, self.rows_before)) for at in range(0, self.rows_before, step)]

    def block(self, start: int, stop: int) -> ListChange:
        """Update the lists of consecutive items that were there before."""
        here = np.flatnonzero(self.alive[start:stop])
        rows = here + start
        lists = self.graph.block(start, stop)
        ids, similarities = lists.ids[here], lists.similarities[here]
        lengths = (ids >= 0).sum(axis=1)
        complete = lengths >= self.items_before - 1
        changed_at = np.full(len(rows), ids.shape[1])
        if self.gone.any():
            self._strike(ids, similarities, changed_at)
        searched = np.zeros(len(rows), dtype=bool)
        if len(self.new) and len(rows):
            vectors = self.table[start:stop]
            vectors = vectors if len(here) == stop - start else vectors[torch.from_numpy(here)]
            searched = self._enter(vectors.to(torch.float32), ids, similarities, changed_at, complete)
        searched |= (ids >= 0).sum(axis=1) < self.needed
        kept = (changed_at < ids.shape[1]) & ~searched
        return ListChange(rows[kept], Lists(ids[kept], similarities[kept]), changed_at[kept], rows[searched])

    def _strike(self, ids: Array, similarities: Array, changed_at: Array) -> None:
        """Remove items that are gone; the others move up. In place."""
        struck = self.gone[ids.clip(min=0)] & (ids >= 0)
        some = np.flatnonzero(struck.any(axis=1))
        order = np.argsort(struck[some], axis=1, kind="stable")
        moved_ids = np.where(struck[some], -1, ids[some])
        moved_similarities = np.where(struck[some], np.float32(-np.inf), similarities[some])
        ids[some] = np.take_along_axis(moved_ids, order, axis=1)
        similarities[some] = np.take_along_axis(moved_similarities, order, axis=1)
        changed_at[some] = struck[some].argmax(axis=1)

    def _enter(
        self, vectors: Tensor, ids: Array, similarities: Array, changed_at: Array, complete: Array
    ) -> Array:
        """Enter new items into lists of vectors (p, d), in place; returns (p,) which lists to search anew."""
        width = ids.shape[1]
        lengths = (ids >= 0).sum(axis=1)
        last = np.where(
            complete | (lengths == 0),
            -np.inf,
            np.take_along_axis(similarities, np.maximum(lengths - 1, 0)[:, None], axis=1)[:, 0],
        ).astype(np.float32)
        # Nothing known and more items than known: nothing certain can be entered.
        unknown = ~complete & (lengths == 0)
        bounds = torch.from_numpy(last)
        near = inner_products(vectors, self._new_vectors) >= (bounds - ROUNDING)[:, None]
        counts = near.sum(dim=1).numpy()
        unknown |= counts > 2 * width  # so many that a search is simpler
        near[torch.from_numpy(unknown)] = False
        which, place = (found.numpy() for found in torch.nonzero(near, as_tuple=True))
        if not len(which):
            return np.asarray(unknown)
        numbers = self.new[place]
        scores = self._cosines(vectors, which, numbers)
        # Of items as near as the last one known, others that are not known come first.
        certain = (scores > last[which]) | complete[which]
        which, numbers, scores = which[certain], numbers[certain], scores[certain]
        some, inverse, counts = np.unique(which, return_inverse=True, return_counts=True)
        if not len(some):
            return np.asarray(unknown)
        column = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        more_ids = np.full((len(some), counts.max()), -1, dtype=ids.dtype)
        more_similarities = np.full(more_ids.shape, -np.inf, dtype=np.float32)
        more_ids[inverse, column], more_similarities[inverse, column] = numbers, scores
        # New items have higher numbers than all others, so a stable sort leaves ties by rising number.
        joined_ids = np.concatenate([ids[some], more_ids], axis=1)
        joined = np.concatenate([similarities[some], more_similarities], axis=1)
        order = np.argsort(-joined, axis=1, kind="stable")[:, :width]
        before = ids[some]
        ids[some] = np.take_along_axis(joined_ids, order, axis=1)
        similarities[some] = np.take_along_axis(joined, order, axis=1)
        different = ids[some] != before
        first = np.where(different.any(axis=1), different.argmax(axis=1), width)
        changed_at[some] = np.minimum(changed_at[some], first)
        return np.asarray(unknown)

    def _cosines(self, vectors: Tensor, which: Array, numbers: Array) -> Array:
        """(p,) similarities of pairs, bit for bit those that a search for neighbours would give."""
        result = np.empty(len(which), dtype=np.float32)
        for part in blocks(len(which), vectors.shape[1] * 4):
            others = torch.from_numpy(numbers[part])[:, None]
            result[part] = cosines(vectors[which[part]], cast(Tensor, self.table), others)[:, 0].numpy()
        return result
