"""Re-ranking by k-reciprocal encoding: two items are alike when they are neighbours of the same items.

Zhong, Zheng, Cao, Li: "Re-ranking Person Re-identification with k-reciprocal Encoding", CVPR 2017.

- R(p, k): the items among the k nearest neighbours of p that also have p among theirs.
- R*(p, k): R(p, k) together with each R(g, k/2), g in R(p, k), of which at least two thirds lie in R(p, k).
- V_p: exp(-d(p, g)) at the items g of R*(p, k1), 0 elsewhere, then averaged over p and its nearest items.
- J(q, g): the Jaccard distance, 1 - sum(min(V_q, V_g)) / sum(max(V_q, V_g)).
- The distance of a query and an item: (1 - lam) * J(q, g) + lam * d(q, g).

In the authors' program the queries are part of the graph; here they are not, so a query may be new, and does
not depend on other queries. Whether g has q among its k nearest is then asked of the similarity: q would be
there if it is at least as near to g as the k-th neighbour of g. And V has no coordinate for a query.

Where the paper leaves a choice:

- An item belongs to its own sets and is the first of the k2 that are averaged; k1 does not count it.
- k/2 is rounded down.
- d is 1 - cosine, half the squared Euclidean distance of unit vectors.
- Each V_p sums to 1 before the averaging, as in the authors' program.
- Where there are fewer than k2 items, those that are there are averaged.

The sets of the database are kept sparse, about k1 numbers an item; only the first results are scored.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array, vstack
from torch import Tensor

from gqe.aggregators.base import MOST, positive, positive_int
from gqe.embeddings import blocks, rows
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph
from gqe.rerank.affinity_graph import sparse_bytes
from gqe.rerank.base import Reranker, check_width, order_results
from gqe.results import SearchResult

_Array = np.ndarray[Any, Any]
# Rows of sets built at once, and first results scored at once: bounds the memory, not the result.
_ROWS = 1 << 15


class _DatabaseSets(NamedTuple):
    """What `fit` works out.

    Attributes:
        vectors: (n, d) the embeddings.
        near: (n, <= k2 - 1) the neighbours that are averaged, -1 = missing.
        last: (n,) the similarity of each item's k1-th neighbour; -inf where there are fewer.
        half: (n, n) sparse, 1 at the items of R(g, k1 / 2).
        encoded: (n, n) sparse, V before averaging.
    """

    vectors: Tensor
    near: _Array
    last: _Array
    half: Any
    encoded: Any


class Reciprocal(Reranker):
    """Re-ranking by k-reciprocal encoding (Zhong et al., 2017).

    Args:
        k1: how many neighbours may be reciprocal.
        k2: over how many items a set is averaged, the item itself counted; 1 averages nothing.
        lam: the share of the original distance in the final one, from 0 to 1 (lambda in the paper).

    Example:
        >>> from gqe import knn
        >>> database = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.3], [0.6, 0.7]]))
        >>> first = knn(database, 3, queries=database[:1])
        >>> method = Reciprocal(k1=2).fit(database, knn(database, 5), device=torch.device("cpu"))
        >>> method.rerank(database[:1], first).ids.tolist()
        [[0, 1, 2]]
    """

    name = "reciprocal"
    tuning_grid: ClassVar = {"k1": (10, 20, 30, 40), "k2": (3, 6), "lam": (0.1, 0.3, 0.6)}

    def __init__(self, *, k1: int = 20, k2: int = 6, lam: float = 0.3) -> None:
        self.k1 = positive_int("k1", k1, most=MOST)
        self.k2 = positive_int("k2", k2, most=MOST)
        self.lam = positive("lam", lam, or_zero=True)
        if self.lam > 1:
            raise InputError(f"lam: expected a number from 0 to 1, got {lam!r}")
        self._device = torch.device("cpu")
        self._fitted: _DatabaseSets | None = None

    @property
    def graph_k(self) -> int:
        """How many neighbours of every database item the graph must hold."""
        return max(self.k1, self.k2 - 1)

    def size(self) -> int:
        """Bytes kept beside the database and its graph: the sets, and each item's k1-th similarity."""
        if self._fitted is None:
            return 0
        known = self._fitted
        return sparse_bytes(known.half) + sparse_bytes(known.encoded) + int(known.last.nbytes)

    def fit(self, database: Tensor, graph: NeighborGraph, *, device: torch.device) -> Self:
        """Find and encode the reciprocal sets of all items (see `Reranker.fit`)."""
        n = len(database)
        graph.check(n)
        check_width(graph, self.graph_k)
        whole = _mutual_sets(graph.ids[:, : self.k1])
        half = _mutual_sets(graph.ids[:, : self.k1 // 2])
        if graph.k >= self.k1:
            last = graph.similarities[:, self.k1 - 1].copy()
        else:
            last = np.full(n, -np.inf, dtype=np.float32)
        encoded = [csr_array((0, n), dtype=np.float32)]
        encoded += [
            _encode(database, part, database, _extend_sets(whole[part], half), device)
            for part in blocks(n, 1, _ROWS)
        ]
        self._device = device
        self._fitted = _DatabaseSets(
            database, graph.ids[:, : self.k2 - 1], last, half, csr_array(vstack(encoded, format="csr"))
        )
        return self

    def rerank(self, queries: Tensor, first: NeighborGraph) -> SearchResult:
        """Rank the first results; the score is 1 - the distance of query and item (see `Reranker.rerank`)."""
        self._check(queries, first, None if self._fitted is None else len(self._fitted.last))
        assert self._fitted is not None
        scores = self.lam * np.where(first.ids >= 0, first.similarities, np.float32(0))
        # Many queries at once where their first results are the same few items anyway.
        per_query = _ROWS // 256 if len(self._fitted.last) <= _ROWS else first.k
        for part in blocks(len(first), per_query, _ROWS):
            scores[part] += (1 - self.lam) * self._overlaps(queries, part, first)
        return order_results(first.ids, scores, first)

    def _overlaps(self, queries: Tensor, part: slice, first: NeighborGraph) -> _Array:
        """Sum(min) / sum(max) of the V of some queries and of each of their first results (b, R)."""
        assert self._fitted is not None
        ids = first.ids[part]
        asked = self._query_sets(queries, part, first)
        totals = np.asarray(asked.sum(axis=1)).ravel()
        candidates, places = np.unique(ids, return_inverse=True)
        places = places.reshape(ids.shape)
        # By columns, so that a query touches only the items of its own set. Every V of an item sums to 1.
        by_item = self._average(candidates).tocsc()
        overlaps = np.zeros(ids.shape, dtype=np.float32)
        for row in range(len(ids)):
            own = slice(asked.indptr[row], asked.indptr[row + 1])
            entries, lengths = _entries(by_item.indptr, asked.indices[own])
            smaller = np.minimum(by_item.data[entries], np.repeat(asked.data[own], lengths))
            common = np.bincount(by_item.indices[entries], weights=smaller, minlength=len(candidates))
            overlaps[row] = (common / (totals[row] + 1 - common))[places[row]]
        return overlaps

    def _query_sets(self, queries: Tensor, part: slice, first: NeighborGraph) -> Any:
        """The V of some queries, averaged: sparse (b, n)."""
        assert self._fitted is not None
        n = len(self._fitted.last)
        ids, similarities = first.ids[part, : self.k1], first.similarities[part, : self.k1]
        reciprocal = (ids >= 0) & (similarities >= self._fitted.last[np.maximum(ids, 0)]) if n else ids >= 0
        sets = _extend_sets(_pattern(ids, reciprocal, n), self._fitted.half)
        own = _encode(queries, part, self._fitted.vectors, sets, self._device)
        near = first.ids[part, : self.k2 - 1]
        listed = _pattern(near, near >= 0, n)
        counts = 1 + np.diff(listed.indptr)
        return _scale_rows(own + listed @ self._fitted.encoded, 1 / counts)

    def _average(self, items: _Array) -> Any:
        """The V of some items (c,), averaged: sparse (c, n); an empty row for -1."""
        assert self._fitted is not None
        n = len(self._fitted.last)
        near = np.concatenate([items[:, None], self._fitted.near[items]], axis=1) if n else items[:, None]
        listed = _pattern(near, (near >= 0) & (items >= 0)[:, None], n)
        return _scale_rows(listed, 1 / np.maximum(np.diff(listed.indptr), 1)) @ self._fitted.encoded


def _pattern(ids: _Array, chosen: _Array, n: int) -> Any:
    """Sparse (len(ids), n) with 1 at the chosen ids of each row."""
    indptr = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))])
    members = ids[chosen]
    return csr_array((np.ones(len(members), dtype=np.float32), members, indptr), shape=(len(ids), n))


