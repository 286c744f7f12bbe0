"""Diffusion by the leading eigenvectors of the graph, alone or with conjugate gradients for what they leave.

Iscen, Avrithis, Tolias, Furon, Chum, "Fast spectral ranking for similarity search", CVPR 2018.

Iscen, Avrithis, Tolias, Furon, Chum, "Hybrid diffusion: spectral-temporal graph filtering for manifold
ranking", ACCV 2018.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from gqe.aggregators.base import MOST, positive, positive_int
from gqe.neighbors import NeighborGraph
from gqe.rerank.affinity_graph import (
    BLOCK_BYTES,
    Array,
    GraphFilter,
    compact,
    normalize_by_degree,
    rank_scores,
    sparse_bytes,
)
from gqe.rerank.diffusion import DENSE_BYTES, ConjugateGradientFilter
from gqe.rerank.leading_eigenpairs import leading_eigenpairs
from gqe.results import SearchResult

log = logging.getLogger(__name__)

# Components of up to this many items are decomposed as dense matrices and kept in one sparse table.
_SMALL = 512
# Of hybrid diffusion: arrays (n,) of float64 per query that are alive at once (those of conjugate gradients
# and three signals), and the length of S v - x v at which an eigenpair is done.
_HYBRID_ARRAYS = 10
_HYBRID_TOLERANCE = 1e-4


class Component(NamedTuple):
    """Eigenpairs of one connected component: items (s,), eigenvalues (r,), falling, and vectors (s, r)."""

    members: Array
    values: Array
    vectors: Array


class Spectrum:
    """The leading eigenpairs of S, each vector zero outside of its connected component.

    The eigenvalue 1 comes back once for every component, and a solver that starts from one vector may miss
    some of its vectors; component by component it is simple. The leading vector of every component is always
    kept, and all of them together count as one of `rank`: they cost one number an item, and without its own a
    component could not be ranked at all. The other vectors are the ones with the largest eigenvalues.

    Args:
        matrix: S (n, n), normalised.
        rank: how many eigenpairs.
        tolerance: the length of S v - x v at which an eigenpair of a large component is done.
        device: where to compute and to keep the vectors of large components.
    """

    def __init__(self, matrix: Any, rank: int, tolerance: float, device: torch.device) -> None:
        self.n = matrix.shape[0]
        parts = _keep_leading(_decompose(matrix, rank, tolerance, device), rank)
        self.rank = sum(len(part.values) for part in parts)
        self.large = [
            (part.members, part.values, torch.from_numpy(part.vectors).to(device))
            for part in parts
            if len(part.members) > _SMALL
        ]
        self.small_values, self.small = _join_vectors(
            [part for part in parts if len(part.members) <= _SMALL], self.n
        )

    def filter(self, signal: Any, gain: Callable[[Array], Array]) -> Array:
        """U gain(Lambda) U^T y of signals.

        Args:
            signal: csr_array (b, n), one y a row.
            gain: the transfer function on eigenvalues.

        Returns:
            (b, n) float64.
        """
        result: Array = ((signal @ self.small) * gain(self.small_values) @ self.small.T).toarray()
        rows = np.repeat(np.arange(signal.shape[0]), np.diff(signal.indptr))
        for members, values, vectors in self.large:
            at = np.minimum(np.searchsorted(members, signal.indices), len(members) - 1)
            inside = members[at] == signal.indices
            own = vectors[torch.from_numpy(at[inside]).to(vectors.device)].double()
            own *= torch.from_numpy(signal.data[inside]).to(vectors.device)[:, None]
            spectrum = torch.zeros(len(result), len(values), dtype=torch.float64, device=vectors.device)
            spectrum.index_add_(0, torch.from_numpy(rows[inside]).to(vectors.device), own)
            spectrum *= torch.from_numpy(gain(values)).to(vectors.device)
            result[:, members] = (spectrum.float() @ vectors.T).double().cpu().numpy()
        return result

    def size(self) -> int:
        """How many bytes it takes."""
        large = sum(
            members.nbytes + values.nbytes + vectors.nbytes for members, values, vectors in self.large
        )
        return large + sparse_bytes(self.small) + int(self.small_values.nbytes)


class Spectral(GraphFilter):
    """Ranks by f = U h(Lambda) U^T y, h(x) = (1 - alpha) / (1 - alpha x), with the leading eigenpairs of S.

    With all eigenpairs this is diffusion itself. An item of the database costs `rank` numbers, a query one
    product with them; the graph is not needed any more.

    Args:
        rank: how many eigenpairs; the leading ones of all connected components count as one.
        tolerance: the length of S v - x v at which an eigenpair is done.
        **shared: k, kq, gamma and alpha, see `GraphFilter`.

    Example:
        >>> from gqe import knn
        >>> from gqe.embeddings import as_table
        >>> table = as_table([[1.0, 0.0], [1.0, 0.5], [0.5, 1.0], [0.0, 1.0]])
        >>> method = Spectral(k=2, kq=1, alpha=0.5, rank=4).fit(table, knn(table, 2), device=table.device)
        >>> method.rerank(table[:1], knn(table, 4, queries=table[:1])).ids.tolist()
        [[0, 1, 2, 3]]
    """

    def __init__(self, *, rank: int = 500, tolerance: float = 1e-3, **shared: Any) -> None:
        super().__init__(**shared)
        self.rank = positive_int("rank", rank, most=MOST)
        self.tolerance = positive("tolerance", tolerance)

    def size(self) -> int:
        """See `Reranker`."""
        return 0 if self._n is None else self._spectrum.size()

    def _prepare(self, database: Tensor, graph: NeighborGraph, weights: Any, device: torch.device) -> None:
        self._spectrum = Spectrum(normalize_by_degree(weights), self.rank, self.tolerance, device)

    def _memory(self, n: int, width: int) -> tuple[int, int]:
        return 32 * n, BLOCK_BYTES

    def _rank(self, signal: Any, first: NeighborGraph) -> SearchResult:
        return rank_scores(self._spectrum.filter(signal, transfer(self.alpha)), first)


class HybridDiffusion(ConjugateGradientFilter):
    """Ranks by f = U h(Lambda) U^T y + h(S) (y - U U^T y), h(x) = (1 - alpha) / (1 - alpha x).

    The first term uses the leading eigenpairs of S, the second is solved by conjugate gradients. What slows
    conjugate gradients down are eigenvalues near 1, and those are in the first term: a larger rank takes more
    memory and fewer iterations. Either alone is a limit: all eigenpairs leave nothing to solve, and none
    leaves plain diffusion. The paper writes the second term with S2 = S - U Lambda U^T, as
    h(S2) y - h(0) U U^T y; that is the same, since S and S2 agree on what is orthogonal to U, and here S
    stays sparse.

    Args:
        rank: how many eigenpairs; the leading ones of all connected components count as one.
        **shared: k, kq, gamma, alpha, iterations and tolerance, see `ConjugateGradientFilter`.

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

    def __init__(self, *, rank: int = 200, **shared: Any) -> None:
        super().__init__(**shared)
        self.rank = positive_int("rank", rank, most=MOST)

    def size(self) -> int:
        """See `Reranker`."""
        return 0 if self._n is None else sparse_bytes(self._matrix) + self._spectrum.size()

    def _prepare(self, database: Tensor, graph: NeighborGraph, weights: Any, device: torch.device) -> None:
        self._matrix = normalize_by_degree(weights)
        self._spectrum = Spectrum(self._matrix, self.rank, _HYBRID_TOLERANCE, device)

    def _memory(self, n: int, width: int) -> tuple[int, int]:
        return 8 * _HYBRID_ARRAYS * n, DENSE_BYTES

    def _rank(self, signal: Any, first: NeighborGraph) -> SearchResult:
        dense = signal.toarray()
        smooth = self._spectrum.filter(signal, transfer(self.alpha))
        rest = dense - self._spectrum.filter(signal, np.ones_like)
        lengths = np.sqrt(np.sum(dense**2, axis=1))
        found = self._diffuse(self._matrix, rest.T.copy(), axis=0, lengths=lengths)
        return rank_scores(smooth + found.T, first)


