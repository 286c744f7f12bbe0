"""What can be searched: a `SearchTarget` says how its database is searched and what expansion reads of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators import Aggregator
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph, knn
from gqe.neighbors.candidates import Candidates
from gqe.neighbors.search import excluded_ids, nearest
from gqe.progress import Report
from gqe.query_options import QueryOptions
from gqe.rerank import Reranking
from gqe.results import SearchResult, remove_results
from gqe.source import LevelSource, MemorySource

Array: TypeAlias = np.ndarray[Any, Any]


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
        rerankers: those that were bound to all items.
        filename: of the database, if it is a memory-mapped file.
        swap_warned: whether a warning of swapped database and queries was given, or is not wanted.
    """

    dim: int
    device: torch.device
    reranking: Reranking | None = None
    no_key: Any = -1
    filename: str | None = None
    swap_warned: bool = False

    def __init__(self) -> None:
        self.rerankers: dict[tuple[str, bool], BoundReranker] = {}

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
    def wrap_read_errors(self) -> Iterator[None]:
        """A context around everything that reads the database: checks its files, and words their errors."""
        yield

    def metadata_of(self, keys: list[Any]) -> list[dict[str, Any] | None]:
        """What is kept of items beside their vectors; None for one that has just been removed."""
        raise InputError(
            "with_metadata: nothing is kept beside vectors in memory; build an Index with metadata, or"
            " connect to a store"
        )

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
            exact: see `Searchable.search`.
            lists: whether the lists of those neighbours, and so on, are read, too: for weights.
        """

    @abstractmethod
    def nearest(
        self, queries: Tensor, k: int, exclude: Array | None, allowed: Any, exact: bool | None, dba: bool
    ) -> SearchResult:
        """The second search: scores (m, <= k) and keys, in the database or in the augmented one."""

    @abstractmethod
    def resolve_dba(self, dba: bool | None) -> bool:
        """Whether the augmented database is searched; None for what is usual here."""

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

    def bound_reranker(self, reranking: Reranking, dba: bool) -> BoundReranker:
        """A re-ranker bound to all items, once."""
        key = (str(reranking), dba)
        if key not in self.rerankers:
            self.rerankers[key] = BoundReranker(self, reranking, dba)
        return self.rerankers[key]

    def with_tensor_ids(self) -> bool:
        """Whether ids are numbers, which go back as a tensor where queries came as one."""
        return True


class BoundReranker:
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
        """How many first results of a query are looked at."""
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
        scores, places = remove_results(ranking, refused, count)
        keys = np.where(places >= 0, self._keys[places.clip(min=0)], self._target.no_key)
        return SearchResult(scores, keys)


class MemoryTarget(SearchTarget):
    """A database in memory.

    Args:
        source: its levels.
        options: how queries are expanded.
        reranking: what reorders results.
        database_stack: what augments the database.
        dba: whether the augmented database is searched unless a call says otherwise.
    """

    def __init__(
        self,
        source: MemorySource,
        options: QueryOptions,
        reranking: Reranking | None = None,
        database_stack: list[Aggregator] | None = None,
        *,
        dba: bool = False,
    ) -> None:
        super().__init__()
        self.dim, self.device = source.dim, source.device
        self.source = source
        self.reranking = reranking
        self._options = options
        self._database_stack = database_stack
        self._dba = dba
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

    def augment(self, progress: Report | None = None) -> Tensor:
        """(n, d) the augmented database, computed once."""
        if self._augmented is None:
            self._augmented = self.source.augment(self._database_stack, progress)
        return self._augmented

    def resolve_dba(self, dba: bool | None) -> bool:
        """See `SearchTarget`."""
        return self._dba if dba is None else bool(dba)

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
        table = self.augment() if dba else self.source.database
        found = self._search(table, queries, k, exclude)
        return SearchResult(found.similarities, found.ids.astype(np.int64))

    def whole_database(self, k: int, dba: bool) -> WholeDatabase:
        """See `SearchTarget`."""
        n = len(self.source)
        width = max(1, min(k, n - 1))
        if not dba:
            return WholeDatabase(self.source.database.cpu(), self.source.graph_of(width), np.arange(n))
        graph = knn(self.augment(), width, device=self.device)
        return WholeDatabase(self.augment().cpu(), graph, np.arange(n))

    def _search(self, table: Tensor, queries: Tensor, k: int, exclude: Array | None) -> NeighborGraph:
        excluded = None if exclude is None else torch.from_numpy(exclude)
        return nearest(table, queries, k, excluded, device=self.device)
