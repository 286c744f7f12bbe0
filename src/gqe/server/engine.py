"""The protocol of what the service searches, implemented by an index and by a vector database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from gqe.results import SearchResult
from gqe.server.expanders import OWN
from gqe.server.weight_graph import WeightGraph

Array = np.ndarray[Any, Any]
ItemId = int | str
NONE = "none"
"""The method of a search without expansion."""


class SearchOptions(NamedTuple):
    """How to search; requests with equal options are answered by one call.

    Attributes:
        k: How many results.
        method: "index" for the index's own expansion, "none", or another one such as "aqe:k=8".
        rerank: A re-ranker, or None.
        exact: See `Searchable.search`.
        filter: {column: value or values} as JSON, or None.
        with_metadata: Whether results come with what is kept of each item.
        rounds: Of the index's own expansion; None as it was built.
    """

    k: int
    method: str = OWN
    rerank: str | None = None
    exact: bool | None = None
    filter: str | None = None
    rounds: int | None = None
    with_metadata: bool = False


def fetch_unique(ids: Sequence[ItemId], fetch: Callable[[list[ItemId]], Array]) -> Array:
    """(m, d) rows of items, each of which is fetched once however often it is named."""
    rows = {item: row for row, item in enumerate(dict.fromkeys(ids))}
    table = fetch(list(rows))
    return table if len(rows) == len(ids) else np.asarray(table[[rows[item] for item in ids]])


class Engine(Protocol):
    """A searchable collection. One thread calls what reads, another what writes, a third `prepare`.

    A mistake in a request is an InputError; what may work later is `batching.Busy`.
    """

    @property
    def title(self) -> str:
        """Its name on the page."""

    @property
    def dimension(self) -> int:
        """Of the vectors."""

    @property
    def id_kind(self) -> str:
        """The type of ids: "int" or "text"."""

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

    def takes_k(self, method: str, most_items: int) -> bool:
        """Whether a method is offered with another K than its own."""

    def rerankers(self, allowed: Sequence[str], most_items: int) -> list[str]:
        """Those of the allowed re-rankers it can offer."""

    def snapshot(self) -> Engine:
        """The current version, for reading, whatever is changed meanwhile."""

    def ready_for(self, method: str, rerank: str | None = None) -> Engine | None:
        """The same, if a search by this method and re-ranker can begin at once; called by any thread."""

    def prepare(self, method: str, rerank: str | None = None) -> Engine:
        """Compute what they need, however long that takes, and return the version that has it."""

    def vectors(self, ids: Sequence[ItemId]) -> Array:
        """(m, d) float32 vectors of items; InputError names one that does not exist."""

    def metadata(self, ids: Sequence[ItemId]) -> list[dict[str, Any]]:
        """What is kept of each item, {} for nothing; InputError names one that does not exist."""

    def list_ids(self, start: int, count: int, *, spread: bool = False) -> list[ItemId]:
        """Ids of items in their order; with `spread`, at equal distances from the first to the last."""

    def search(
        self, queries: Array, exclude: Sequence[ItemId | None], options: SearchOptions
    ) -> SearchResult:
        """(scores, ids) (m, k) for queries (m, d)."""

    def explain(
        self, query: Array, exclude: ItemId | None, method: str, first: int, second: int
    ) -> WeightGraph:
        """Neighbour weights of a query (d,) and of its neighbours."""

    def add(self, vectors: Array, ids: Sequence[ItemId] | None, metadata: Any) -> list[ItemId]:
        """Add items and return their ids, once they are stored durably."""

    def remove(self, ids: Sequence[ItemId]) -> None:
        """Remove items; returns once that is stored durably."""

    def is_outdated(self) -> bool:
        """Whether another process changed the collection; Busy if it cannot be read. Called often."""

    def reload(self) -> None:
        """Read what other processes changed; called by the thread that writes."""

    def close(self) -> None:
        """Release what is open; called last."""
