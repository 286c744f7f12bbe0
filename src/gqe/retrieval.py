"""Two-stage search: first search, expansion, second search, re-ranking. There is no other implementation.

An `Expander`, an `Index`, a connected store and a sharded service are `Searchable`. Each gives a
`SearchTarget`: how its database is searched, and a `LevelSource` for what expansion reads of it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gqe.aggregators import Identity
from gqe.aggregators.base import MOST, positive_int
from gqe.embeddings import as_table, like, look_swapped
from gqe.errors import InputError
from gqe.expansion import Weights, expand, expansion_weights, scale_rows
from gqe.methods import parse_method
from gqe.negatives import subtract_negatives
from gqe.neighbors import NeighborGraph
from gqe.neighbors.candidates import Candidates
from gqe.query_options import QueryOptions
from gqe.rerank import Reranking
from gqe.results import SearchResult
from gqe.source import LevelSource
from gqe.targets import Array, SearchTarget
from gqe.transfer import to_device

log = logging.getLogger(__name__)


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


class Searchable(ABC):
    """What `Expander`, `Index`, connected stores and sharded serving share: how they are searched."""

    @property
    @abstractmethod
    def target(self) -> SearchTarget:
        """The database, as a search sees it."""

    def search(
        self,
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
        with_metadata: bool = False,
    ) -> SearchResult:
        """First search, expansion, second search, and re-ranking if one is named.

        Args:
            queries: (m, d) embeddings, or one (d,).
            k: how many results; at most a million, or as many as there are items.
            expand: False for a plain search with the queries as they are.
            exclude: one id for each query that it neither reads nor finds (its own, say); None or -1 among
                them excludes nothing.
            filter: which items may be found: {column: value, list of values, or {"gte": ..., "lt": ...}} of
                the metadata; with an index also a function of the metadata (a pyarrow Table of all rows) to
                one truth value for each. Expansion reads all. Refused in memory, where there is no metadata.
            exact: compare with every item where searches are approximate; a search in memory always does.
            rounds: how often queries are expanded; None as the expander says.
            rerank: reorder the results, as "reciprocal" or "egt:k=32:t=0.5": see `gqe.rerank`. The first such
                search of an index or a store reads all embeddings into memory.
            dba: search the augmented database; None as the expander says, or if an index stores it. Refused
                by stores, which hold none.
            with_metadata: also give what an index or a store keeps of each result, as `metadata` of the
                answer: a list of dictionaries for each query. Refused where nothing is kept.

        Returns:
            (scores, ids): (m, k) each, or (k,) for one query, best first. Where there are fewer than k items,
            or a filter leaves fewer, scores are -inf and ids -1 (None for texts).
        """
        target = self.target
        with target.wrap_read_errors():
            batch = _Batch(target, queries, exclude)
            count = check_k(k, target.size)
            options = _options(target, rounds)
            allowed = None if filter is None else target.resolve_filter(filter)
            if with_metadata:
                target.metadata_of([])  # refuses before anything is searched
            augmented = target.resolve_dba(dba)
            reranking = target.reranking if rerank is None else parse_reranking(rerank)
            if target.size == 0:
                nothing = np.empty((len(batch), 0), np.float32), np.empty((len(batch), 0), np.int64)
                return batch.results(*nothing, k, with_metadata)
            vectors = batch.queries
            if expand:
                vectors = expand_queries(target, vectors, batch.exclude, exact, options)
            available = count if target.size is None else min(count, target.size)
            if reranking is None:
                found = target.nearest(vectors, available, batch.exclude, allowed, exact, augmented)
            else:
                reranker = target.bound_reranker(reranking, augmented)
                # One more than wanted, in the place of an excluded item that the re-ranker may bring in.
                wanted = min(max(available, reranker.num_candidates) + 1, reranker.size)
                found = target.nearest(vectors, wanted, batch.exclude, allowed, exact, augmented)
                if not reranker.knows(found.ids):  # items were added since it was bound
                    target.rerankers.clear()
                    reranker = target.bound_reranker(reranking, augmented)
                found = reranker.rerank(vectors, found, available, allowed, batch.exclude)
            return batch.results(found.scores, found.ids, count, with_metadata)

    def expand(
        self, queries: Any, *, exclude: Any = None, exact: bool | None = None, rounds: int | None = None
    ) -> Any:
        """Expanded queries (m, d), or one (d,), the same kind of array as given, float32 and of unit length.

        See `search` for the arguments.

        Example:
            >>> import gqe
            >>> database = np.eye(4, dtype=np.float32)
            >>> gqe.expander("aqe", k=1).fit(database).expand(database[:1]).round(2)
            array([[1., 0., 0., 0.]], dtype=float32)
        """
        target = self.target
        with target.wrap_read_errors():
            batch = _Batch(target, queries, exclude)
            expanded = expand_queries(target, batch.queries, batch.exclude, exact, _options(target, rounds))
            expanded = like(expanded, queries)
            return expanded[0] if batch.single else expanded

    def explain(
        self,
        queries: Any,
        *,
        top: int = 10,
        exclude: Any = None,
        exact: bool | None = None,
        rounds: int | None = None,
    ) -> Explanation:
        """The `top` items with the largest weights in each expanded query, through all levels and rounds.

        See `search` for the other arguments.
        """
        top = positive_int("top", top, most=MOST)
        target = self.target
        with target.wrap_read_errors():
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

    def weights(self, queries: Any, *, exclude: Any = None, rounds: int | None = None) -> sparse.csr_array:
        """Sparse (m, n) weights of all items in each expanded query, through all levels and rounds.

        Columns stand in the order of the database, or of the `ids` of an index. Weights are scaled so that
        the query itself has weight 1: the expanded query is the unit vector along
        `queries + weights @ database`. For DQE the query has weight 0 where it is no support vector; use
        `weights_and_own` to see both parts. Refused by stores: use `explain`.
        """
        return self.weights_and_own(queries, exclude=exclude, rounds=rounds).items

    def weights_and_own(self, queries: Any, *, exclude: Any = None, rounds: int | None = None) -> Weights:
        """Weights of the database items (m, n) and of the query itself (m,) in each expanded query."""
        target = self.target
        with target.wrap_read_errors():
            batch = _Batch(target, queries, exclude)
            if target.size is None:
                raise InputError("weights: a store does not number its items; use explain")
            weights, keys = query_weights(
                target, batch.queries, batch.exclude, None, _options(target, rounds)
            )
            columns = target.places_of(keys)[weights.items.indices]
            items = sparse.csr_array(
                (weights.items.data, columns, weights.items.indptr), shape=(len(batch), target.size)
            )
            items.sort_indices()
            return Weights(items, weights.own)

    def context(self, queries: Any, *, exclude: Any = None, exact: bool | None = None) -> QueryContext:
        """Queries with their neighbours and levels, for a look at each level's weights.

        Of several rounds this is the first. See `search` for the arguments.
        """
        target = self.target
        with target.wrap_read_errors():
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
        now = replace(options, contrast=0.0) if left else options
        contrast = now.contrast
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
            total.items.resize(len(queries), len(columns))
            before = scale_rows(total.items, local.own)
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
        _warn_if_swapped(target, queries, len(self))
        self.exclude = None if exclude is None else target.resolve_exclude(exclude, len(self))

    def __len__(self) -> int:
        return len(self.queries)

    def results(self, scores: Any, keys: Array, k: int, with_metadata: bool = False) -> SearchResult:
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
        result = SearchResult(values[0], ids[0]) if self.single else SearchResult(values, ids)
        if with_metadata:
            known = [key for key in dict.fromkeys(keys.reshape(-1).tolist()) if key != self._target.no_key]
            metadata = dict(zip(known, self._target.metadata_of(known), strict=True))
            rows = [[metadata.get(key) for key in row] for row in keys.tolist()]
            result.metadata = rows[0] if self.single else rows
        return result


def _warn_if_swapped(target: SearchTarget, queries: Any, count: int) -> None:
    """Say once what a search cannot know: that the database may have been given as queries."""
    name = getattr(queries, "filename", None)  # of a memory-mapped file
    if target.swap_warned or not target.size or not look_swapped(target.filename, name, target.size, count):
        return
    target.swap_warned = True
    message = "%d queries for a database of %d items: were they swapped? search takes the queries"
    log.warning(message, count, target.size)


def parse_reranking(text: str) -> Reranking:
    """A re-ranker as typed: its name and settings, without an expansion."""
    method = parse_method(text) if isinstance(text, str) else None
    if method is None or method.reranking is None or method.name != "none" or method.dba:
        raise InputError(f"rerank: expected a re-ranker such as 'reciprocal', got {text!r}")
    return method.reranking


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
