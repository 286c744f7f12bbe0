"""The sparse graph that all methods of diffusion share, and what they have in common around it.

The affinity of two items is max(cosine, 0)^gamma where each is among the k nearest neighbours of the other,
and 0 elsewhere, also between an item and itself: W. Normalised by the degrees it becomes
S = D^-1/2 W D^-1/2, and a query's signal y on the items (the affinities of its kq first results) diffuses to

    f = (1 - alpha) (I - alpha S)^-1 y.

The methods differ in how they compute f. Zhou et al., "SearchResult on data manifolds", NIPS 2003; Iscen
et al., "Efficient diffusion on region manifolds: recovering small objects with compact CNN representations",
CVPR 2017.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from gqe.aggregators.base import MOST, positive, positive_int
from gqe.embeddings import blocks
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph
from gqe.rerank.base import Reranker, check_width, order_results
from gqe.results import SearchResult

Array = np.ndarray[Any, Any]
BLOCK_BYTES = 32 << 20
"""Of scores of all items that are computed at once, where nothing asks for more or less."""


def affinity(graph: NeighborGraph, *, k: int, gamma: float) -> Any:
    """The mutual k nearest neighbours as a symmetric sparse matrix W (n, n) with a zero diagonal.

    Args:
        graph: (n, >= min(k, n - 1)) neighbours of the items, without themselves.
        k: how many neighbours count.
        gamma: the exponent of the cosine.

    Returns:
        csr_array of float64. Where the two directions were measured differently the smaller counts.

    Example:
        >>> graph = NeighborGraph(np.array([[1], [0], [1]]), np.full((3, 1), 0.5, np.float32))
        >>> affinity(graph, k=1, gamma=3.0).toarray().tolist()
        [[0.0, 0.125, 0.0], [0.125, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    check_width(graph, k)
    one_way = neighbor_matrix(graph, len(graph), k=k, gamma=gamma)
    mutual = csr_array(one_way.minimum(one_way.T.tocsr()))
    mutual.eliminate_zeros()
    mutual.sort_indices()
    return compact(mutual)


def normalize_by_degree(weights: Any) -> Any:
    """S = D^-1/2 W D^-1/2 (n, n) of a symmetric W; rows of items without neighbours stay zero."""
    degrees = np.asarray(weights.sum(axis=1), dtype=np.float64).ravel()
    scale = np.zeros_like(degrees)
    np.divide(1.0, np.sqrt(degrees), out=scale, where=degrees > 0)
    data = weights.data * np.repeat(scale, np.diff(weights.indptr)) * scale[weights.indices]
    return csr_array((data, weights.indices, weights.indptr), shape=weights.shape)


def neighbor_matrix(neighbors: NeighborGraph, n: int, *, k: int, gamma: float = 1.0) -> Any:
    """max(cosine, 0)^gamma of the k first neighbours, each among n items: sparse float64 (m, n)."""
    ids, cosines = neighbors.ids[:, :k], neighbors.similarities[:, :k]
    linked = (ids >= 0) & (cosines > 0)
    weights = cosines[linked].astype(np.float64) ** gamma
    return csr_array((weights, (np.nonzero(linked)[0], ids[linked])), shape=(len(neighbors), n))


def cut_subgraphs(matrix: Any, ids: Array) -> Any:
    """Cut one part a row out of a sparse matrix and put all of them on one diagonal.

    Args:
        matrix: csr_array (n, n).
        ids: (b, t) the items of each part, each at most once in a row, -1 = missing (an empty row).

    Returns:
        csr_array (b * t, b * t): part i has the rows and columns from i * t on.
    """
    b, t = ids.shape
    at = np.flatnonzero(ids >= 0)
    members = ids.ravel()[at]
    rows = matrix[members]  # whole rows of all parts, of which only the columns of the same part stay
    limits = np.searchsorted(at, t * np.arange(b + 1))
    ends = rows.indptr[limits]
    place = np.full(matrix.shape[0], -1, dtype=np.int32 if b * t < 2**31 else np.int64)
    columns = np.empty(rows.nnz, dtype=place.dtype)
    for part in range(b):
        own, entries = slice(limits[part], limits[part + 1]), slice(ends[part], ends[part + 1])
        place[members[own]] = at[own]
        inside = place[rows.indices[entries]]
        columns[entries] = inside
        rows.data[entries] *= inside >= part * t  # what earlier parts left in `place` is lower
    lengths = np.zeros(b * t + 1, dtype=rows.indptr.dtype)
    lengths[at + 1] = np.diff(rows.indptr)
    indptr = np.cumsum(lengths, dtype=lengths.dtype)
    cut = csr_array((rows.data, columns, indptr), shape=(b * t, b * t))
    cut.eliminate_zeros()
    return cut


def rank_scores(scores: Array, first: NeighborGraph) -> SearchResult:
    """The ranking of queries by the scores of all items.

    Diffusion of a signal that is nowhere negative is nowhere negative, so an item with a score of 0 was not
    reached, and a score below 0 is an error of approximation: about both the method says nothing.

    Args:
        scores: (m, n).
        first: (m, R) results of the search.
    """
    scores = scores.astype(np.float32)
    m, n = scores.shape
    width = min(first.k, n)
    worth = scores > 0
    if 0 < width < n:  # only what can be among the first R, with all ties of the last one
        last = np.partition(scores, n - width, axis=1)[:, n - width]
        worth &= scores >= last[:, None]
    rows, ids = np.nonzero(worth)
    return order_results(*pad_rows(rows, ids, scores[rows, ids], m), first)


def pad_rows(rows: Array, ids: Array, scores: Array, m: int) -> tuple[Array, Array]:
    """Turn entries sorted by row into tables ids (m, c) and scores (m, c), -1 = missing."""
    counts = np.bincount(rows, minlength=m)
    width = int(counts.max(initial=0))
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    table_ids = np.full((m, width), -1, dtype=np.int64)
    table_scores = np.zeros((m, width), dtype=np.float32)
    table_ids[rows, columns], table_scores[rows, columns] = ids, scores
    return table_ids, table_scores


def compact(matrix: Any) -> Any:
    """The same sparse matrix with 32-bit indices wherever they suffice."""
    if max(matrix.nnz, *matrix.shape) < 2**31:
        matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    return matrix


def sparse_bytes(matrix: Any) -> int:
    """How many bytes the arrays of a sparse matrix take."""
    return int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes)


class GraphFilter(Reranker):
    """What the methods of diffusion share: settings, checks, the graph and the query's signal.

    Args:
        k: how many neighbours of an item count for the mutual neighbour graph.
        kq: how many first results make up the query's signal.
        gamma: the exponent of the cosines.
        alpha: how far the signal travels, between 0 (not at all) and 1.
    """

    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "k": (10, 20, 50),
        "kq": (3, 5, 10),
        "alpha": (0.8, 0.95, 0.99),
    }

    def __init__(self, *, k: int = 50, kq: int = 10, gamma: float = 3.0, alpha: float = 0.99) -> None:
        self.k = positive_int("k", k, most=MOST)
        self.kq = positive_int("kq", kq, most=MOST)
        self.gamma = positive("gamma", gamma)
        self.alpha = positive("alpha", alpha)
        if self.alpha >= 1:
            raise InputError(f"alpha: expected a number above 0 and below 1, got {alpha!r}")
        self._n: int | None = None

    @property
    def graph_k(self) -> int:
        """How many neighbours of every database item the graph must hold."""
        return self.k

    @property
    def num_candidates(self) -> int:
        """How many first results of a query are read."""
        return self.kq

    def fit(self, database: Tensor, graph: NeighborGraph, *, device: torch.device) -> Self:
        """Compute once what depends on the database alone (see `Reranker.fit`)."""
        graph.check(len(database))
        self._prepare(database, graph, affinity(graph, k=self.k, gamma=self.gamma), device)
        self._n = len(database)
        return self

    def rerank(self, queries: Tensor, first: NeighborGraph) -> SearchResult:
        """Reorder the first results (see `Reranker.rerank`)."""
        self._check(queries, first, self._n)
        assert self._n is not None
        signal = neighbor_matrix(first, self._n, k=self.kq, gamma=self.gamma)
        result = SearchResult(np.empty(first.ids.shape, np.float32), np.empty(first.ids.shape, np.int64))
        for part in blocks(len(first), *self._memory(self._n, first.k)):
            some = NeighborGraph(first.ids[part], first.similarities[part])
            result.scores[part], result.ids[part] = self._rank(signal[part], some)
        return result

    @abstractmethod
    def _prepare(self, database: Tensor, graph: NeighborGraph, weights: Any, device: torch.device) -> None:
        """Compute what is kept, from the affinities W (n, n)."""

    @abstractmethod
    def _memory(self, n: int, width: int) -> tuple[int, int]:
        """Bytes of work per query with n items and `width` results, and how many may be used at once."""

    @abstractmethod
    def _rank(self, signal: Any, first: NeighborGraph) -> SearchResult:
        """Diffuse the signals (b, n) of some queries and rank."""