def _mutual_sets(ids: _Array) -> Any:
    """The sets R of all items from their neighbours (n, k): sparse (n, n), with the items themselves."""
    n = len(ids)
    one_way = _pattern(ids, ids >= 0, n)
    itself = eye_array(n, dtype=np.float32, format="csr")
    return csr_array(one_way.multiply(one_way.T.tocsr()) + itself)


def _extend_sets(sets: Any, half: Any) -> Any:
    """R* of some items from their R (b, n) and the smaller sets of all items (n, n)."""
    shared = csr_array(sets.multiply(sets @ half))  # at g: how many of its smaller set are in the large one
    accepted = 3 * shared.data >= 2 * (half.indptr[shared.indices + 1] - half.indptr[shared.indices])
    shared.data = accepted.astype(np.float32)
    shared.eliminate_zeros()
    return csr_array(sets + shared @ half)


def _encode(left: Tensor, part: slice, database: Tensor, sets: Any, device: torch.device) -> Any:
    """V of vectors left[part] (b, d) from their sets R* (b, n): exp(cosine - 1), each row scaled to sum 1."""
    members = torch.from_numpy(sets.indices.astype(np.int64))
    owners = torch.from_numpy(np.repeat(np.arange(part.start, part.stop), np.diff(sets.indptr)))
    weights = np.empty(len(members), dtype=np.float32)
    for pairs in blocks(len(members), 8 * database.shape[1]):
        a, b = rows(left, owners[pairs], device), rows(database, members[pairs], device)
        weights[pairs] = torch.exp((a * b).sum(dim=1) - 1).cpu().numpy()
    encoded = csr_array((weights, sets.indices, sets.indptr), shape=sets.shape)
    totals = np.asarray(encoded.sum(axis=1)).ravel()
    return _scale_rows(encoded, 1 / np.where(totals > 0, totals, 1))


def _scale_rows(matrix: Any, factors: _Array) -> Any:
    """The sparse matrix with each row times its factor."""
    data = matrix.data * np.repeat(factors, np.diff(matrix.indptr)).astype(np.float32)
    return csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _entries(indptr: _Array, lists: _Array) -> tuple[_Array, _Array]:
    """Where the entries of some rows (or columns) of a sparse matrix lie, and how many each has."""
    starts, lengths = indptr[lists], indptr[lists + 1] - indptr[lists]
    offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + offsets, lengths
