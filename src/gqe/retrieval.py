"""Two-stage search: first search, expansion, second search, re-ranking. There is no other implementation.

An `Expander`, an `Index`, a connected store and a sharded service are searched by the functions of this
module. Each gives a `SearchTarget`: how its database is searched, and a `LevelSource` for what expansion
reads of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gqe.aggregators import Aggregator, Identity
from gqe.aggregators.base import MOST, positive_int
from gqe.embeddings import as_table, like
from gqe.errors import InputError
from gqe.expansion import Weights, expand, expansion_weights, scale_rows
from gqe.methods import parse_method
from gqe.negatives import subtract_negatives
from gqe.neighbors import NeighborGraph, knn
from gqe.neighbors.candidates import Candidates
from gqe.neighbors.search import excluded_ids, nearest
from gqe.query_options import QueryOptions
from gqe.rerank import Reranking
from gqe.rerank.base import RerankedResults, dropped
from gqe.source import LevelSource, MemorySource
from gqe.transfer import to_device

Array: TypeAlias = np.ndarray[Any, Any]


class SearchResult(NamedTuple):
    """Results of a search, best first: scores (m, k) float32 and ids (m, k); -inf and -1 (None) = missing."""

    scores: Any
    ids: Any


class Explanation(NamedTuple):
    """The items with the largest weights in expanded queries.

    Attributes:
        own: (m,) weight of the query itself: 1, or 0 where it has none.
        ids: (m, top) items; -1 or None where fewer have a weight.
        weights: (m, top) their weights, 0 where missing.
        total: (m,) the sum of all absolute weights, that of the query included.
        count: (m,) how many items have a weight.
    """

    own: Any
    ids: Any
    weights: Any
    total: Any
    count: Any


class QueryContext(NamedTuple):
    """Queries with what their expansion reads, for a look at the weights of each level.

    Attributes:
        source: the levels.
        queries: (m, d) checked.
        neighbors: (m, K) of the queries, as rows of the source.
        ids: gives the ids of rows (p,).
        contrast: with which negatives are subtracted.
    """

    source: LevelSource
    queries: Tensor
    neighbors: NeighborGraph
    ids: Callable[[Array], Array]
    contrast: float


class WholeDatabase(NamedTuple):
    """All items of a target, for a re-ranker.

    Attributes:
        database: (n, d) what is searched, in the host's memory.
        graph: its neighbours, at least as many as asked for.
        keys: (n,) the target's own key of each item.
    """

    database: Tensor
    graph: NeighborGraph
    keys: Array


class SearchTarget(ABC):
    """A database that can be searched and whose levels can be read.

    Items have *keys*: row numbers, or ids in a store. `no_key` stands for none.

    Attributes:
        dim: of the embeddings.
        device: where to compute.
        reranking: what reorders results, unless a call says otherwise.
    """

    dim: int
    device: torch.device
    reranking: Reranking | None = None
    no_key: Any = -1

    def __init__(self) -> None:
        self.rerankers: dict[tuple[str, bool], _BoundReranker] = {}

    @property
    @abstractmethod
    def stack(self) -> list[Aggregator]:
        """The aggregators of the queries' side, first level first."""

    @property
    @abstractmethod
    def options(self) -> QueryOptions:
        """How queries are expanded, unless a call says otherwise."""

    @property
    def size(self) -> int | None:
        """The number of items; None where it is not known without asking."""
        return None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around everything that reads the database."""
        yield

    @abstractmethod
    def resolve_exclude(self, ids: Any, count: int) -> Array | None:
        """(count,) keys that each query must not find, from ids as users give them."""

    def resolve_filter(self, filter: Any) -> Any:
        """The target's own form of a filter."""
        raise InputError("filter: there is no metadata to filter by; build an Index with metadata")

    @abstractmethod
    def neighbors(
        self, queries: Tensor, k: int, exclude: Array | None, exact: bool | None, *, lists: bool = False
    ) -> tuple[LevelSource, NeighborGraph | Candidates]:
        """The first search: what expansion reads, and the neighbours (m, k) of queries as its rows.

        Args:
            queries: (m, d) checked.
            k: how many neighbours; fewer where there are fewer items.
            exclude: see `resolve_exclude`.
            exact: see `search`.
            lists: whether the lists of those neighbours, and so on, are read, too: for weights.
        """

    @abstractmethod
    def nearest(
        self, queries: Tensor, k: int, exclude: Array | None, allowed: Any, exact: bool | None, dba: bool
    ) -> SearchResult:
        """The second search: scores (m, <= k) and keys, in the database or in the augmented one."""

    def resolve_dba(self, dba: bool | None) -> bool:
        """Whether the augmented database is searched."""
        return bool(dba)

    def cuda_graph(self, source: LevelSource, contrast: float) -> Callable[..., Tensor] | None:
        """What expands a single query (1, d), given its neighbours' ids and similarities, if anything."""
        return None

    def keys_of(self, source: LevelSource, rows: Array) -> Array:
        """Keys of rows (p,) of a source."""
        return rows

    def ids_of(self, keys: Array) -> Array:
        """Ids as users know them."""
        return keys

    def places_of(self, keys: Array) -> Array:
        """The place of keys (p,) among all items, in the order of the target's ids."""
        return keys

    @abstractmethod
    def whole_database(self, k: int, dba: bool) -> WholeDatabase:
        """All items with at least k neighbours of each, where there are so many."""

    def is_allowed(self, keys: Array, allowed: Any, found: Array) -> Array:
        """Which keys (m, r) that a re-ranker gave may be results, given those found by the search."""
        return np.asarray(keys != self.no_key)

    def with_tensor_ids(self) -> bool:
        """Whether ids are numbers, which go back as a tensor where queries came as one."""
        return True


