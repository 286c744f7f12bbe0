"""Diffusion by conjugate gradients.

Iscen, Tolias, Avrithis, Furon, Chum, "Efficient diffusion on region manifolds: recovering small objects with
compact CNN representations", CVPR 2017.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators.base import MOST, positive, positive_int
from gqe.embeddings import blocks
from gqe.neighbors import NeighborGraph
from gqe.rerank.affinity_graph import (
    Array,
    GraphFilter,
    normalised,
    ranked,
    rows_of,
    sparse_bytes,
    stacked,
    subgraphs,
)
from gqe.rerank.base import MOST_ITERATIONS, Ranking, ordered

log = logging.getLogger(__name__)

# Arrays as large as the solution that are alive at once: x, r, p, A p, products, the float32 result.
_ARRAYS = 6
# Small parts of the graph are solved as many at once as fit into this.
WORK_BYTES = 256 << 20
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
    """A method that solves by conjugate gradients and says how well it did.

    Args:
        k: see `GraphFilter`, as kq, gamma and alpha.
        kq: see `GraphFilter`.
        gamma: see `GraphFilter`.
        alpha: see `GraphFilter`.
        iterations: how many steps of conjugate gradients at most.
        tolerance: a system is solved when the length of its residual is at most this times that of its
            signal.

    Attributes:
        unconverged: how many systems of the last call ended above the tolerance.
        residual: the worst relative residual among the systems of the last call.
    """

    def __init__(
        self,
        *,
        k: int = 50,
        kq: int = 10,
        gamma: float = 3.0,
        alpha: float = 0.99,
        iterations: int = 20,
        tolerance: float = 1e-6,
    ) -> None:
        super().__init__(k=k, kq=kq, gamma=gamma, alpha=alpha)
        self.iterations = positive_int("iterations", iterations, most=MOST_ITERATIONS)
        self.tolerance = positive("tolerance", tolerance)
        self.unconverged = 0
        self.residual = 0.0

    def _solved(self, matrix: Any, y: Array, *, axis: int, lengths: Array | None = None) -> Solution:
        """Diffuse y through S: (1 - alpha) (I - alpha S)^-1 y.

        Along axis 0, y (n, b) has one signal a column, all on the same S (n, n); along axis 1, y (b, t) has
        one a row, each on its own block of the diagonal of S (b * t, b * t).
        """

        def apply(x: Array) -> Array:
            spread: Array = matrix @ (x if axis == 0 else x.ravel())
            return x - self.alpha * spread.reshape(x.shape)

        found = conjugate_gradient(
            apply, y, axis=axis, iterations=self.iterations, tolerance=self.tolerance, lengths=lengths
        )
        return Solution((1 - self.alpha) * found.x, found.residuals)

    def _report(self, residuals: list[Array], what: str) -> None:
        """Keep how well the systems were solved, and warn where they were not."""
        reached = np.concatenate([*residuals, np.zeros(1)])
        self.unconverged = int((reached > self.tolerance).sum())
        self.residual = float(reached.max())
        if self.unconverged:
            log.warning(
                "%s: %d of %d %s did not converge to %g in %d iterations, the worst residual is %.2g;"
                " raise iterations for a closer solution",
                *(self.name, self.unconverged, len(reached) - 1, what),
                *(self.tolerance, self.iterations, self.residual),
            )


class Diffusion(ConjugateGradientFilter):
    """Ranks by f = (1 - alpha) (I - alpha S)^-1 y, solved for each query when it comes.

    Args:
        k: how many neighbours of an item count for the mutual neighbour graph.
        kq: how many first results make up the query's signal.
        gamma: the exponent of the cosines.
        alpha: how far the signal travels, between 0 (not at all) and 1.
        iterations: how many steps of conjugate gradients at most.
        tolerance: relative length of the residual at which a query is done.
        truncation: diffuse among this many first results of the query only, on their part of the graph,
            normalised anew; None for the whole database.

    Example:
        >>> from gqe import knn
        >>> from gqe.embeddings import as_table
        >>> table = as_table([[1.0, 0.0], [1.0, 0.5], [0.5, 1.0], [0.0, 1.0]])
        >>> method = Diffusion(k=2, kq=1, alpha=0.5).fit(table, knn(table, 2), device=table.device)
        >>> method.rerank(table[:1], knn(table, 4, queries=table[:1])).ids.tolist()
        [[0, 1, 2, 3]]
    """

    name = "diffusion"

    def __init__(
        self,
        *,
        k: int = 50,
        kq: int = 10,
        gamma: float = 3.0,
        alpha: float = 0.99,
        iterations: int = 20,
        tolerance: float = 1e-6,
        truncation: int | None = None,
    ) -> None:
        super().__init__(k=k, kq=kq, gamma=gamma, alpha=alpha, iterations=iterations, tolerance=tolerance)
        self.truncation = None if truncation is None else positive_int("truncation", truncation, most=MOST)

    @property
    def num_candidates(self) -> int:
        """How many first results of a query are looked at."""
        return max(self.kq, self.truncation or 0)

    def size(self) -> int:
        """How many bytes it keeps beyond the database and its graph."""
        return 0 if self._n is None else sparse_bytes(self._matrix)

    def _prepare(self, database: Tensor, graph: NeighborGraph, weights: Any, device: torch.device) -> None:
        # A part of the graph is normalised by its own degrees, so then the affinities themselves are kept.
        self._matrix = normalised(weights) if self.truncation is None else weights

    def _ranked(self, signal: Any, first: NeighborGraph) -> Ranking:
        if self.truncation is None:
            return self._over_all(signal, first)
        return self._over_first(signal, first, self.truncation)

    def _over_all(self, signal: Any, first: NeighborGraph) -> Ranking:
        rankings, residuals = [], []
        for part in blocks(len(first), 8 * _ARRAYS * signal.shape[1], DENSE_BYTES):
            found = self._solved(self._matrix, signal[part].toarray().T.copy(), axis=0)
            rankings.append(ranked(found.x.T, rows_of(first, part)))
            residuals.append(found.residuals)
        self._report(residuals, "queries")
        return stacked(rankings, first)

    def _over_first(self, signal: Any, first: NeighborGraph, truncation: int) -> Ranking:
        ids = first.ids[:, :truncation]
        rankings, residuals = [], []
        for part in blocks(len(first), ids.shape[1] * (8 * _ARRAYS + 40 * self.k), WORK_BYTES):
            members = ids[part]
            y = np.zeros(members.shape)
            y[:, : self.kq] = np.where(members >= 0, first.similarities[part, :truncation], 0)[:, : self.kq]
            y = np.maximum(y, 0) ** self.gamma
            found = self._solved(normalised(subgraphs(self._matrix, members)), y, axis=1)
            scores = found.x.astype(np.float32)
            rankings.append(ordered(np.where(scores > 0, members, -1), scores, rows_of(first, part)))
            residuals.append(found.residuals)
        self._report(residuals, "queries")
        return stacked(rankings, first)
