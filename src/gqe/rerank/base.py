"""What every re-ranker does: know a database and its graph, then reorder results of queries it never saw."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import blocks, rows
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph
from gqe.registry import Registered
from gqe.results import SearchResult

MOST_ITERATIONS = 10_000
"""Of a solver or of training, at most."""


RERANKERS: dict[str, type[Reranker]] = {}
"""All re-rankers by the name that users type."""


class Reranker(Registered, ABC):
    """Reorders search results by what the neighbour graph of the database says.

    A query is never part of the graph: it is known by its first results alone, so it may be new.
    Settings are keyword arguments of `__init__`, with the values of the papers as defaults, see `Registered`.
    """

    registry: ClassVar[dict[str, type[Reranker]]] = RERANKERS

    @property
    @abstractmethod
    def graph_k(self) -> int:
        """How many neighbours of every database item the graph must hold; 0 if it is not looked at."""

    @property
    def num_candidates(self) -> int:
        """How many first results of a query are looked at."""
        return self.graph_k

    @abstractmethod
    def size(self) -> int:
        """Bytes kept after `fit` beyond the database and its graph."""

    @abstractmethod
    def fit(self, database: Tensor, graph: NeighborGraph, *, device: torch.device) -> Self:
        """Work out once what depends on the database alone.

        Args:
            database: (n, d) checked embeddings (`gqe.embeddings.as_table`), on the CPU.
            graph: (n, >= min(graph_k, n - 1)) neighbours of the items, without themselves.
            device: where to compute what is dense.
        """

    @abstractmethod
    def rerank(self, queries: Tensor, first: NeighborGraph) -> SearchResult:
        """Reorder the first results.

        Args:
            queries: (m, d) the embeddings that were searched with.
            first: (m, R) their results in the database given to `fit`, best first, -1 = missing.

        Returns:
            R results a query. Items that the method brings in may push out the last ones; items it says
            nothing about follow behind, in their old order (`order_results`).
        """

    def _check(self, queries: Tensor, first: NeighborGraph, n: int | None) -> None:
        """Refuse results that do not belong to the queries or to the n items of `fit`; None before it."""
        if n is None:
            raise InputError(f"{self.name}: it knows no database yet; call fit first")
        if len(queries) != len(first):
            raise InputError(f"first: it has {len(first)} rows, there are {len(queries)} queries")
        first.check(n, of_database=False)

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.settings().items())
        return f"{type(self).__name__}({shown})"


class CandidateReranker(Reranker):
    """A re-ranker that reads the embeddings of the first results and nothing else: `fit` computes nothing.

    Attributes:
        m: how many first results are ranked anew.
    """

    m: int
    _database: Tensor | None = None

    @property
    def graph_k(self) -> int:
        """How many neighbours of every database item the graph must hold: none, it is not used."""
        return 0

    @property
    def num_candidates(self) -> int:
        """How many first results of a query are read."""
        return self.m

    def size(self) -> int:
        """Bytes kept beside the database and its graph: none."""
        return 0

    def fit(self, database: Tensor, graph: NeighborGraph, *, device: torch.device) -> Self:
        """Keep the database; nothing is computed, and the graph is not read."""
        self._database, self._device = database, device
        return self

    @torch.no_grad()
    def rerank(self, queries: Tensor, first: NeighborGraph) -> SearchResult:
        """Rank the first m results by their scores (see `Reranker.rerank`)."""
        self._check(queries, first, None if self._database is None else len(self._database))
        assert self._database is not None
        ids, near = first.ids[:, : self.m], first.ids[:, : self.num_candidates]
        scores = np.zeros(ids.shape, dtype=np.float32)
        if len(self._database) and near.shape[1]:
            for part in blocks(len(ids), 4 * self._numbers(near.shape[1], self._database.shape[1])):
                some = queries[part].to(self._device, torch.float32)
                numbers = torch.from_numpy(near[part])
                vectors = rows(self._database, numbers.clamp(min=0), self._device)
                found = self._scores(some, vectors, (numbers >= 0).to(self._device))
                scores[part] = found.cpu().numpy()
        return order_results(ids, scores, first)

    @abstractmethod
    def _numbers(self, width: int, dim: int) -> int:
        """How many numbers per query are in memory at once, with `width` results of dimension `dim`."""

    @abstractmethod
    def _scores(self, queries: Tensor, vectors: Tensor, present: Tensor) -> Tensor:
        """Scores (b, m) of queries (b, d) and results (b, R, d); any where `present` (b, R) is False."""


class Reranking(NamedTuple):
    """A re-ranker by its name, with its complete settings."""

    name: str
    settings: dict[str, Any]

    def make(self) -> Reranker:
        """A new re-ranker, not yet bound to a database; refuses settings that make no sense."""
        return RERANKERS[self.name](**self.settings)

    @property
    def changed_settings(self) -> dict[str, Any]:
        """The settings that differ from the defaults."""
        usual = RERANKERS[self.name].default_settings()
        return {key: value for key, value in self.settings.items() if value != usual[key]}

    def __str__(self) -> str:
        return self.name + "".join(f":{key}={value}" for key, value in self.changed_settings.items())


def check_width(graph: NeighborGraph, k: int) -> None:
    """Refuse a graph that holds fewer than k neighbours an item, unless there are no more items."""
    if graph.k < min(k, len(graph) - 1):
        raise InputError(f"graph: it holds {graph.k} neighbours an item, {k} are needed; rebuild it")


def order_results(ids: np.ndarray, scores: np.ndarray, first: NeighborGraph) -> SearchResult:
    """The ranking of scored items, followed by the first results that have no score, in their old order.

    Args:
        ids: (m, c) scored items, each at most once in a row, -1 = missing.
        scores: (m, c) their scores; ties go to the lower id.
        first: (m, R) results of the search.

    Returns:
        (m, R) the ranking. Scores of the items behind lie below all others and fall.
    """
    m, width = first.ids.shape
    result_ids = np.full((m, width), -1, dtype=np.int64)
    result_scores = np.full((m, width), -np.inf, dtype=np.float32)
    for row in range(m):
        present = ids[row] >= 0
        own, own_scores = ids[row][present], scores[row][present].astype(np.float32)
        order = np.lexsort((own, -own_scores))
        own, own_scores = own[order], own_scores[order]
        behind = first.ids[row]
        behind_at = np.flatnonzero((behind >= 0) & ~np.isin(behind, own))
        behind, similarities = behind[behind_at].astype(np.int64), first.similarities[row][behind_at]
        if len(behind) and len(own):
            similarities = similarities - similarities[0] + own_scores[-1] - np.float32(1)
        merged = np.concatenate([own, behind])[:width]
        result_ids[row, : len(merged)] = merged
        result_scores[row, : len(merged)] = np.concatenate([own_scores, similarities])[:width]
    return SearchResult(result_scores, result_ids)
