"""Methods side by side on one benchmark: each neighbour list and graph is computed once and shared."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gqe.aggregators import Aggregator
from gqe.datasets.base import Benchmark
from gqe.embeddings import as_table, blocks
from gqe.errors import InputError
from gqe.evaluation.ground_truth import (
    GroundTruth,
    LabelGroundTruth,
    RevisitedGroundTruth,
    as_ground_truth,
)
from gqe.evaluation.metrics import check_cutoffs
from gqe.evaluation.protocol import evaluate
from gqe.evaluation.quality import Quality, agreement_diversity
from gqe.evaluation.result import Evaluation
from gqe.expansion import expand
from gqe.methods import Method
from gqe.negatives import subtract_negatives
from gqe.neighbors import NeighborGraph, knn
from gqe.neighbors.search import resolve_device
from gqe.query_options import NEGATIVE_RANKS, QueryOptions
from gqe.rerank import Reranking
from gqe.results import SearchResult, remove_excluded
from gqe.retrieval import expand_queries, query_weights
from gqe.source import LevelSource, MemorySource
from gqe.targets import MemoryTarget

log = logging.getLogger(__name__)


class MethodResult(NamedTuple):
    """What one method reached.

    Attributes:
        method: the method with its settings.
        evaluation: mAP and the other metrics.
        quality: Agreement and Diversity, if measured.
        seconds: time of expanding the queries (and augmenting the database) and of re-ranking the results,
            without the first search and without what a re-ranker does once for a database.
    """

    method: Method
    evaluation: Evaluation
    quality: Quality | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON: method, settings, the metrics, and Agreement and Diversity where measured."""
        result = self.method.to_dict() | self.evaluation.to_dict()
        if self.quality is not None:
            result |= {key: self.quality.to_dict()[key] for key in ("agreement", "diversity")}
        return result | {"seconds": round(self.seconds, 4)}


class _Expansion(NamedTuple):
    """Expanded queries (m, d), the database to search (n, d), and the time it took."""

    target: _BenchTarget
    queries: Tensor
    database: Tensor
    seconds: float


