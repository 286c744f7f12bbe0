"""Diffusion by a few eigenvectors, and conjugate gradients for what they leave.

Iscen, Avrithis, Tolias, Furon, Chum, "Hybrid diffusion: spectral-temporal graph filtering for manifold
ranking", ACCV 2018.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators.base import MOST, positive_int
from gqe.embeddings import blocks
from gqe.neighbors import NeighborGraph
from gqe.rerank.affinity_graph import normalised, ranked, rows_of, sparse_bytes, stacked
from gqe.rerank.base import Ranking
from gqe.rerank.diffusion import DENSE_BYTES, ConjugateGradientFilter
from gqe.rerank.spectral import Spectrum, transfer

# Arrays (n,) of float64 a query that are alive at once: those of conjugate gradients and three signals.
_ARRAYS = 10
# The length of S v - x v at which an eigenpair is done.
_EIGENPAIRS = 1e-4


class HybridDiffusion(ConjugateGradientFilter):
    """Ranks by f = U h(Lambda) U^T y + h(S) (y - U U^T y), h(x) = (1 - alpha) / (1 - alpha x).

    The first term uses the leading eigenpairs of S, the second is solved by conjugate gradients. What slows
    conjugate gradients down are eigenvalues near 1, and those are in the first term: a larger rank takes more
    memory and fewer iterations. Either alone is a limit: all eigenpairs leave nothing to solve, and none
    leaves plain diffusion. The paper writes the second term with S2 = S - U Lambda U^T, as
    h(S2) y - h(0) U U^T y; that is the same, since S and S2 agree on what is orthogonal to U, and here S
    stays sparse.

    Args:
        k: how many neighbours of an item count for the mutual neighbour graph.
        kq: how many first results make up the query's signal.
        gamma: the exponent of the cosines.
        alpha: how far the signal travels, between 0 (not at all) and 1.
        iterations: how many steps of conjugate gradients at most.
        tolerance: length of the residual over that of the query's signal at which a query is done.
        rank: how many eigenpairs; the leading ones of all connected components count as one.

    Example:
        >>> from gqe import knn
        >>> from gqe.embeddings import as_table
        >>> table = as_table([[1.0, 0.0], [1.0, 0.5], [0.5, 1.0], [0.0, 1.0]])
        >>> method = HybridDiffusion(k=2, kq=1, alpha=0.5, rank=1)
        >>> method = method.fit(table, knn(table, 2), device=table.device)
        >>> method.rerank(table[:1], knn(table, 4, queries=table[:1])).ids.tolist()
        [[0, 1, 2, 3]]
    """

    name = "hybrid-diffusion"
    tuning_grid: ClassVar = {"k": (10, 20, 50), "kq": (3, 10), "alpha": (0.95, 0.99)}

    def __init__(
        self,
        *,
        k: int = 50,
        kq: int = 10,
        gamma: float = 3.0,
        alpha: float = 0.99,
        iterations: int = 20,
        tolerance: float = 1e-6,
        rank: int = 200,
    ) -> None:
        super().__init__(k=k, kq=kq, gamma=gamma, alpha=alpha, iterations=iterations, tolerance=tolerance)
        self.rank = positive_int("rank", rank, most=MOST)

    def size(self) -> int:
        """How many bytes it keeps beyond the database and its graph."""
        return 0 if self._n is None else sparse_bytes(self._matrix) + self._spectrum.size()

    def _prepare(self, database: Tensor, graph: NeighborGraph, weights: Any, device: torch.device) -> None:
        self._matrix = normalised(weights)
        self._spectrum = Spectrum(self._matrix, self.rank, _EIGENPAIRS, device)

    def _ranked(self, signal: Any, first: NeighborGraph) -> Ranking:
        rankings, residuals = [], []
        for part in blocks(len(first), 8 * _ARRAYS * signal.shape[1], DENSE_BYTES):
            y = signal[part]
            dense = y.toarray()
            smooth = self._spectrum.filtered(y, transfer(self.alpha))
            rest = dense - self._spectrum.filtered(y, np.ones_like)
            lengths = np.sqrt(np.sum(dense**2, axis=1))
            found = self._solved(self._matrix, rest.T.copy(), axis=0, lengths=lengths)
            rankings.append(ranked(smooth + found.x.T, rows_of(first, part)))
            residuals.append(found.residuals)
        self._report(residuals, "queries")
        return stacked(rankings, first)