def transfer(alpha: float) -> Callable[[Array], Array]:
    """What diffusion does to an eigenvalue x: h(x) = (1 - alpha) / (1 - alpha x)."""

    def gain(values: Array) -> Array:
        return np.asarray((1 - alpha) / (1 - alpha * values))

    return gain


def _decompose(matrix: Any, rank: int, tolerance: float, device: torch.device) -> list[Component]:
    """The leading eigenpairs of every connected component, at most `rank` of each."""
    if matrix.shape[0] == 0:
        return []
    count, labels = connected_components(matrix, directed=False)
    by_label = np.argsort(labels, kind="stable")
    limits = np.searchsorted(labels[by_label], np.arange(count + 1))
    parts = []
    for start, stop in pairwise(limits):
        members = by_label[start:stop]
        if len(members) == 1:
            parts.append(Component(members, np.zeros(1), np.ones((1, 1), np.float32)))
            continue
        own = matrix if count == 1 else matrix[members][:, members]
        values, vectors = _eigenpairs(own, rank, tolerance, device)
        parts.append(Component(members, values, np.ascontiguousarray(vectors, dtype=np.float32)))
    return parts


def _eigenpairs(
    matrix: Any, rank: int, tolerance: float, device: torch.device, rounds: int = 200
) -> tuple[Array, Array]:
    """The `rank` largest eigenvalues (r,), falling, of a connected S (s, s) and their vectors (s, r).

    `rounds` bounds the work of the sparse solver. What has not converged by then is left out.
    """
    size = matrix.shape[0]
    if size <= _SMALL or 2 * rank >= size:  # the vectors asked for are no smaller than the dense matrix
        values, vectors = np.linalg.eigh(matrix.toarray())
        return values[::-1][:rank], vectors[:, ::-1][:, :rank]
    values, vectors = leading_eigenpairs(matrix, rank, tolerance=tolerance, device=device, rounds=rounds)
    if len(values) < rank:
        message = "spectral: %d of %d eigenpairs converged on a component of %d items; lower the rank"
        log.warning(message, len(values), rank, size)
    return values, vectors