def search(
    target: SearchTarget,
    queries: Any,
    k: int,
    *,
    expand: bool = True,
    exclude: Any = None,
    filter: Any = None,
    exact: bool | None = None,
    rounds: int | None = None,
    rerank: str | None = None,
    dba: bool | None = None,
) -> SearchResult:
    """First search, expansion, second search, and re-ranking; see `gqe.Index.search`."""
    with target.reading():
        batch = _Batch(target, queries, exclude)
        count = check_k(k, target.size)
        options = _options(target, rounds)
        allowed = None if filter is None else target.resolve_filter(filter)
        augmented = target.resolve_dba(dba)
        reranking = target.reranking if rerank is None else parse_reranking(rerank)
        if target.size == 0:
            return batch.results(
                np.empty((len(batch), 0), np.float32), np.empty((len(batch), 0), np.int64), k
            )
        vectors = (
            expand_queries(target, batch.queries, batch.exclude, exact, options) if expand else batch.queries
        )
        available = count if target.size is None else min(count, target.size)
        if reranking is None:
            found = target.nearest(vectors, available, batch.exclude, allowed, exact, augmented)
        else:
            reranker = _bound_reranker(target, reranking, augmented)
            # One more than wanted, in the place of an excluded item that the re-ranker may bring in.
            wanted = min(max(available, reranker.num_candidates) + 1, reranker.size)
            found = target.nearest(vectors, wanted, batch.exclude, allowed, exact, augmented)
            if not reranker.knows(found.ids):  # items were added since it was bound
                target.rerankers.clear()
                reranker = _bound_reranker(target, reranking, augmented)
            found = reranker.rerank(vectors, found, available, allowed, batch.exclude)
        return batch.results(found.scores, found.ids, count)


def expand_batch(
    target: SearchTarget,
    queries: Any,
    *,
    exclude: Any = None,
    exact: bool | None = None,
    rounds: int | None = None,
) -> Any:
    """Expanded queries (m, d), or one (d,), in the form in which the queries came."""
    with target.reading():
        batch = _Batch(target, queries, exclude)
        expanded = expand_queries(target, batch.queries, batch.exclude, exact, _options(target, rounds))
        expanded = like(expanded, queries)
        return expanded[0] if batch.single else expanded


def explain(
    target: SearchTarget,
    queries: Any,
    *,
    top: int = 10,
    exclude: Any = None,
    exact: bool | None = None,
    rounds: int | None = None,
) -> Explanation:
    """The items with the largest weights in each expanded query; see `gqe.Index.explain`."""
    top = positive_int("top", top, most=MOST)
    with target.reading():
        batch = _Batch(target, queries, exclude)
        weights, columns = query_weights(
            target, batch.queries, batch.exclude, exact, _options(target, rounds)
        )
        keys = np.full((len(batch), top), target.no_key, dtype=columns.dtype)
        heaviest = np.zeros(keys.shape, dtype=np.float32)
        ends = weights.items.indptr
        for i in range(len(batch)):
            data = weights.items.data[ends[i] : ends[i + 1]]
            order = np.argsort(-np.abs(data), kind="stable")[:top]
            keys[i, : len(order)] = columns[weights.items.indices[ends[i] : ends[i + 1]][order]]
            heaviest[i, : len(order)] = data[order]
        total = weights.own + np.asarray(abs(weights.items).sum(axis=1)).reshape(-1)
        result = Explanation(weights.own, target.ids_of(keys), heaviest, total, np.diff(ends))
        return Explanation(*(part[0] for part in result)) if batch.single else result


