"""Expansion by the index's own method, or by another one that a request names, computed in memory."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gqe.errors import InputError
from gqe.hierarchy import Hierarchy
from gqe.index import Index
from gqe.index.searching import Searcher
from gqe.index.snapshot import Snapshot
from gqe.methods import METHODS, parse_method
from gqe.model_files import remade
from gqe.models import Expander, from_method
from gqe.neighbors import NeighborGraph

Array = np.ndarray[Any, Any]
OWN = "index"
"""The method of the index itself."""
_KEPT = 3  # methods that stay bound to the items
_WRITTEN = re.compile(r"([a-z]+(?:-[a-z]+)*)(?::k=([1-9][0-9]{0,3}))?")


class Named(NamedTuple):
    """A method as a request names it, with its K or None for the usual one."""

    name: str
    k: int | None


def named(text: str, offered: Sequence[str], most_neighbors: int) -> Named:
    """Read NAME[:k=K]. Nothing else may be set from outside: names of models are paths of files.

    Example:
        >>> named("aqe:k=8", ["index", "aqe"], 64)
        Named(name='aqe', k=8)
    """
    match = _WRITTEN.fullmatch(text)
    if match is None or match[1] not in offered:
        raise InputError(f"method: {text!r:.60} is not offered here; choose {', '.join(offered)}, with :k=K")
    k = None if match[2] is None else int(match[2])
    if k is not None and (k > most_neighbors or match[1] == "none"):
        raise InputError(f"method: k={k} is not offered here; the largest K is {most_neighbors}")
    return Named(match[1], k)


class Asked(NamedTuple):
    """A query on its way to an explanation.

    Attributes:
        hierarchy: The levels that are listened to.
        query: (1, d).
        neighbors: (1, K) of the query, as rows.
        ids_of: Gives the ids of rows.
    """

    hierarchy: Hierarchy
    query: Tensor
    neighbors: NeighborGraph
    ids_of: Callable[[Array], Array]


class Expanders:
    """Methods bound to the newest version of an index; the last few are kept.

    Args:
        own: The expander of the index.
    """

    def __init__(self, own: Expander) -> None:
        self._own = own
        self._memory: _Memory | None = None

    def expand(self, index: Index, queries: Array, exclude: Sequence[Any], method: str) -> Array:
        """Queries (m, d), expanded by another method than the index's own."""
        memory = self._of(index._snapshot)
        expander = memory.expander(method, self._own)
        return np.asarray(expander.expand(queries, exclude=memory.places_of(exclude)))

    def asked(self, index: Index, query: Array, exclude: Any, method: str) -> Asked:
        """A query (d,) with its neighbours, and the levels that a method listens to."""
        if method == OWN:
            return _asked_of_index(index._searcher, query, exclude)
        memory = self._of(index._snapshot)
        expander = memory.expander(method, self._own)
        table, near = expander._asked(query[None], memory.places_of([exclude]))
        return Asked(expander.hierarchy, table, near, memory.ids_of)

    def _of(self, snapshot: Snapshot) -> _Memory:
        if self._memory is None or self._memory.snapshot.manifest.state != snapshot.manifest.state:
            self._memory = None  # its room first
            self._memory = _Memory(snapshot)
        return self._memory


class _Memory:
    """All vectors and lists of one version, numbered without removed items."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.rows = np.flatnonzero(snapshot.alive)
        self.places = np.full(len(snapshot.alive) + 1, -1, dtype=np.int64)  # the last one serves id -1
        self.places[self.rows] = np.arange(len(self.rows))
        self.table = snapshot.vectors.index_select(0, torch.from_numpy(self.rows)).float()
        self._bound: OrderedDict[str, Expander] = OrderedDict()

    def expander(self, method: str, own: Expander) -> Expander:
        """A method bound to the items."""
        if method not in self._bound:
            made = _made(method, own)
            reach, graph = max(level.reach for level in made.stack), None
            if reach <= self.snapshot.manifest.width:
                lists = self.snapshot.graph.take(self.rows)
                graph = NeighborGraph(self.places[lists.ids], lists.similarities)
            self._bound[method] = made.fit(self.table, graph)
            while len(self._bound) > _KEPT:
                self._bound.popitem(last=False)
        self._bound.move_to_end(method)
        return self._bound[method]

    def places_of(self, ids: Sequence[Any]) -> Array | None:
        """(m,) numbers of items by id, -1 for None; None if all are."""
        if all(each is None for each in ids):
            return None
        known, alive = self.snapshot.ids, self.snapshot.alive
        rows = [-1 if each is None else int(known.find([each], alive, "exclude")[0]) for each in ids]
        return self.places[rows]

    def ids_of(self, numbers: Array) -> Array:
        """Ids of items by number."""
        return self.snapshot.ids.take(self.rows[numbers])


def _made(method: str, own: Expander) -> Expander:
    name, _, k = method.partition(":k=")
    if name != OWN:
        if name not in METHODS:
            raise InputError(f"method: {name!r} is unknown")
        return from_method(parse_method(method))
    return Expander(remade(own.stack, k=int(k)), own.name)


def _asked_of_index(searcher: Searcher, query: Array, exclude: Any) -> Asked:
    asked, _ = searcher._checked(query[None])
    near = searcher._neighbors(asked, searcher._omitted([exclude], 1, False), None)
    graph = NeighborGraph(near.ids.cpu().numpy(), near.similarities.cpu().numpy())
    return Asked(searcher.chains.query, asked, graph, searcher.snapshot.ids.take)
