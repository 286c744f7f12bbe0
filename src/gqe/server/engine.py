"""What the service searches: a small contract that an index and a vector database keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from gqe.retrieval import SearchResult
from gqe.server.expanders import OWN
from gqe.server.neighborhood import Neighborhood

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


def each_once(ids: Sequence[ItemId], fetch: Callable[[list[ItemId]], Array]) -> Array:
    """(m, d) rows of items, each of which is fetched once however often it is asked for."""
    different = list(dict.fromkeys(ids))
    table = fetch(different)
    if len(different) == len(ids):
        return table
    places = {each: place for place, each in enumerate(different)}
    return np.asarray(table[[places[each] for each in ids]])


class Engine(Protocol):
    """A searchable collection. Reading is called by one thread, writing by another one, `prepare` by a third.

    What a request got wrong is an InputError; what may work later is `batching.Busy`.
    """

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

    def takes_k(self, method: str, most_items: int) -> bool:
        """Whether a method is offered with another K than its own."""

    def rerankers(self, allowed: Sequence[str]) -> list[str]:
        """Those of the allowed re-rankers it can offer."""

    def fixed(self) -> Engine:
        """The collection as it is now, for reading: answers belong together, whatever others change."""

    def ready_for(self, method: str, rerank: str | None = None) -> Engine | None:
        """The same, if a search by this method and re-ranker can begin at once; asked by any thread."""

    def prepare(self, method: str, rerank: str | None = None) -> Engine:
        """Make what they need, however long that takes, and give the collection as it was then."""

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
        """Whether somebody else changed the collection; Busy if it can no longer be read. Asked often."""

    def reload(self) -> None:
        """See what others changed; called by the thread that writes."""

    def close(self) -> None:
        """Give back what is held open; called last."""
