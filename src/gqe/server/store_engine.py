"""A vector database behind the service: both searches run there, the expansion here."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from gqe.errors import InputError
from gqe.index.items import check_ids
from gqe.models import Expander
from gqe.rerank import RERANKERS
from gqe.results import SearchResult
from gqe.server.batching import Busy
from gqe.server.engine import NONE, Array, ItemId, SearchOptions, fetch_unique
from gqe.server.expanders import OWN, expander_of
from gqe.server.weight_graph import Node, WeightGraph, weight_graph
from gqe.stores import Connection
from gqe.stores.address import collection_of, parse
from gqe.stores.attachment import STATE
from gqe.stores.base import Unreachable

log = logging.getLogger(__name__)

Result = TypeVar("Result")
# Seconds between looks at what others changed, and how small a share of the time they may take.
_LOOK_EVERY, _LOOK_SHARE = 5.0, 0.02
# Items that are listed; a database gives them in order only one after the other.
_LISTED = 100_000
# Items among which those at equal distances are chosen.
_SPREAD = 1000


class StoreEngine:
    """A connection to a vector database as an engine.

    Levels are those of the last `gqe store sync`: until the next one, new items take part with their own
    vector. A lost connection is made anew; reads that met the loss are tried once more.

    Args:
        connection: With levels attached. Nobody else may use this object while it is served.
        title: What it is called on the page; the name of its table or collection if None.
    """

    def __init__(self, connection: Connection, title: str | None = None) -> None:
        self.connection = connection
        self.title = _title_of(connection.address) if title is None else title
        self.dimension, self.id_kind = connection.dimension, connection.id_kind
        self.version = 1
        self._expanders: dict[str, Expander] = {}
        self._first: dict[tuple[int, bool], list[ItemId]] = {}
        self._expansion = connection.expander.name  # refuses a store without levels
        self._prepared: frozenset[tuple[int, str]] = frozenset()
        self._count = len(connection)
        self._state = self._state_now()
        self._look_at = time.monotonic() + _LOOK_EVERY

    @property
    def expansion(self) -> str:
        """See `Engine`."""
        return self._expansion

    def __len__(self) -> int:
        return self._count

    def __contains__(self, item: object) -> bool:
        try:
            wanted = check_ids([item], 1, self.id_kind)
        except InputError:
            return False
        with self._wrap_errors():
            return bool(len(self.connection.store.existing_ids(wanted)))

    def methods(self, allowed: Sequence[str], most_items: int) -> list[str]:
        """See `Engine`: beside what is attached, those of a single level, which need nothing attached."""
        return [OWN, NONE, *(name for name in allowed if len(self._expander(name).stack) == 1)]

    def takes_k(self, method: str, most_items: int) -> bool:
        """See `Engine`; what is attached has its K."""
        return method not in (OWN, NONE)

    def rerankers(self, allowed: Sequence[str], most_items: int) -> list[str]:
        """See `Engine`; they read all vectors into memory."""
        return [name for name in allowed if name in RERANKERS and len(self) <= most_items]

    def snapshot(self) -> StoreEngine:
        """See `Engine`; a database is always as it is."""
        return self

    def ready_for(self, method: str, rerank: str | None = None) -> StoreEngine | None:
        """See `Engine`; what is attached is ready, and a single level needs nothing."""
        return self if rerank is None or (self.version, rerank) in self._prepared else None

    def prepare(self, method: str, rerank: str | None = None) -> StoreEngine:
        """See `Engine`: a re-ranker reads everything into memory."""
        version = self.version
        if rerank is not None and len(self):
            self.search(self.vectors(self.list_ids(0, 1)), [None], SearchOptions(1, NONE, rerank))
        if rerank is not None:
            known = {each for each in self._prepared if each[0] == version}
            self._prepared = frozenset(known | {(version, rerank)})
        return self

    def vectors(self, ids: Sequence[ItemId]) -> Array:
        """See `Engine`."""
        return fetch_unique(ids, self._unit_vectors)

    def _unit_vectors(self, ids: list[ItemId]) -> Array:
        table = self._read(lambda: self.connection.fetch(ids))
        lengths = np.linalg.norm(table, axis=1, keepdims=True)
        if not (lengths > 0).all() or not np.isfinite(lengths).all():
            at = int(np.argmin(np.where(np.isfinite(lengths[:, 0]), lengths[:, 0], -1)))
            raise InputError(f"ids: the vector of item {ids[at]!r} has no direction; choose another one")
        return np.asarray(table / lengths, dtype=np.float32)

    def metadata(self, ids: Sequence[ItemId]) -> list[dict[str, Any]]:
        """See `Engine`: payloads, fields or columns."""
        return self._read(lambda: self.connection.get(list(ids)))

    def list_ids(self, start: int, count: int, *, spread: bool = False) -> list[ItemId]:
        """See `Engine`; spread over the first ones, for a database may hold very many."""
        if start >= _LISTED:
            raise InputError(f"start: of a database the first {_LISTED} items are listed; give a smaller one")
        if start:
            return self._names(start, count)
        if (count, spread) not in self._first:
            found = self._names(0, _SPREAD if spread else count)
            if spread and found:
                places = np.linspace(0, len(found) - 1, min(count, len(found))).astype(np.int64)
                found = [found[place] for place in np.unique(places)]
            self._first = {**dict(itertools.islice(self._first.items(), 7)), (count, spread): found}
        return self._first[count, spread]

    def _names(self, start: int, count: int) -> list[ItemId]:
        def read_names() -> list[ItemId]:
            pages = self.connection.store.names(max(1, min(start + count, 10_000)))
            names = itertools.chain.from_iterable(page.tolist() for page in pages)
            return list(itertools.islice(names, start, start + count))

        return self._read(read_names)

    def search(
        self, queries: Array, exclude: Sequence[ItemId | None], options: SearchOptions
    ) -> SearchResult:
        """See `Engine`."""
        chosen: Mapping[str, Any] | None = None if options.filter is None else json.loads(options.filter)
        return self._read(
            lambda: self.connection.search(
                queries,
                options.k,
                expand=options.method != NONE,
                exclude=list(exclude) if any(each is not None for each in exclude) else None,
                filter=chosen,
                exact=bool(options.exact),
                rounds=options.rounds,
                rerank=options.rerank,
                with_metadata=options.with_metadata,
                expander=self._other(options.method),
            )
        )

    def explain(
        self, query: Array, exclude: ItemId | None, method: str, first: int, second: int
    ) -> WeightGraph:
        """See `Engine`."""
        if method == NONE:
            raise InputError("method: none has no neighbour weights; choose another one to explain")
        context = self._read(
            lambda: self.connection.context(query[None], exclude=[exclude], expander=self._other(method))
        )
        if not len(context.source):
            return WeightGraph([Node(None, 0, 1.0)], [], 0)
        return weight_graph(context, first, second)

    def add(self, vectors: Array, ids: Sequence[ItemId] | None, metadata: Any) -> list[ItemId]:
        """See `Engine`."""
        if ids is None:
            raise InputError("ids: a database does not number its items; give an id for each vector")
        with self._wrap_errors():
            self.connection.add(vectors, list(ids), fields=metadata)
        self._count_change(len(vectors))
        return list(ids)

    def remove(self, ids: Sequence[ItemId]) -> None:
        """See `Engine`."""
        with self._wrap_errors():
            self.connection.remove(list(ids))
        self._count_change(-len(ids))

    def _count_change(self, more: int) -> None:
        self._count = max(0, self._count + more)
        self._first = {}
        self.version += 1

    def is_outdated(self) -> bool:
        """See `Engine`: whether something was attached or synced, or the number of items is another one."""
        begun = time.monotonic()
        if begun < self._look_at:
            return False
        self._look_at = begun + _LOOK_EVERY
        with self._wrap_errors():
            count = self._count
            different = self._state_now() != self._state or len(self.connection) != count
        took = time.monotonic() - begun
        self._look_at = begun + max(_LOOK_EVERY, took / _LOOK_SHARE)
        return different and count == self._count  # else a change of our own came in between

    def reload(self) -> None:
        """See `Engine`."""
        with self._wrap_errors():
            self._state = self._state_now()  # before reading: what changes meanwhile is noticed later
            self.connection.reopen()
            self._expansion = self.connection.expander.name
            self._count_change(len(self.connection) - self._count)

    def close(self) -> None:
        """See `Engine`."""
        self.connection.close()

    def _other(self, method: str) -> Expander | None:
        return None if method in (OWN, NONE) else self._expander(method)

    def _expander(self, method: str) -> Expander:
        if method not in self._expanders:
            if len(self._expanders) > 64:
                self._expanders = {}
            self._expanders[method] = expander_of(method)
        return self._expanders[method]

    def _state_now(self) -> dict[str, Any] | None:
        """What is attached, without how far work on it is."""
        text = self.connection.store.read_about([STATE]).get(STATE)
        state: dict[str, Any] = {} if text is None else json.loads(text)
        state.pop("cursor", None)
        return state or None

    def _read(self, work: Callable[[], Result]) -> Result:
        """Do something that may be done twice: a connection that was idle for long is often lost."""
        with self._wrap_errors():
            try:
                return work()
            except Unreachable:
                return work()

    @contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        """An unreachable database is no fault of the request, and its address is not shown to clients."""
        try:
            yield
        except Unreachable as error:
            log.warning("%s", error)
            raise Busy("the database is out of reach") from None
        except InputError as error:
            raise InputError(str(error).replace(self.connection.address, self.title)) from None


def _title_of(shown: str) -> str:
    address = parse(shown)
    return address.options.get("table") or collection_of(address)[0]
