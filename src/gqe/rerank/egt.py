"""Explore-exploit graph traversal: results in the order in which a walk over the graph reaches them.

Chang, Yu, Liu, Volkovs: "Explore-Exploit Graph Traversal for Image Retrieval", CVPR 2019.

A heap holds the items seen so far, each under the strongest edge that leads to it. It starts with the first
results of the query. Then, in turns:

- exploit: take the strongest item from the heap, and go on as long as the next one's edge is above t;
- explore: push the neighbours of all items taken in this turn.

Every turn takes at least one item, however weak its edge, so the walk leaves a neighbourhood that is used up.
With t above every similarity each item is explored as soon as it is taken (Prim's spanning tree); with a very
low t the walk goes layer by layer.

Where the paper leaves a choice:

- The query is no vertex: it is the start of the walk, and nothing leads back to it or to other queries.
- Among edges of equal similarity the item with the lower id goes first.
- An item seen again over a stronger edge is moved up; over a weaker one nothing happens.
- Edges go from an item to its neighbours, as the graph stores them. Walking them backwards too would double
  the memory; at k = 50 it moved the mAP on pictures and sentences by no more than 0.2.
- The default k is 50, not the paper's 250, more than a graph usually holds; one that holds fewer than k
  neighbours is used as it is.
"""

from __future__ import annotations

import heapq
import math
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators.base import MOST, positive_int
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph
from gqe.rerank.base import Reranker, order_results
from gqe.results import SearchResult

_Array = np.ndarray[Any, Any]


class Egt(Reranker):
    """Explore-exploit graph traversal (Chang et al., 2019).

    Args:
        k: how many neighbours of an item, and first results of a query, are followed.
        t: edges above it are taken without looking around first. It depends on the embeddings: choose it on
            a validation set.
        p: how many items the walk takes at most; the others follow in their old order.

    Example:
        >>> from gqe import knn
        >>> database = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.3], [0.6, 0.7]]))
        >>> first = knn(database, 3, queries=database[:1])
        >>> walk = Egt(k=2).fit(database, knn(database, 2), device=torch.device("cpu"))
        >>> walk.rerank(database[:1], first).ids.tolist()
        [[0, 1, 2]]
    """

    name = "egt"
    tuning_grid: ClassVar = {"k": (10, 25, 50), "t": (0.3, 0.42, 0.6, 0.8, 1.0)}

    def __init__(self, *, k: int = 50, t: float = 0.42, p: int = 5000) -> None:
        self.k = positive_int("k", k, most=MOST)
        self.t = _finite("t", t)
        self.p = positive_int("p", p, most=MOST)
        self._ids: _Array | None = None
        self._similarities: _Array | None = None

    @property
    def graph_k(self) -> int:
        """How many neighbours of every item are followed, where the graph holds as many."""
        return self.k

    def size(self) -> int:
        """Bytes kept beside the database and its graph: none."""
        return 0

    def fit(self, database: Tensor, graph: NeighborGraph, *, device: torch.device) -> Self:
        """Remember the graph; nothing is computed."""
        graph.check(len(database))
        self._ids, self._similarities = graph.ids[:, : self.k], graph.similarities[:, : self.k]
        return self

    def rerank(self, queries: Tensor, first: NeighborGraph) -> SearchResult:
        """Rank by the order of the walk; the scores only count it, from 1 down (see `Reranker.rerank`)."""
        self._check(queries, first, None if self._ids is None else len(self._ids))
        assert self._ids is not None
        m, width = first.ids.shape
        # Later items cannot change the order of the earlier ones: the walk may stop at what is asked for.
        most = min(self.p, width)
        ids = np.full((m, most), -1, dtype=np.int64)
        strongest = np.full(len(self._ids), -np.inf, dtype=np.float32)
        for row in range(m):
            start = first.ids[row, : self.k] >= 0
            taken = self._walk(
                first.ids[row, : self.k][start], first.similarities[row, : self.k][start], most, strongest
            )
            ids[row, : len(taken)] = taken
        scores = np.broadcast_to(1 - np.arange(most, dtype=np.float32) / max(most, 1), ids.shape)
        return order_results(ids, scores, first)

    def _walk(self, ids: _Array, similarities: _Array, most: int, strongest: _Array) -> list[int]:
        """The items in the order they are taken.

        Args:
            ids: (s,) where the walk starts.
            similarities: (s,) of the query to them.
            most: how many items to take.
            strongest: (n,) scratch, all -inf before and after: the strongest edge to each item seen so far,
                inf once the item is taken.
        """
        assert self._ids is not None
        assert self._similarities is not None
        heap: list[tuple[float, int]] = []
        seen = [self._push(ids, similarities, heap, strongest)]
        taken: list[int] = []
        while heap and len(taken) < most:
            turn = len(taken)
            while heap and len(taken) < most:
                similarity, item = -heap[0][0], heap[0][1]
                if similarity < strongest[item]:  # taken already, or moved up
                    heapq.heappop(heap)
                elif len(taken) == turn or similarity > self.t:
                    heapq.heappop(heap)
                    strongest[item] = np.inf
                    taken.append(item)
                else:
                    break
            if len(taken) < most:
                near, edges = self._ids[taken[turn:]].ravel(), self._similarities[taken[turn:]].ravel()
                seen.append(self._push(near, edges, heap, strongest))
        strongest[np.concatenate(seen)] = -np.inf
        return taken

    @staticmethod
    def _push(ids: _Array, similarities: _Array, heap: list[tuple[float, int]], strongest: _Array) -> _Array:
        """Put the items to which this is the strongest edge so far on the heap, and say which they are."""
        better = similarities > strongest[ids]  # a missing neighbour, -inf, never is
        ids, similarities = ids[better], similarities[better]
        np.maximum.at(strongest, ids, similarities)
        best = similarities == strongest[ids]  # of several new edges to one item
        ids = ids[best]
        for entry in zip((-similarities[best]).tolist(), ids.tolist(), strict=True):
            heapq.heappush(heap, entry)
        return ids


def _finite(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"{name}: expected a finite number, got {value!r}")
    return float(value)
