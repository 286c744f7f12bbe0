"""Expansion by the index's own method, or by another one that a request names, computed in memory."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gqe.errors import InputError
from gqe.hierarchy import Asked
from gqe.index import Index
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
        memory = self._of(index)
        expander = memory.expander(method, self._own)
        return np.asarray(expander.expand(queries, exclude=memory.places_of(exclude)))

    def asked(self, index: Index, query: Array, exclude: Any, method: str) -> Asked:
        """A query (d,) with its neighbours, and the levels that another method listens to."""
        memory = self._of(index)
        expander = memory.expander(method, self._own)
        asked = expander.asked(query[None], exclude=memory.places_of([exclude]))
        return asked._replace(ids=lambda rows: memory.ids[rows])

    def _of(self, index: Index) -> _Memory:
        if self._memory is None or self._memory.index.version != index.version:
            self._memory = None  # its room first
            self._memory = _Memory(index)
        return self._memory


class _Memory:
    """All vectors and lists of one version, numbered in the order of its ids."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.ids = index.ids
        self.table = torch.from_numpy(index.vectors(self.ids))
        self._places = {each: place for place, each in enumerate(self.ids.tolist())}
        self._bound: OrderedDict[str, Expander] = OrderedDict()

    def expander(self, method: str, own: Expander) -> Expander:
        """A method bound to the items."""
        if method not in self._bound:
            made = _made(method, own)
            reach, graph = max(level.reach for level in made.stack), None
            if reach <= self.index.neighbors_kept:
                lists = self.index.neighbors(self.ids)
                near = [self._places.get(each, -1) for each in lists.ids.reshape(-1).tolist()]
                graph = NeighborGraph(np.array(near, dtype=np.int64).reshape(lists.ids.shape), lists.scores)
            self._bound[method] = made.fit(self.table, graph)
            while len(self._bound) > _KEPT:
                self._bound.popitem(last=False)
        self._bound.move_to_end(method)
        return self._bound[method]

    def places_of(self, ids: Sequence[Any]) -> Array | None:
        """(m,) numbers of items by id, -1 for None; None if all are."""
        if all(each is None for each in ids):
            return None
        missing = [each for each in ids if each is not None and each not in self._places]
        if missing:
            raise InputError(f"exclude: no item {missing[0]!r} in the index; check the ids")
        return np.array([-1 if each is None else self._places[each] for each in ids], dtype=np.int64)


def _made(method: str, own: Expander) -> Expander:
    name, _, k = method.partition(":k=")
    if name != OWN:
        return expander_of(method)
    return Expander(remade(own.stack, k=int(k)), own.name, contrast=own.contrast)


def expander_of(method: str) -> Expander:
    """The expander of NAME[:k=K]."""
    name = method.partition(":")[0]
    if name not in METHODS:
        raise InputError(f"method: {name!r} is unknown")
    return from_method(parse_method(method))
