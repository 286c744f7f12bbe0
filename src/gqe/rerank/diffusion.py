"""Diffusion by conjugate gradients, solved per query or in advance for every item of the database.

Iscen, Tolias, Avrithis, Furon, Chum, "Efficient diffusion on region manifolds: recovering small objects with
compact CNN representations", CVPR 2017.

Yang, Hinami, Matsui, Ly, Satoh, "Efficient image retrieval via decoupling diffusion into online and offline
processing", AAAI 2019.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from gqe.aggregators.base import MOST, positive, positive_int
from gqe.embeddings import blocks
from gqe.neighbors import NeighborGraph
from gqe.neighbors.search import nearest
from gqe.rerank.affinity_graph import (
    BLOCK_BYTES,
    Array,
    GraphFilter,
    cut_subgraphs,
    normalize_by_degree,
    pad_rows,
    rank_scores,
    sparse_bytes,
)
from gqe.rerank.base import MOST_ITERATIONS, order_results
from gqe.results import SearchResult

log = logging.getLogger(__name__)

# Arrays as large as the solution that are alive at once: x, r, p, A p, products, the float32 result.
_ARRAYS = 6
# Small parts of the graph are solved as many at once as fit into this.
_WORK_BYTES = 256 << 20
# So are queries on the whole graph, some twenty at 100,000 items: fewer read the graph too often, and with
# more the processor's cache no longer holds what a product reads (at 64 it took 1.7 times as long).
DENSE_BYTES = 96 << 20


class Solution(NamedTuple):
    """What conjugate gradients found: x like y, and the length of each residual over that of its y."""

    x: Array
    residuals: Array


def conjugate_gradient(
    apply: Callable[[Array], Array],
    y: Array,
    *,
    axis: int,
    iterations: int,
    tolerance: float,
    lengths: Array | None = None,
) -> Solution:
    """Solve A x = y for many y at once; each stops by itself, so its solution does not depend on the others.

    Args:
        apply: gives A x for an array like y; A is symmetric and positive definite.
        y: float64, one system along `axis`, another for each place of the other axis.
        axis: 0 or 1.
        iterations: how many steps at most.
        tolerance: a system is solved when the length of its residual is at most this times that of y.
        lengths: what to measure the residuals by instead of the lengths of y.

    Returns:
        Solution; the residuals have one value a system.

    Example:
        >>> found = conjugate_gradient(lambda x: 2 * x, np.ones((3, 1)), axis=0, iterations=5, tolerance=1e-9)
        >>> found.x.ravel().tolist()
        [0.5, 0.5, 0.5]
    """
    x, r, p = np.zeros_like(y), y.copy(), y.copy()
    left = np.sum(r * r, axis=axis, keepdims=True)
    whole = left.copy() if lengths is None else np.expand_dims(lengths**2, axis)
    goal = tolerance**2 * whole
    for _ in range(iterations):
        active = left > goal
        if not active.any():
            break
        ap = apply(p)
        energy = np.sum(p * ap, axis=axis, keepdims=True)
        step = np.divide(left, energy, out=np.zeros_like(left), where=active & (energy > 0))
        x += step * p
        r -= step * ap
        now = np.sum(r * r, axis=axis, keepdims=True)
        p *= np.divide(now, left, out=np.zeros_like(left), where=active)
        p += r
        left = now
    share = np.divide(left, whole, out=np.zeros_like(left), where=whole > 0)
    return Solution(x, np.sqrt(share).squeeze(axis))


class ConjugateGradientFilter(GraphFilter):
    """A method that solves by conjugate gradients and reports how well it did.

    Args:
        iterations: how many steps of conjugate gradients at most.
        tolerance: a system is solved when the length of its residual is at most this times that of its
            signal.
        **shared: k, kq, gamma and alpha, see `GraphFilter`.

    Attributes:
        unconverged: how many systems of the last call ended above the tolerance.
        residual: the worst relative residual among the systems of the last call.
    """

    def __init__(self, *, iterations: int = 20, tolerance: float = 1e-6, **shared: Any) -> None:
        super().__init__(**shared)
        self.iterations = positive_int("iterations", iterations, most=MOST_ITERATIONS)
        self.tolerance = positive("tolerance", tolerance)
        self.unconverged = 0
        self.residual = 0.0
        self._residuals: list[Array] = []

    def rerank(self, queries: Tensor, first: NeighborGraph) -> SearchResult:
        """Reorder the first results (see `Reranker.rerank`)."""
        ranking = super().rerank(queries, first)
        self._report("queries")
        return ranking

    def _diffuse(self, matrix: Any, y: Array, *, axis: int, lengths: Array | None = None) -> Array:
        """(1 - alpha) (I - alpha S)^-1 y, an array like y.

        Along axis 0, y (n, b) has one signal a column, all on the same S (n, n); along axis 1, y (b, t) has
        one a row, each on its own block of the diagonal of S (b * t, b * t).
        """

        def apply(x: Array) -> Array:
            spread: Array = matrix @ (x if axis == 0 else x.ravel())
            return x - self.alpha * spread.reshape(x.shape)

        found = conjugate_gradient(
            apply, y, axis=axis, iterations=self.iterations, tolerance=self.tolerance, lengths=lengths
        )
        self._residuals.append(found.residuals)
        return (1 - self.alpha) * found.x

    def _report(self, what: str) -> None:
        """Keep how well the systems since the last report were solved, and warn where they were not."""
        if not self._residuals:
            return
        reached = np.concatenate(self._residuals)
        self._residuals = []
        self.unconverged = int((reached > self.tolerance).sum())
        self.residual = float(reached.max())
        if self.unconverged:
            log.warning(
                "%s: %d of %d %s did not converge to %g in %d iterations, the worst residual is %.2g;"
                " raise iterations for a closer solution",
                *(self.name, self.unconverged, len(reached), what),
                *(self.tolerance, self.iterations, self.residual),
            )


class Diffusion(ConjugateGradientFilter):
    """Ranks by f = (1 - alpha) (I - alpha S)^-1 y, solved for each query.

    Args:
        truncation: diffuse among this many first results of the query only, on their part of the graph,
            normalised anew; None for the whole database.
        **shared: k, kq, gamma, alpha, iterations and tolerance, see `ConjugateGradientFilter`.

    Example:
        >>> from gqe import knn
        >>> from gqe.embeddings import as_table
        >>> table = as_table([[1.0, 0.0], [1.0, 0.5], [0.5, 1.0], [0.0, 1.0]])
        >>> method = Diffusion(k=2, kq=1, alpha=0.5).fit(table, knn(table, 2), device=table.device)
        >>> method.rerank(table[:1], knn(table, 4, queries=table[:1])).ids.tolist()
        [[0, 1, 2, 3]]
    """

    def __init__(self, *, truncation: int | None = None, **shared: Any) -> None:
        super().__init__(**shared)
        self.truncation = None if truncation is None else positive_int("truncation", truncation, most=MOST)

    @property
    def num_candidates(self) -> int:
        """How many first results of a query are read."""
        return max(self.kq, self.truncation or 0)

    def size(self) -> int:
        """See `Reranker`."""
        return 0 if self._n is None else sparse_bytes(self._matrix)

    def _prepare(self, database: Tensor, graph: NeighborGraph, weights: Any, device: torch.device) -> None:
        # A part of the graph is normalised by its own degrees, so then the affinities themselves are kept.
        self._matrix = normalize_by_degree(weights) if self.truncation is None else weights

    def _memory(self, n: int, width: int) -> tuple[int, int]:
        if self.truncation is None:
            return 8 * _ARRAYS * n, DENSE_BYTES
        return min(width, self.truncation) * (8 * _ARRAYS + 40 * self.k), _WORK_BYTES

    def _rank(self, signal: Any, first: NeighborGraph) -> SearchResult:
        if self.truncation is None:
            return rank_scores(self._diffuse(self._matrix, signal.toarray().T.copy(), axis=0).T, first)
        members = first.ids[:, : self.truncation]
        y = np.zeros(members.shape)
        y[:, : self.kq] = np.where(members >= 0, first.similarities[:, : self.truncation], 0)[:, : self.kq]
        y = np.maximum(y, 0) ** self.gamma
        found = self._diffuse(normalize_by_degree(cut_subgraphs(self._matrix, members)), y, axis=1)
        scores = found.astype(np.float32)
        return order_results(np.where(scores > 0, members, -1), scores, first)


class OfflineDiffusion(ConjugateGradientFilter):
    """Ranks by the sum of the diffused columns of the query's first results, weighted by its signal.

    The column of an item is (1 - alpha) (I - alpha S)^-1 e, solved among the item and its nearest neighbours
    only. S is normalised on the whole graph before it is cut ("late truncation" in the paper).

    Args:
        truncation: among how many items, itself included, the signal of an item spreads; it keeps at most
            that many numbers. A graph that holds truncation - 1 neighbours spares `fit` a search for them.
        **shared: k, kq, gamma, alpha, iterations and tolerance, see `ConjugateGradientFilter`.

    Attributes:
        unconverged: how many columns ended above the tolerance.
        residual: the worst relative residual of a column.

    Example:
        >>> from gqe import knn
        >>> from gqe.embeddings import as_table
        >>> table = as_table([[1.0, 0.0], [1.0, 0.5], [0.5, 1.0], [0.0, 1.0]])
        >>> method = OfflineDiffusion(k=2, kq=1, alpha=0.5).fit(table, knn(table, 2), device=table.device)
        >>> method.rerank(table[:1], knn(table, 4, queries=table[:1])).ids.tolist()
        [[0, 1, 2, 3]]
    """

    name = "offline-diffusion"
    tuning_grid: ClassVar = {"k": (10, 20, 50), "kq": (3, 10), "alpha": (0.8, 0.95, 0.99)}

    def __init__(self, *, truncation: int = 1000, **shared: Any) -> None:
        super().__init__(**shared)
        self.truncation = positive_int("truncation", truncation, most=MOST)

    def size(self) -> int:
        """See `Reranker`."""
        return 0 if self._n is None else sparse_bytes(self._columns)

    def _prepare(self, database: Tensor, graph: NeighborGraph, weights: Any, device: torch.device) -> None:
        n, matrix = len(database), normalize_by_degree(weights)
        width = min(self.truncation, n)
        component = connected_components(matrix, directed=False)[1] if n else np.zeros(0, np.int32)
        counts, ids, values = [np.zeros(1, np.int64)], [], []
        for part in blocks(n, width * (50 + 40 * self.k), _WORK_BYTES):
            members = _nearest_and_itself(database, graph, part, width, device)
            # Nothing spreads from one component to another: those items need not be looked at.
            members[component[members] != component[part, None]] = -1
            y = np.zeros(members.shape)
            y[:, 0] = 1
            # What was not reached is 0 and what lies below is an error of approximation: neither is kept.
            scores = self._diffuse(cut_subgraphs(matrix, members), y, axis=1).astype(np.float32)
            kept = (scores > 0) & (members >= 0)
            counts.append(kept.sum(axis=1))
            ids.append(members[kept].astype(np.int32 if n < 2**31 else np.int64))
            values.append(scores[kept])
        ends = np.cumsum(np.concatenate(counts))
        self._columns = csr_array((n, n), dtype=np.float32)
        if n:
            ends = ends.astype(np.int32 if ends[-1] < 2**31 else np.int64)
            self._columns = csr_array((np.concatenate(values), np.concatenate(ids), ends), shape=(n, n))
        self._report("columns")

    def _memory(self, n: int, width: int) -> tuple[int, int]:
        return 24 * self.kq * self.truncation, BLOCK_BYTES

    def _rank(self, signal: Any, first: NeighborGraph) -> SearchResult:
        # Only the columns needed become float64, in which the order of summing does not show in the results.
        needed, at = np.unique(signal.indices, return_inverse=True)
        narrow = csr_array((signal.data, at, signal.indptr), shape=(signal.shape[0], len(needed)))
        summed = csr_array(narrow @ self._columns[needed].astype(np.float64))
        rows = np.repeat(np.arange(summed.shape[0]), np.diff(summed.indptr))
        return order_results(*pad_rows(rows, summed.indices, summed.data, summed.shape[0]), first)


def _nearest_and_itself(
    database: Tensor, graph: NeighborGraph, part: slice, width: int, device: torch.device
) -> Array:
    """Items (b, width): each item of a part of the database, then its nearest neighbours, -1 = missing."""
    own = np.arange(part.start, part.stop)
    if graph.k >= width - 1:
        others = graph.ids[part, : width - 1]
    else:
        others = nearest(database, database[part], width - 1, torch.from_numpy(own), device=device).ids
    return np.concatenate([own[:, None], others], axis=1)