def all_weights(
    target: SearchTarget, queries: Any, *, exclude: Any = None, rounds: int | None = None
) -> Weights:
    """Sparse weights (m, n) of all items of a target, and those of the queries themselves (m,)."""
    with target.reading():
        batch = _Batch(target, queries, exclude)
        weights, keys = query_weights(target, batch.queries, batch.exclude, None, _options(target, rounds))
        columns = target.places_of(keys)
        shape = (len(batch), target.size or 0)
        items = sparse.csr_array(
            (weights.items.data, columns[weights.items.indices], weights.items.indptr), shape=shape
        )
        items.sort_indices()
        return Weights(items, weights.own)


def context(
    target: SearchTarget, queries: Any, *, exclude: Any = None, exact: bool | None = None
) -> QueryContext:
    """Queries with their neighbours and levels; of several rounds, those of the first."""
    with target.reading():
        batch = _Batch(target, queries, exclude)
        source, near = target.neighbors(
            batch.queries, _num_neighbors(target, target.options), batch.exclude, exact, lists=True
        )
        if not isinstance(near, NeighborGraph):
            near = NeighborGraph(near.ids.cpu().numpy(), near.similarities.cpu().numpy())
        return QueryContext(
            source,
            batch.queries,
            near,
            lambda rows: target.ids_of(target.keys_of(source, rows)),
            target.options.contrast,
        )


def expand_queries(
    target: SearchTarget, queries: Tensor, exclude: Array | None, exact: bool | None, options: QueryOptions
) -> Tensor:
    """(m, d) checked queries, expanded in rounds; negatives are subtracted in the last one.

    What remains of a query after its negatives is worth more with more rounds behind it.
    """
    # Without neighbours there is nothing to search for first. With a temperature, even an identity reads
    # them.
    unchanged = all(isinstance(level, Identity) and level.temperature is None for level in target.stack)
    if unchanged and not options.contrast:
        return queries.to(target.device, torch.float32)
    for left in reversed(range(options.rounds)):
        contrast = 0.0 if left else options.contrast
        now = replace(options, contrast=contrast)
        source, near = target.neighbors(queries, _num_neighbors(target, now), exclude, exact)
        if not len(source):
            return queries.to(torch.float32)
        graph = target.cuda_graph(source, contrast) if len(queries) == 1 else None
        if graph is None:
            queries = expand_once(source, queries, near, contrast)
        else:
            lists = [torch.as_tensor(part) for part in (near.ids, near.similarities)]
            queries = graph(queries, *(to_device(part, queries.device) for part in lists))
    return queries


def expand_once(
    source: LevelSource, queries: Tensor, neighbors: NeighborGraph | Candidates, contrast: float
) -> Tensor:
    """(m, d) expanded queries with negatives subtracted."""
    return subtract_negatives(expand(source, queries, neighbors), source, neighbors, contrast)


def query_weights(
    target: SearchTarget, queries: Tensor, exclude: Array | None, exact: bool | None, options: QueryOptions
) -> tuple[Weights, Array]:
    """The weight of every item in each query expanded by `expand_queries`, and the key of each column.

    The query of the next round is (own * query + items @ database) / length, so the weights of both rounds
    add up with that factor.
    """
    total: Weights | None = None
    lengths, columns = np.ones(len(queries)), _Columns()
    for left in reversed(range(options.rounds)):
        contrast = 0.0 if left else options.contrast
        now = replace(options, contrast=contrast)
        source, near = target.neighbors(queries, _num_neighbors(target, now), exclude, exact, lists=True)
        local = expansion_weights(source, queries, near, contrast)
        used, places = np.unique(local.items.indices, return_inverse=True)
        keys = columns.add(target.keys_of(source, used))
        columns_of = (local.items.data, keys[places], local.items.indptr)
        items = sparse.csr_array(columns_of, shape=(len(queries), len(columns)), copy=True)
        items.sort_indices()
        if total is None:
            combined = Weights(items, local.own)
        else:
            before = scale_rows(_widened(total.items, len(columns)), local.own)
            added = sparse.csr_array(before + scale_rows(items, lengths))
            combined = Weights(added, total.own * local.own)
        if left:
            rows = source.rows(0, torch.from_numpy(used.astype(np.int64))).cpu().float().numpy()
            compact = sparse.csr_array(
                (local.items.data, places, local.items.indptr), shape=(len(queries), len(used))
            )
            sums = local.own[:, None] * queries.cpu().float().numpy() + compact @ rows
            # Weights so far are those of an unnormalised sum; the next round reads a unit vector along it.
            norms = np.linalg.norm(sums, axis=1)
            lengths = lengths * norms
            queries = torch.from_numpy(sums / norms[:, None]).to(queries.device, torch.float32)
        total = combined
    assert total is not None
    return total, columns.keys(target)


