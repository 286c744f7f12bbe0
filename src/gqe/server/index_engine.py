"""An opened index behind the service."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.index import Index
from gqe.index.manifest import MANIFEST
from gqe.models import SearchResult
from gqe.rerank.named import RERANKERS
from gqe.server.batching import Busy
from gqe.server.engine import NONE, Array, ItemId, Options, each_once
from gqe.server.expanders import OWN, Expanders
from gqe.server.neighborhood import Neighborhood, neighborhood
from gqe.stores.embedded import as_function
from gqe.stores.filters import conditions


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

    def takes_k(self, method: str, most_items: int) -> bool:
        """See `Engine`; another K than the stored one is computed in memory."""
        return method != NONE and len(self) <= most_items

    def rerankers(self, allowed: Sequence[str]) -> list[str]:
        """See `Engine`; those that read more neighbours than the index keeps are left out."""
        kept = len(self) if self.index.augmented else self.index.neighbors_kept
        return [name for name in allowed if name in RERANKERS and RERANKERS[name]().reach <= kept]

    def vectors(self, ids: Sequence[ItemId]) -> Array:
        """See `Engine`."""
        return each_once(ids, self.index.vectors)

    def some_ids(self, start: int, count: int, *, spread: bool = False) -> list[ItemId]:
        """See `Engine`."""
        index = self._now()
        last = len(index)
        if spread and last:
            places = np.unique(np.linspace(0, last - 1, min(count, last)).astype(np.int64))
        else:
            places = np.arange(min(start, last), min(start + count, last))
        return list(index.ids_at(places).tolist())

    def search(self, queries: Array, exclude: Sequence[ItemId | None], options: Options) -> SearchResult:
        """See `Engine`."""
        left_out = list(exclude) if any(each is not None for each in exclude) else None
        if options.method not in (OWN, NONE):
            queries = self._expanders.expand(self._now(), queries, exclude, options.method)
        chosen = None if options.filter is None else _filter(json.loads(options.filter))
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
        if method == OWN:
            asked = self.index.asked(query[None], exclude=[exclude])
        else:
            asked = self._expanders.asked(self._now(), query, exclude, method)
        return neighborhood(asked, first, second)

    def add(self, vectors: Array, ids: Sequence[ItemId] | None, metadata: Any) -> list[ItemId]:
        """See `Engine`."""
        with _one_writer():
            self.index.add(vectors, ids=None if ids is None else list(ids), metadata=metadata)
        self._seen = self._signature()
        return list(self.index.ids_at(np.arange(-len(vectors), 0)).tolist())

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

    def close(self) -> None:
        """See `Engine`."""

    def _now(self) -> Index:
        """The index as it is now: it stays at this version while the writer goes on."""
        return copy.copy(self.index)

    def _signature(self) -> tuple[int, int] | None:
        """Differs after every change: manifests are renamed into their place."""
        try:
            found = (self.index.path / MANIFEST).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


def _filter(given: dict[str, Any]) -> Any:
    """As an index takes it, which knows values but no bounds."""
    if any(isinstance(wanted, dict) for wanted in given.values()):
        return as_function(conditions(given))
    return given


@contextmanager
def _one_writer() -> Iterator[None]:
    """Another process that changes the index at this moment is no mistake of who asks."""
    try:
        yield
    except InputError as error:
        if isinstance(error.__cause__, BlockingIOError):
            raise Busy("another process is changing the index") from error
        raise
