"""An opened index behind the service."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gqe.errors import DamagedError, InputError, StorageError
from gqe.index import Index
from gqe.index.files import FileRecord
from gqe.index.manifest import MANIFEST, read_manifest
from gqe.rerank import RERANKERS
from gqe.results import SearchResult
from gqe.server.batching import Busy
from gqe.server.engine import NONE, Array, ItemId, SearchOptions, fetch_unique
from gqe.server.expanders import OWN, BoundMethod, Expanders
from gqe.server.weight_graph import WeightGraph, weight_graph


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
        self._bound: BoundMethod | None = None
        self._reordered: frozenset[tuple[int, str]] = frozenset()
        self._seen = self._signature()
        self._named: tuple[object, dict[str, FileRecord]] = (None, {})

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

    def rerankers(self, allowed: Sequence[str], most_items: int) -> list[str]:
        """See `Engine`; those that read more neighbours than the index keeps are left out."""
        kept = len(self) if self.index.augmented else self.index.neighbors_kept
        return [name for name in allowed if name in RERANKERS and RERANKERS[name]().graph_k <= kept]

    def snapshot(self) -> IndexEngine:
        """See `Engine`; an index stays at its version while a copy of it changes."""
        now = copy.copy(self)
        now.index = copy.copy(self.index)
        return now

    def ready_for(self, method: str, rerank: str | None = None) -> IndexEngine | None:
        """See `Engine`."""
        now = self.snapshot()
        if rerank is not None and (now.version, rerank) not in now._reordered:
            return None
        if method not in (OWN, NONE):
            now._bound = self._expanders.ready(now.version, method)
        return now if now._bound is not None or method in (OWN, NONE) else None

    def prepare(self, method: str, rerank: str | None = None) -> IndexEngine:
        """See `Engine`: other methods are computed in memory, a re-ranker reads everything into it."""
        now = self.snapshot()
        if method not in (OWN, NONE):
            now._bound = self._expanders.make(now.index, method)
        if rerank is not None and len(now):
            now.index.search(now.vectors(now.list_ids(0, 1)), 1, expand=False, rerank=rerank)
        if rerank is not None:
            known = {each for each in self._reordered if each[0] == now.version}
            self._reordered = frozenset(known | {(now.version, rerank)})
        return now

    def vectors(self, ids: Sequence[ItemId]) -> Array:
        """See `Engine`."""
        return fetch_unique(ids, self.index.vectors)

    def metadata(self, ids: Sequence[ItemId]) -> list[dict[str, Any]]:
        """See `Engine`."""
        return self.index.get(list(ids))

    def list_ids(self, start: int, count: int, *, spread: bool = False) -> list[ItemId]:
        """See `Engine`."""
        index = self.snapshot().index
        last = len(index)
        if spread and last:
            places = np.unique(np.linspace(0, last - 1, min(count, last)).astype(np.int64))
        else:
            places = np.arange(min(start, last), min(start + count, last))
        return list(index.ids_at(places).tolist())

    def search(
        self, queries: Array, exclude: Sequence[ItemId | None], options: SearchOptions
    ) -> SearchResult:
        """See `Engine`."""
        left_out = list(exclude) if any(each is not None for each in exclude) else None
        if options.method not in (OWN, NONE):
            queries = self._bound_method(options.method).expand(queries, exclude)
        chosen = None if options.filter is None else json.loads(options.filter)
        return self.index.search(
            queries,
            options.k,
            expand=options.method == OWN,
            exclude=left_out,
            filter=chosen,
            exact=options.exact,
            rerank=options.rerank,
            rounds=options.rounds,
            with_metadata=options.with_metadata,
        )

    def explain(
        self, query: Array, exclude: ItemId | None, method: str, first: int, second: int
    ) -> WeightGraph:
        """See `Engine`."""
        if method == NONE:
            raise InputError("method: none has no neighbour weights; choose another one to explain")
        if method == OWN:
            context = self.index.context(query[None], exclude=[exclude])
        else:
            context = self._bound_method(method).context(query, exclude)
        return weight_graph(context, first, second)

    def add(self, vectors: Array, ids: Sequence[ItemId] | None, metadata: Any) -> list[ItemId]:
        """See `Engine`."""
        with self._wrap_lock_errors():
            self.index.add(vectors, ids=None if ids is None else list(ids), metadata=metadata)
            self._seen = self._signature()
            return list(self.index.ids_at(np.arange(-len(vectors), 0)).tolist())

    def remove(self, ids: Sequence[ItemId]) -> None:
        """See `Engine`."""
        with self._wrap_lock_errors():
            self.index.remove(list(ids))
            self._seen = self._signature()

    def is_outdated(self) -> bool:
        """See `Engine`; files that are gone can still be searched, but never opened again."""
        seen = self._signature()
        if seen != self._seen and seen is not None:
            return True
        try:
            self._check_files(seen)
        except (OSError, StorageError) as error:
            if self._signature() != seen:
                return True  # a writer has just put others into their place
            raise Busy(str(error)) from error
        return False

    def reload(self) -> None:
        """See `Engine`."""
        seen = self._signature()  # before reading: what changes meanwhile is noticed later
        self._reopen()
        self._expanders = Expanders(self.index.expander)
        self._reordered = frozenset()
        self._seen = seen

    def close(self) -> None:
        """See `Engine`."""

    def _reopen(self) -> None:
        self.index.reopen()

    def _bound_method(self, method: str) -> BoundMethod:
        return self._bound or self._expanders.make(self.snapshot().index, method)

    def _signature(self) -> tuple[int, int] | None:
        """Differs after every change: manifests are renamed into their place."""
        try:
            found = (self.index.path / MANIFEST).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _check_files(self, seen: tuple[int, int] | None) -> None:
        """Whether every file that the manifest names has its size."""
        if seen is None or self._named[0] != seen:
            self._named = (seen, read_manifest(self.index.path).files)
        for name, record in self._named[1].items():
            path = self.index.path / name
            if path.stat().st_size != record.bytes:
                raise DamagedError(f"{path}: damaged, it has another size; restore it from a copy")

    @contextmanager
    def _wrap_lock_errors(self) -> Iterator[None]:
        """A lock that another writer holds is Busy: it will be free soon."""
        try:
            yield
        except StorageError as error:
            if isinstance(error.__cause__, BlockingIOError):
                raise Busy("another process is changing the index") from error
            raise
