"""An index behind the service whose shards are searched by a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from gqe.cluster.serving import ShardedServing, ShardUnavailable
from gqe.errors import InputError
from gqe.results import SearchResult
from gqe.server.batching import Busy
from gqe.server.engine import Array, ItemId, SearchOptions
from gqe.server.index_engine import IndexEngine
from gqe.server.weight_graph import WeightGraph

log = logging.getLogger(__name__)


class ShardedEngine(IndexEngine):
    """An index as an engine, both of whose searches are those of `gqe.cluster.serving.ShardedServing`.

    It takes no changes. A version that another process has written is served when all of its shards are open;
    until then, and by requests that have begun, the one before is searched.

    Args:
        path: The folder of the index, which all nodes see under this path.
        settings: Of `ShardedServing`.
    """

    def __init__(self, path: str | os.PathLike[str], **settings: Any) -> None:
        with ExitStack() as stack:
            self._serving = stack.enter_context(ShardedServing(path, **settings))
            super().__init__(self._serving.index)
            self._stack = stack.pop_all()

    def search(
        self, queries: Array, exclude: Sequence[ItemId | None], options: SearchOptions
    ) -> SearchResult:
        """See `Engine`."""
        with _wrap_errors():
            return super().search(queries, exclude, options)

    def explain(
        self, query: Array, exclude: ItemId | None, method: str, first: int, second: int
    ) -> WeightGraph:
        """See `Engine`."""
        with _wrap_errors():
            return super().explain(query, exclude, method, first, second)

    def add(self, vectors: Array, ids: Sequence[ItemId] | None, metadata: Any) -> list[ItemId]:
        """See `Engine`."""
        raise InputError("shards are searched and not changed here; use `gqe index add`")

    def remove(self, ids: Sequence[ItemId]) -> None:
        """See `Engine`."""
        raise InputError("shards are searched and not changed here; use `gqe index remove`")

    def close(self) -> None:
        """See `Engine`."""
        self._stack.close()

    def _reopen(self) -> None:
        self._serving.reopen()
        self.index = self._serving.index


@contextmanager
def _wrap_errors() -> Iterator[None]:
    """A shard that does not answer is no fault of the request."""
    try:
        yield
    except ShardUnavailable as error:
        log.warning("%s", error)
        raise Busy("a part of the index is out of reach") from None