class _Columns:
    """Keys of the columns of weights, in the order in which they were met."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, keys: Array) -> Array:
        """The columns of keys (p,), new ones at the end."""
        places = self._places
        return np.array([places.setdefault(key, len(places)) for key in keys.tolist()], dtype=np.int64)

    def keys(self, target: SearchTarget) -> Array:
        """(n,) the key of each column."""
        kind = np.int64 if isinstance(target.no_key, int) else object
        result = np.empty(len(self), dtype=kind)
        result[:] = list(self._places)
        return result


def _widened(matrix: sparse.csr_array, columns: int) -> sparse.csr_array:
    return sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], columns))


class _Batch:
    """Queries through the input checks, with what they exclude.

    Attributes:
        queries: (m, d) on the device of the target.
        single: whether one vector was given instead of a table.
        exclude: (m,) keys, or None.
    """

    def __init__(self, target: SearchTarget, queries: Any, exclude: Any) -> None:
        self._target, self._given = target, queries
        self.single = (queries.ndim if isinstance(queries, Tensor) else np.ndim(queries)) == 1
        if self.single:
            queries = queries[None] if isinstance(queries, Tensor) else np.asarray(queries)[None]
            if isinstance(exclude, str) or (exclude is not None and np.ndim(exclude) == 0):
                exclude = [exclude]
        self.queries = as_table(queries, "queries", dim=target.dim).to(target.device)
        self.exclude = None if exclude is None else target.resolve_exclude(exclude, len(self))

    def __len__(self) -> int:
        return len(self.queries)

    def results(self, scores: Any, keys: Array, k: int) -> SearchResult:
        """Scores and users' ids in k columns, in the form in which the queries came."""
        missing = (0, k - keys.shape[1])
        if missing[1]:
            scores = np.pad(scores, [(0, 0), missing], constant_values=-np.inf)
            padding = np.full((len(keys), missing[1]), self._target.no_key, dtype=keys.dtype)
            keys = np.concatenate([keys, padding], axis=1)
        ids: Any = self._target.ids_of(keys)
        values: Any = like(torch.from_numpy(np.ascontiguousarray(scores)), self._given)
        if isinstance(self._given, Tensor) and self._target.with_tensor_ids():
            ids = torch.from_numpy(np.ascontiguousarray(ids)).to(self._given.device)
        return SearchResult(values[0], ids[0]) if self.single else SearchResult(values, ids)


class _BoundReranker:
    """A re-ranker bound to all items of a target."""

    def __init__(self, target: SearchTarget, reranking: Reranking, dba: bool) -> None:
        reranker = reranking.make()
        try:
            whole = target.whole_database(max(1, reranker.graph_k), dba)
        except InputError as error:
            raise InputError(f"rerank: {reranking} {error}") from None
        self._target = target
        self._keys = whole.keys
        self._order = np.argsort(whole.keys, kind="stable")
        self.size = len(whole.database)
        self._reranker = reranker.fit(whole.database, whole.graph, device=target.device)

    @property
    def num_candidates(self) -> int:
        return self._reranker.num_candidates

    def places(self, keys: Array) -> Array:
        """The places of keys of any shape among all items; -1 for none, and for unknown ones."""
        known = keys != self._target.no_key
        result = np.full(keys.shape, -1, dtype=np.int64)
        at = np.searchsorted(self._keys, keys[known], sorter=self._order).clip(max=max(0, self.size - 1))
        found = self._order[at]
        result[known] = np.where(self._keys[found] == keys[known], found, -1)
        return result

    def knows(self, keys: Array) -> bool:
        """Whether all keys are among the items that the re-ranker was bound to."""
        return bool(((self.places(keys) >= 0) == (keys != self._target.no_key)).all())

    def rerank(
        self, queries: Tensor, found: SearchResult, count: int, allowed: Any, exclude: Array | None
    ) -> SearchResult:
        """The first `count` results in the order of the re-ranker; what may not be found stays out."""
        first = NeighborGraph(self.places(found.ids), np.ascontiguousarray(found.scores))
        ranking = self._reranker.rerank(queries.cpu().to(torch.float32), first)
        keys = np.where(ranking.ids >= 0, self._keys[ranking.ids.clip(min=0)], self._target.no_key)
        refused = ~self._target.is_allowed(keys, allowed, found.ids)
        if exclude is not None:
            refused |= keys == exclude[:, None]
        scores, places = dropped(RerankedResults(ranking.scores, ranking.ids), refused, count)
        keys = np.where(places >= 0, self._keys[places.clip(min=0)], self._target.no_key)
        return SearchResult(scores, keys)