def _keep_leading(parts: list[Component], rank: int) -> list[Component]:
    """Keep the leading pair of every part, and of the others the `rank` - 1 largest."""
    others = [(-value, place) for place, part in enumerate(parts) for value in part.values[1:]]
    kept = np.ones(len(parts), dtype=np.int64)
    for _, place in sorted(others)[: rank - 1]:
        kept[place] += 1
    return [
        Component(part.members, part.values[:many], np.ascontiguousarray(part.vectors[:, :many]))
        for part, many in zip(parts, kept, strict=True)
    ]


def _join_vectors(parts: list[Component], n: int) -> tuple[Array, Any]:
    """The eigenvalues (r,) of several parts and their vectors as one csr_array (n, r)."""
    if not parts:
        return np.zeros(0), csr_array((n, 0), dtype=np.float32)
    widths = np.array([len(part.values) for part in parts])
    lefts = np.cumsum(widths) - widths
    rows = np.concatenate([np.repeat(part.members, len(part.values)) for part in parts])
    columns = np.concatenate(
        [
            np.tile(left + np.arange(len(part.values)), len(part.members))
            for left, part in zip(lefts, parts, strict=True)
        ]
    )
    vectors = np.concatenate([part.vectors.ravel() for part in parts])
    table = compact(csr_array((vectors, (rows, columns)), shape=(n, int(widths.sum()))))
    return np.concatenate([part.values for part in parts]), table
