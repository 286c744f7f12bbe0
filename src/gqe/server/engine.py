"""What the service searches: a small contract, and an opened index that keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from gqe.errors import InputError
from gqe.index import Index
from gqe.index.manifest import MANIFEST
from gqe.models import SearchResult
from gqe.rerank.named import RERANKERS
from gqe.server.batching import Busy
from gqe.server.expanders import OWN, Expanders
from gqe.server.neighborhood import Neighborhood, neighborhood

Array = np.ndarray[Any, Any]
ItemId = int | str
NONE = "none"
"""The method of a search with queries as they are."""


class Options(NamedTuple):
    """How to search; requests with equal options are answered together.

    Attributes:
        k: How many results.
        method: "index" for the index's own expansion, "none", or another one such as "aqe:k=8".
        rerank: A re-ranker, or None.
        exact: See `Index.search`.
        filter: {column: value or values} as JSON, or None.
    """

    k: int
    method: str = OWN
    rerank: str | None = None
    exact: bool | None = None
    filter: str | None = None


class Engine(Protocol):
    """A searchable collection. Reading is called by one thread, writing by another one."""

    @property
    def title(self) -> str:
        """What it is called on the page."""

    @property
    def dimension(self) -> int:
        """Of the vectors."""

    @property
    def id_kind(self) -> str:
        """What items are named by: "int" or "text"."""

    @property
    def version(self) -> int:
        """Grows with every change."""

    @property
    def expansion(self) -> str:
        """Name of its own expansion."""

    def __len__(self) -> int: ...

    def __contains__(self, item: object) -> bool: ...

    def methods(self, allowed: Sequence[str], most_items: int) -> list[str]:
        """Those of the allowed methods it can offer now, its own one first."""

    def rerankers(self, allowed: Sequence[str]) -> list[str]:
        """Those of the allowed re-rankers it can offer."""

    def vectors(self, ids: Sequence[ItemId]) -> Array:
        """(m, d) float32 vectors of items; InputError names one that is not there."""

    def some_ids(self, start: int, count: int, *, spread: bool = False) -> list[ItemId]:
        """Ids of items in their order; with `spread`, at equal distances from the first to the last."""

    def search(self, queries: Array, exclude: Sequence[ItemId | None], options: Options) -> SearchResult:
        """(scores, ids) (m, k) for queries (m, d)."""

    def explain(
        self, query: Array, exclude: ItemId | None, method: str, first: int, second: int
    ) -> Neighborhood:
        """Whom a query (d,) and its neighbours listen to."""

    def add(self, vectors: Array, ids: Sequence[ItemId] | None, metadata: Any) -> list[ItemId]:
        """Add items and return their ids, when they are safely stored."""

    def remove(self, ids: Sequence[ItemId]) -> None:
        """Remove items; returns when that is safely stored."""

    def outdated(self) -> bool:
        """Whether somebody else changed the collection. Asked often, by any thread."""

    def reload(self) -> None:
        """See what others changed; called by the thread that writes."""


class IndexEngine:
    """An opened index as an engine.

    Args:
        index: The index. Nobody else may use this object while it is served.
        title: What it is called on the page; the name of its folder if None.
    """

    def __init__(self, index: Index, title: str | None = None) -> None:
        self.index = index
        self.title = index.path.name if title is None else title
        self._expanders = Expanders(index.expander)
        self._seen = self._signature()

    @property
    def dimension(self) -> int:
        """See `Engine`."""
        return self.index.dimension

    @property
    def id_kind(self) -> str:
        """See `Engine`."""
        return self.index.id_kind

    @property
    def version(self) -> int:
        """See `Engine`."""
        return self.index.version

    @property
    def expansion(self) -> str:
        """See `Engine`."""
        return self.index.expander.name

    def __len__(self) -> int:
        return len(self.index)

    def __contains__(self, item: object) -> bool:
        return item in self.index

    def methods(self, allowed: Sequence[str], most_items: int) -> list[str]:
        """See `Engine`."""
        return [OWN, NONE, *(allowed if len(self) <= most_items else ())]

    def rerankers(self, allowed: Sequence[str]) -> list[str]:
        """See `Engine`; those that read more neighbours than the index keeps are left out."""
        manifest = self.index._snapshot.manifest
        kept = len(self) if manifest.augmented else manifest.width
        return [name for name in allowed if name in RERANKERS and RERANKERS[name]().reach <= kept]

    def vectors(self, ids: Sequence[ItemId]) -> Array:
        """See `Engine`."""
        import torch

        snapshot = self.index._snapshot
        rows = np.array([snapshot.ids.find([each], snapshot.alive)[0] for each in ids], dtype=np.int64)
        return np.asarray(snapshot.vectors.index_select(0, torch.from_numpy(rows)).float().numpy())

    def some_ids(self, start: int, count: int, *, spread: bool = False) -> list[ItemId]:
        """See `Engine`."""
        snapshot = self.index._snapshot
        rows = np.flatnonzero(snapshot.alive)
        if spread and len(rows):
            chosen = rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64))]
        else:
            chosen = rows[start : start + count]
        return list(snapshot.ids.take(chosen).tolist())

    def search(self, queries: Array, exclude: Sequence[ItemId | None], options: Options) -> SearchResult:
        """See `Engine`."""
        left_out = list(exclude) if any(each is not None for each in exclude) else None
        if options.method not in (OWN, NONE):
            queries = self._expanders.expand(self.index, queries, exclude, options.method)
        chosen: Mapping[str, Any] | None = None if options.filter is None else json.loads(options.filter)
        return self.index.search(
            queries,
            options.k,
            expand=options.method == OWN,
            exclude=left_out,
            filter=chosen,
            exact=options.exact,
            rerank=options.rerank,
        )

    def explain(
        self, query: Array, exclude: ItemId | None, method: str, first: int, second: int
    ) -> Neighborhood:
        """See `Engine`."""
        if method == NONE:
            raise InputError("method: none listens to nobody; choose another one to explain")
        asked = self._expanders.asked(self.index, query, exclude, method)
        return neighborhood(asked, first, second)

    def add(self, vectors: Array, ids: Sequence[ItemId] | None, metadata: Any) -> list[ItemId]:
        """See `Engine`."""
        with _one_writer():
            self.index.add(vectors, ids=None if ids is None else list(ids), metadata=metadata)
        self._seen = self._signature()
        snapshot = self.index._snapshot
        last = snapshot.manifest.rows
        return list(snapshot.ids.take(np.arange(last - len(vectors), last)).tolist())

    def remove(self, ids: Sequence[ItemId]) -> None:
        """See `Engine`."""
        with _one_writer():
            self.index.remove(list(ids))
        self._seen = self._signature()

    def outdated(self) -> bool:
        """See `Engine`."""
        return self._signature() != self._seen

    def reload(self) -> None:
        """See `Engine`."""
        self._seen = self._signature()  # before reading: what changes meanwhile is noticed later
        self.index.reopen()

    def _signature(self) -> tuple[int, int] | None:
        """Differs after every change: manifests are renamed into their place."""
        try:
            found = (self.index.path / MANIFEST).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


@contextmanager
def _one_writer() -> Iterator[None]:
    """Another process that changes the index at this moment is no mistake of who asks."""
    try:
        yield
    except InputError as error:
        if isinstance(error.__cause__, BlockingIOError):
            raise Busy("another process is changing the index") from error
        raise