def _bound_reranker(target: SearchTarget, reranking: Reranking, dba: bool) -> _BoundReranker:
    key = (str(reranking), dba)
    if key not in target.rerankers:
        target.rerankers[key] = _BoundReranker(target, reranking, dba)
    return target.rerankers[key]


def parse_reranking(text: str) -> Reranking:
    """A re-ranker as typed: its name and settings, without an expansion."""
    method = parse_method(text) if isinstance(text, str) else None
    if method is None or method.then is None or method.name != "none" or method.dba:
        raise InputError(f"rerank: expected a re-ranker such as 'reciprocal', got {text!r}")
    return method.then


def check_k(k: object, size: int | None) -> int:
    """Check how many results are asked for: up to all items, or a million where there are fewer."""
    count, most = positive_int("k", k), max(size or 0, MOST)
    if count > most:
        raise InputError(f"k: at most {most:,} results can be asked for, got {count:,}; give a smaller k")
    return count


def _options(target: SearchTarget, rounds: int | None) -> QueryOptions:
    return target.options if rounds is None else replace(target.options, rounds=rounds)


def _num_neighbors(target: SearchTarget, options: QueryOptions) -> int:
    return options.num_neighbors(max(aggregator.graph_k for aggregator in target.stack))


class MemoryTarget(SearchTarget):
    """A database in memory.

    Args:
        source: its levels.
        options: how queries are expanded.
        reranking: what reorders results.
        database_stack: what augments the database.
    """

    def __init__(
        self,
        source: MemorySource,
        options: QueryOptions,
        reranking: Reranking | None = None,
        database_stack: list[Aggregator] | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.device = source.dim, source.device
        self.source = source
        self.reranking = reranking
        self._options = options
        self._database_stack = database_stack
        self._augmented: Tensor | None = None

    @property
    def stack(self) -> list[Aggregator]:
        """See `SearchTarget`."""
        return self.source.stack

    @property
    def options(self) -> QueryOptions:
        """See `SearchTarget`."""
        return self._options

    @property
    def size(self) -> int:
        """See `SearchTarget`."""
        return len(self.source)

    @property
    def augmented(self) -> Tensor:
        """(n, d) the augmented database, computed once."""
        if self._augmented is None:
            self._augmented = self.source.augment(self._database_stack)
        return self._augmented

    def resolve_exclude(self, ids: Any, count: int) -> Array | None:
        """See `SearchTarget`."""
        if isinstance(ids, list | tuple):
            ids = [-1 if value is None else value for value in ids]
        excluded = excluded_ids(ids, count, len(self.source))
        return None if excluded is None else excluded.numpy()

    def neighbors(
        self, queries: Tensor, k: int, exclude: Array | None, exact: bool | None, *, lists: bool = False
    ) -> tuple[LevelSource, NeighborGraph]:
        """See `SearchTarget`."""
        width = max(1, min(k, len(self.source)))
        return self.source, self._search(self.source.database, queries, width, exclude)

    def nearest(
        self, queries: Tensor, k: int, exclude: Array | None, allowed: Any, exact: bool | None, dba: bool
    ) -> SearchResult:
        """See `SearchTarget`."""
        table = self.augmented if dba else self.source.database
        found = self._search(table, queries, k, exclude)
        return SearchResult(found.similarities, found.ids.astype(np.int64))

    def whole_database(self, k: int, dba: bool) -> WholeDatabase:
        """See `SearchTarget`."""
        n = len(self.source)
        width = max(1, min(k, n - 1))
        if not dba:
            return WholeDatabase(self.source.database.cpu(), self.source.graph_of(width), np.arange(n))
        graph = knn(self.augmented, width, device=self.device)
        return WholeDatabase(self.augmented.cpu(), graph, np.arange(n))

    def _search(self, table: Tensor, queries: Tensor, k: int, exclude: Array | None) -> NeighborGraph:
        excluded = None if exclude is None else torch.from_numpy(exclude)
        return nearest(table, queries, k, excluded, device=self.device)
