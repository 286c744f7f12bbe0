"""Expansion by the index's own method, or by another one that a request names, computed in memory."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from gqe.errors import InputError
from gqe.index import Index
from gqe.methods import METHODS, parse_method
from gqe.model_files import rebuild
from gqe.models import Expander, from_method
from gqe.neighbors import NeighborGraph
from gqe.retrieval import QueryContext
from gqe.server.schemas import METHOD_PATTERN
from gqe.server.weight_graph import weight_graph

Array = np.ndarray[Any, Any]
OWN = "index"
"""The method of the index itself."""
_KEPT = 3  # methods that stay bound to the items
_SYNTAX = re.compile(METHOD_PATTERN)
_MAX_LEVELS = 3


class RequestedMethod(NamedTuple):
    """A method as a request names it.

    Attributes:
        text: The method with its settings, as `gqe.expander` reads it; "index" for the index's own one.
        rounds: Of the index's own method, if nothing else of it is changed; None as it was built.
        rerank: A re-ranker behind it, or None.
    """

    text: str
    rounds: int | None = None
    rerank: str | None = None


def parse_requested(
    text: str, offered: Sequence[str], max_neighbors: int, max_rounds: int
) -> RequestedMethod:
    """Read NAME[:SETTING=NUMBER]...[+RERANKER]; only offered names, since names of models are paths of files.

    Example:
        >>> parse_requested("aqe:k=8+reciprocal", ["index", "aqe"], 64, 3)
        RequestedMethod(text='aqe:k=8', rounds=None, rerank='reciprocal')
    """
    match = _SYNTAX.fullmatch(text)
    if match is None or match[1] not in offered:
        names = ", ".join(offered)
        raise InputError(f"method: {text!r:.60} is not offered here; choose {names}, with :k=K or :rounds=R")
    name, settings, rerank = match.groups()
    method = parse_method(f"{'aqe' if name == OWN else name}{settings}")  # refuses wrong values
    changed = {key: value for key, value in method.settings.items() if f":{key}=" in settings}
    for key, most in (("k", max_neighbors), ("rounds", max_rounds), ("levels", _MAX_LEVELS)):
        if changed.get(key, 0) > most:
            raise InputError(f"method: {key}={changed[key]} is not offered here; the largest is {most}")
    if name != OWN:
        return RequestedMethod(f"{name}{settings}", None, rerank)
    if changed.keys() - {"k", "contrast", "rounds"}:
        raise InputError("method: the index's own method takes k, contrast and rounds; leave the others out")
    if changed.keys() <= {"rounds"}:
        return RequestedMethod(OWN, changed.get("rounds"), rerank)
    return RequestedMethod(OWN + settings, None, rerank)


class BoundMethod:
    """A method bound to all items of one version of an index.

    Args:
        memory: The items.
        expander: Bound to them.
    """

    def __init__(self, memory: _Memory, expander: Expander) -> None:
        self._memory, self._expander = memory, expander

    @property
    def index(self) -> Index:
        """The version."""
        return self._memory.index

    def expand(self, queries: Array, exclude: Sequence[Any]) -> Array:
        """Expanded queries (m, d)."""
        return np.asarray(self._expander.expand(queries, exclude=self._memory.places_of(exclude)))

    def context(self, query: Array, exclude: Any) -> QueryContext:
        """A query (d,) with its neighbours, and the levels that the method reads."""
        context = self._expander.context(query[None], exclude=self._memory.places_of([exclude]))
        return context._replace(ids=lambda rows: self._memory.ids[rows])


class Expanders:
    """Methods bound to the newest version of an index; those used last are kept.

    Args:
        own: The expander of the index.
    """

    def __init__(self, own: Expander) -> None:
        self._own = own
        self._memory: _Memory | None = None
        self._bound: OrderedDict[str, BoundMethod] = OrderedDict()
        self._lock = threading.Lock()

    def ready(self, version: int, method: str) -> BoundMethod | None:
        """What was made for a method and this version, if it is still there."""
        with self._lock:
            bound = self._bound.get(method)
            if bound is None or bound.index.version != version:
                return None
            self._bound.move_to_end(method)
            return bound

    def make(self, index: Index, method: str) -> BoundMethod:
        """Bind another method than the index's own; called by one thread only.

        Args:
            index: One version; nobody may change this object.
            method: See `parse_requested`.
        """
        known = self.ready(index.version, method)
        if known is not None:
            return known
        if self._memory is None or self._memory.index.version != index.version:
            with self._lock:
                self._bound.clear()
            self._memory = None  # its room first
            self._memory = _Memory(index)
        expander = self._memory.fit(_create(method, self._own))
        bound, source = BoundMethod(self._memory, expander), expander.target.source
        source.level(source.depth - 1)  # of every item, here rather than when somebody asks
        for query in self._memory.table[:1].numpy():  # so are graph and statistics
            bound.expand(query[None], [None])
            weight_graph(bound.context(query, None), 1, 1)
        with self._lock:
            self._bound[method] = bound
            while len(self._bound) > _KEPT:
                self._bound.popitem(last=False)
        return bound


class _Memory:
    """All vectors and lists of one version, numbered in the order of its ids."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.ids = index.ids
        self.table = torch.from_numpy(index.vectors(self.ids))
        self._places = {each: place for place, each in enumerate(self.ids.tolist())}

    def fit(self, made: Expander) -> Expander:
        """An expander bound to the items."""
        graph_k, graph = max(level.graph_k for level in made.stack), None
        if graph_k <= self.index.neighbors_kept:
            lists = self.index.neighbors(self.ids)
            near = [self._places.get(each, -1) for each in lists.ids.reshape(-1).tolist()]
            graph = NeighborGraph(np.array(near, dtype=np.int64).reshape(lists.ids.shape), lists.scores)
        return made.fit(self.table, graph, device=self.index.device)

    def places_of(self, ids: Sequence[Any]) -> Array | None:
        """(m,) numbers of items by id, -1 for None; None if all are."""
        if all(each is None for each in ids):
            return None
        missing = [each for each in ids if each is not None and each not in self._places]
        if missing:
            raise InputError(f"exclude: no item {missing[0]!r} in the index; check the ids")
        return np.array([-1 if each is None else self._places[each] for each in ids], dtype=np.int64)


def _create(method: str, own: Expander) -> Expander:
    """The expander of a method; settings of the index's own one change that."""
    if not method.startswith(OWN):
        return expander_of(method)
    settings = parse_method(f"aqe{method.removeprefix(OWN)}").settings
    changed = {key: value for key, value in settings.items() if f":{key}=" in method}
    stack = rebuild(own.stack, k=changed.pop("k")) if "k" in changed else own.stack
    return Expander(stack, own.name, query_options=replace(own.query_options, **changed))


def expander_of(method: str) -> Expander:
    """The expander of NAME[:SETTING=VALUE]...; never of a file."""
    name = method.partition(":")[0]
    if name not in METHODS:
        raise InputError(f"method: {name!r} is unknown")
    return from_method(parse_method(method))
