"""Diffusion worked out in advance, one column of the inverse for every item of the database.

Yang, Hinami, Matsui, Ly, Satoh, "Efficient image retrieval via decoupling diffusion into online and offline
processing", AAAI 2019.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from gqe.aggregators.base import MOST, positive_int
from gqe.embeddings import blocks
from gqe.neighbors import NeighborGraph
from gqe.neighbors.search import nearest
from gqe.rerank.affinity_graph import Array, normalised, padded, rows_of, sparse_bytes, stacked, subgraphs
from gqe.rerank.base import Ranking, ordered
from gqe.rerank.diffusion import WORK_BYTES, ConjugateGradientFilter


class OfflineDiffusion(ConjugateGradientFilter):
    """Ranks by the sum of the diffused columns of the query's first results, weighted by its signal.

    The column of an item is (1 - alpha) (I - alpha S)^-1 e, solved among the item and its nearest neighbours
    only. S is normalised on the whole graph before it is cut ("late truncation" in the paper).

    Args:
        k: how many neighbours of an item count for the mutual neighbour graph.
        kq: how many first results make up the query's signal.
        gamma: the exponent of the cosines.
        alpha: how far the signal travels, between 0 (not at all) and 1.
        iterations: how many steps of conjugate gradients at most.
        tolerance: relative length of the residual at which a column is done.
        truncation: among how many items, itself included, the signal of an item spreads; it keeps at most
            that many numbers. A graph that holds truncation - 1 neighbours spares `fit` a search for them.

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

    def __init__(
        self,
        *,
        k: int = 50,
        kq: int = 10,
        gamma: float = 3.0,
        alpha: float = 0.99,
        iterations: int = 20,
        tolerance: float = 1e-6,
        truncation: int = 1000,
    ) -> None:
        super().__init__(k=k, kq=kq, gamma=gamma, alpha=alpha, iterations=iterations, tolerance=tolerance)
        self.truncation = positive_int("truncation", truncation, most=MOST)

    def size(self) -> int:
        """How many bytes it keeps beyond the database and its graph."""
        return 0 if self._n is None else sparse_bytes(self._columns)

    def _prepare(self, database: Tensor, graph: NeighborGraph, weights: Any, device: torch.device) -> None:
        n, matrix = len(database), normalised(weights)
        wide = min(self.truncation, n)
        component = connected_components(matrix, directed=False)[1] if n else np.zeros(0, np.int32)
        counts, ids, values, residuals = [np.zeros(1, np.int64)], [], [], []
        for part in blocks(n, wide * (50 + 40 * self.k), WORK_BYTES):
            members = _nearest_and_itself(database, graph, part, wide, device)
            # Nothing spreads from one component to another: those items need not be looked at.
            members[component[members] != component[part, None]] = -1
            y = np.zeros(members.shape)
            y[:, 0] = 1
            found = self._solved(subgraphs(matrix, members), y, axis=1)
            # What was not reached is 0 and what lies below is an error of approximation: neither is kept.
            scores = found.x.astype(np.float32)
            kept = (scores > 0) & (members >= 0)
            counts.append(kept.sum(axis=1))
            ids.append(members[kept].astype(np.int32 if n < 2**31 else np.int64))
            values.append(scores[kept])
            residuals.append(found.residuals)
        ends = np.cumsum(np.concatenate(counts))
        self._columns = csr_array((n, n), dtype=np.float32)
        if n:
            ends = ends.astype(np.int32 if ends[-1] < 2**31 else np.int64)
            self._columns = csr_array((np.concatenate(values), np.concatenate(ids), ends), shape=(n, n))
        self._report(residuals, "columns")

    def _ranked(self, signal: Any, first: NeighborGraph) -> Ranking:
        rankings = []
        for part in blocks(len(first), 24 * self.kq * self.truncation):
            summed = _combined(signal[part], self._columns)
            rows = np.repeat(np.arange(summed.shape[0]), np.diff(summed.indptr))
            scored = padded(rows, summed.indices, summed.data, summed.shape[0])
            rankings.append(ordered(*scored, rows_of(first, part)))
        return stacked(rankings, first)


def _combined(signal: Any, columns: Any) -> Any:
    """The sums (b, n) of the columns of n items, weighted by signals (b, n), as a csr_array."""
    # Only the columns needed become float64, in which the order of summing does not show in the results.
    needed, at = np.unique(signal.indices, return_inverse=True)
    narrow = csr_array((signal.data, at, signal.indptr), shape=(signal.shape[0], len(needed)))
    return csr_array(narrow @ columns[needed].astype(np.float64))


def _nearest_and_itself(
    database: Tensor, graph: NeighborGraph, part: slice, wide: int, device: torch.device
) -> Array:
    """Items (b, wide): each item of a part of the database, then its nearest neighbours, -1 = missing."""
    own = np.arange(part.start, part.stop)
    if graph.k >= wide - 1:
        others = graph.ids[part, : wide - 1]
    else:
        others = nearest(database, database[part], wide - 1, torch.from_numpy(own), device=device).ids
    return np.concatenate([own[:, None], others], axis=1)
