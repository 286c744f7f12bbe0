"""Expansion of a few queries in a huge database: only what lies within L hops of them is computed.

Results equal those of a `Hierarchy` over the whole database. What an aggregator asks about the database as a
whole (its background, its landscape) is measured on the same sample of items, which is computed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators import Aggregator
from gqe.aggregators.context import landscape, lists_sample, profiles, with_company
from gqe.contrast import told_apart
from gqe.hierarchy import Hierarchy
from gqe.neighbors import NeighborGraph

Ids = np.ndarray[Any, np.dtype[np.int64]]
# Neighbours of the database items of given numbers.
Finder = Callable[[Ids], NeighborGraph]


def expanded(
    stack: Sequence[Aggregator],
    table: Tensor,
    queries: Tensor,
    neighbors: NeighborGraph,
    find: Finder,
    *,
    device: torch.device,
    contrast: float = 0.0,
) -> Tensor:
    """(m, d) expanded queries.

    Args:
        stack: the aggregators, first level first.
        table: (n, d) checked embeddings, also memory-mapped.
        queries: (m, d).
        neighbors: (m, >= graph_k) their neighbours.
        find: neighbours of database items.
        device: where aggregators run.
        contrast: see `Hierarchy`; the neighbours are then at least `gqe.contrast.LAST`.
    """
    graph_k = max(aggregator.graph_k for aggregator in stack)
    described = any(aggregator.needs_context for aggregator in stack)
    known = _Lists(find, len(table), graph_k)
    sample = np.zeros(0, np.int64)
    if described:
        listed = lists_sample(len(table))
        usual = profiles(torch.from_numpy(known.similarities(listed)))
        sample = listed[with_company(usual).numpy()]

    first = neighbors.ids[:, :graph_k]
    inner = np.unique(np.concatenate([first[first >= 0].astype(np.int64), sample]))
    order, counts = inner, [len(inner)]  # of the items that level L - 1 is needed of, then L - 2, ...
    for _ in range(len(stack) - 1):
        lists = known.ids(order)
        order = np.concatenate([order, np.setdiff1d(np.unique(lists[lists >= 0]), order)])
        counts.append(len(order))
    local = Nearby(
        stack,
        table.index_select(0, torch.from_numpy(order).to(table.device)),
        known.graph(order, complete=described, inner=counts[-2] if len(counts) > 1 else 0),
        device=device,
    )
    local.counts = counts[::-1]
    if described:
        places = _places(order, len(table))
        local.sample = torch.from_numpy(places[sample])
        local._landscape = landscape(usual)
    ids = np.where(first >= 0, _places(order, len(table))[first.clip(min=0)], -1)
    near = NeighborGraph(ids, np.ascontiguousarray(neighbors.similarities[:, :graph_k]))
    return told_apart(local.expand(queries, near), table, neighbors, contrast)


class Nearby(Hierarchy):
    """A hierarchy over some items of a database, ordered so that level i is needed of the first `counts[i]`.

    Attributes:
        counts: how many items each level is needed of, level 0 first.
        sample: (s,) the items that show the background of the whole database.
    """

    counts: list[int]
    sample: Tensor

    def level(self, i: int) -> Tensor:
        """(counts[i], d) embeddings after the first i aggregators."""
        while len(self._levels) <= i:
            below, made = self._levels[-1], len(self._levels)
            rows = slice(0, self.counts[made])
            graph = NeighborGraph(self.graph.ids[rows], self.graph.similarities[rows])
            parts = self._aggregate(made - 1, below[rows], self.database[rows], graph)
            self._levels.append(torch.cat([part.embeddings for part in parts]).to(below.device))
        return self._levels[i]

    def _company(self) -> Tensor:
        return self.sample


class _Lists:
    """Neighbour lists of database items, each searched once."""

    def __init__(self, find: Finder, n: int, k: int) -> None:
        self._find, self._n, self._k = find, n, k
        self._row = np.full(n, -1, np.int64)
        self._ids: list[np.ndarray[Any, Any]] = []
        self._similarities: list[np.ndarray[Any, Any]] = []
        self._count = 0

    def _rows(self, items: Ids) -> Ids:
        new = np.unique(items[self._row[items] < 0])
        if len(new):
            found = self._find(new)
            self._ids.append(found.ids[:, : self._k].astype(np.int64))
            self._similarities.append(found.similarities[:, : self._k])
            self._row[new] = self._count + np.arange(len(new))
            self._count += len(new)
            self._ids = [np.concatenate(self._ids)]
            self._similarities = [np.concatenate(self._similarities)]
        return self._row[items]

    def ids(self, items: Ids) -> np.ndarray[Any, Any]:
        rows = self._rows(items)
        return self._ids[0][rows] if len(items) else np.zeros((0, self._k), np.int64)

    def similarities(self, items: Ids) -> np.ndarray[Any, Any]:
        rows = self._rows(items)
        return np.asarray(self._similarities[0][rows])

    def graph(self, order: Ids, *, complete: bool, inner: int) -> NeighborGraph:
        """Lists in local numbers: of all items, or of the first `inner` and empty ones behind."""
        wanted = order if complete else order[:inner]
        ids = np.full((len(order), self._k), -1, np.int64)
        similarities = np.full(ids.shape, -np.inf, np.float32)
        if len(wanted):
            found = self.ids(wanted)
            places = _places(order, self._n)
            ids[: len(wanted)] = np.where(found >= 0, places[found.clip(min=0)], -1)
            similarities[: len(wanted)] = self.similarities(wanted)
        return NeighborGraph(ids, similarities)


def _places(order: Ids, n: int) -> Ids:
    """(n,) the place of each item in the order, -1 where it is not in it."""
    places = np.full(n, -1, np.int64)
    places[order] = np.arange(len(order))
    return places