class Bench:
    """A benchmark on which methods are compared.

    Args:
        benchmark: queries, database and ground truth.
        device: "auto", "cpu", "cuda"...
        recall: build the database's graph approximately, with at least this recall.
        seed: for the approximate graph.
        ks: the list lengths of the metrics @k.

    Example:
        >>> from gqe.datasets import town
        >>> from gqe.methods import parse_method
        >>> outcome = Bench(town.load("val")).run(parse_method("aqe:k=6"))
        >>> outcome.evaluation.main > 0
        True
    """

    def __init__(
        self,
        benchmark: Benchmark,
        *,
        device: str | torch.device = "auto",
        recall: float | None = None,
        seed: int = 0,
        ks: Sequence[int] = (1, 5, 10),
    ) -> None:
        self.ks = check_cutoffs(ks)
        self.name = benchmark.name
        self.database = as_table(benchmark.database, f"{self.name} database")
        self.queries = as_table(benchmark.queries, f"{self.name} queries", dim=self.database.shape[1])
        if len(self.database) == 0:
            raise InputError(f"{self.name} database: it is empty; there is nothing to search")
        self.truth = self._check_truth(as_ground_truth(benchmark.ground_truth))
        self.device = resolve_device(device, self.database)
        self._recall = recall
        self._seed = seed
        self._graph: NeighborGraph | None = None
        self._neighbors: NeighborGraph | None = None
        self._last_search: tuple[str, _Expansion, NeighborGraph] | None = None

    def run(
        self,
        method: Method,
        *,
        quality: bool = False,
        database_stack: Sequence[Aggregator] | None = None,
    ) -> MethodResult:
        """Expand, search and evaluate with one method, perhaps with another stack on the database side."""
        if method.reranking is None:
            expansion, rerank_seconds = self._expand_by(method, database_stack), 0.0
            result = self._evaluate(expansion)
        else:
            expansion, ranking, rerank_seconds = self._rerank(method, method.reranking)
            result = evaluate(ranking.ids, self.truth, ks=self.ks)
        measured = None
        if quality:
            target = expansion.target
            weights, ids = query_weights(target, self.queries, self._exclude, None, target.options)
            columns = (weights.items.data, ids[weights.items.indices], weights.items.indptr)
            items = sparse.csr_array(columns, shape=(len(self.queries), len(self.database)))
            measured = agreement_diversity(items, self.truth)
        log.info("%s: %s mAP %.2f in %.2f s", self.name, method, result.main, expansion.seconds)
        return MethodResult(method, result, measured, expansion.seconds + rerank_seconds)

    def evaluate(self, stack: Sequence[Aggregator], *, dba: bool = False) -> Evaluation:
        """Expand, search and evaluate with any stack, perhaps on both sides."""
        return self._evaluate(self._expand(stack, stack if dba else None))

    def evaluate_contrasts(
        self, stack: Sequence[Aggregator], contrasts: Sequence[float]
    ) -> list[tuple[Evaluation, Evaluation]]:
        """Expand with any stack, subtract negatives with each contrast, search and evaluate.

        The plain database is searched, and the one that the same stack has augmented.
        """
        source = self._target(stack, stack, QueryOptions()).source
        near = self._query_neighbors(max(source.graph_k, NEGATIVE_RANKS[1]))
        expanded = expand(source, self.queries, near)
        augmented = source.augment()

        def result(queries: Tensor, database: Tensor) -> Evaluation:
            return evaluate(all_scores(queries, database, self.device), self.truth, ks=self.ks)

        subtracted = (subtract_negatives(expanded, source, near, contrast) for contrast in contrasts)
        return [(result(queries, self.database), result(queries, augmented)) for queries in subtracted]

    def first(self, method: Method, k: int) -> np.ndarray[Any, Any]:
        """(m, k) ids of the first results of a method, best first."""
        if method.reranking is not None:
            return np.asarray(self._rerank(method, method.reranking)[1].ids[:, :k])
        return self._search(self._expand_by(method), k).ids

    def compare(
        self,
        methods: Sequence[Method],
        *,
        quality: bool = False,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> list[MethodResult]:
        """Run several methods; `progress(done, total, name)` is called before each and at the end."""
        outcomes = []
        for done, method in enumerate(methods):
            if progress is not None:
                progress(done, len(methods), str(method))
            outcomes.append(self.run(method, quality=quality))
        if progress is not None:
            progress(len(methods), len(methods), "")
        return outcomes

    def best(self, methods: Sequence[Method], **options: Any) -> MethodResult:
        """The method with the highest mAP (Medium for a revisited ground truth); the first of equals."""
        return max(self.compare(methods, **options), key=lambda outcome: outcome.evaluation.main)

    def _expand_by(self, method: Method, database_stack: Sequence[Aggregator] | None = None) -> _Expansion:
        stack = method.stack()
        other = (database_stack or method.database_stack(stack)) if method.dba else None
        return self._expand(stack, other, method.query_options)

    def _expand(
        self,
        stack: Sequence[Aggregator],
        database_stack: Sequence[Aggregator] | None,
        options: QueryOptions | None = None,
    ) -> _Expansion:
        """Expand the queries, and the database if there is a stack for it."""
        target = self._target(stack, database_stack, options or QueryOptions())
        # The first search comes before the clock starts.
        self._query_neighbors(min(target.options.num_neighbors(target.source.graph_k), len(self.database)))
        started = time.perf_counter()
        queries = expand_queries(target, self.queries, self._exclude, None, target.options)
        database = self.database if database_stack is None else target.source.augment(database_stack)
        return _Expansion(target, queries, database, time.perf_counter() - started)

    def _target(
        self,
        stack: Sequence[Aggregator],
        database_stack: Sequence[Aggregator] | None,
        options: QueryOptions,
    ) -> _BenchTarget:
        graph_k = max(aggregator.graph_k for aggregator in [*stack, *(database_stack or ())])
        needs_graph = len(stack) > 1 or any(aggregator.needs_context for aggregator in stack)
        graph = self._database_graph(graph_k) if needs_graph or database_stack is not None else None
        source = MemorySource(stack, self.database, graph, device=self.device)
        return _BenchTarget(self, source, options)

    def _evaluate(self, expansion: _Expansion) -> Evaluation:
        scores = all_scores(expansion.queries, expansion.database, self.device)
        return evaluate(scores, self.truth, ks=self.ks)

    def _rerank(self, method: Method, reranking: Reranking) -> tuple[_Expansion, SearchResult, float]:
        """All results of a search in the order of a re-ranker, and the seconds that this order took."""
        expansion, first = self._search_all(method.replace(reranking=None))
        reranker = reranking.make()
        if expansion.database is self.database:
            graph = self._database_graph(max(1, reranker.graph_k))
        else:
            graph = knn(expansion.database, max(1, reranker.graph_k), device=self.device)
        reranker.fit(expansion.database.cpu(), graph, device=self.device)
        started = time.perf_counter()
        ranking = reranker.rerank(expansion.queries.cpu(), first)
        seconds = time.perf_counter() - started
        return expansion, remove_excluded(ranking, self._exclude, first.k), seconds

    def _search_all(self, method: Method) -> tuple[_Expansion, NeighborGraph]:
        """The whole database in the order of a search; cached for the next settings of a re-ranker."""
        if self._last_search is None or self._last_search[0] != str(method):
            expansion = self._expand_by(method)
            self._last_search = (str(method), expansion, self._search(expansion, len(self.database)))
        return self._last_search[1:]

    def _search(self, expansion: _Expansion, k: int) -> NeighborGraph:
        queries, database = expansion.queries, expansion.database
        return knn(database, k, queries=queries, exclude=self._exclude, device=self.device)

    @property
    def _exclude(self) -> np.ndarray[Any, Any] | None:
        """The database ids of the queries' own entries, where the ground truth excludes them."""
        return self.truth.exclude if isinstance(self.truth, LabelGroundTruth) else None

    def _check_truth(self, truth: GroundTruth) -> GroundTruth:
        """The ground truth for this database, or a refusal before anything is computed.

        Items after those of a revisited ground truth are distractors, as the million of R1M are.
        """
        if truth.queries != len(self.queries):
            raise InputError(
                f"{self.name} ground truth: it has {truth.queries} queries,"
                f" but {len(self.queries)} query vectors were given"
            )
        size = len(self.database)
        if isinstance(truth, RevisitedGroundTruth) and truth.n is not None and truth.n < size:
            message = "%s: the %d items after the %d of the ground truth are taken as distractors"
            log.warning(message, self.name, size - truth.n, truth.n)
            truth = truth.with_distractors(size - truth.n)
        if truth.n not in (None, size):
            raise InputError(
                f"{self.name} ground truth: it labels {truth.n} database items, but {size} vectors were given"
            )
        truth.relevance(size)  # refuses ids outside the database
        return truth

    def _query_neighbors(self, k: int) -> NeighborGraph:
        if self._neighbors is None or self._neighbors.k < k:
            self._neighbors = knn(
                self.database, k, queries=self.queries, exclude=self._exclude, device=self.device
            )
        return self._neighbors

    def _database_graph(self, k: int) -> NeighborGraph:
        if self._graph is None or self._graph.k < k:
            self._graph = knn(self.database, k, recall=self._recall, device=self.device, seed=self._seed)
        return self._graph


class _BenchTarget(MemoryTarget):
    """The database of a benchmark, with cached neighbours of its queries."""

    def __init__(self, bench: Bench, source: MemorySource, options: QueryOptions) -> None:
        super().__init__(source, options)
        self._bench = bench

    def neighbors(
        self,
        queries: Tensor,
        k: int,
        exclude: np.ndarray[Any, Any] | None,
        exact: bool | None,
        *,
        lists: bool = False,
    ) -> tuple[LevelSource, NeighborGraph]:
        """See `SearchTarget`."""
        if queries is self._bench.queries:
            return self.source, self._bench._query_neighbors(k)
        return super().neighbors(queries, k, exclude, exact, lists=lists)


def all_scores(queries: Tensor, database: Tensor, device: torch.device) -> np.ndarray[Any, Any]:
    """(m, n) inner products, database rows converted a block at a time."""
    scores = np.empty((len(queries), len(database)), dtype=np.float32)
    rows = queries.to(device, torch.float32)
    for part in blocks(len(database), database.shape[1] * 4):
        scores[:, part] = (rows @ database[part].to(device, torch.float32).T).cpu().numpy()
    return scores
