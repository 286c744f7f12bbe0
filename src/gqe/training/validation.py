"""Validation: mean average precision of a stack on held-out benchmarks, and on hard versions of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator
from gqe.embeddings import as_table
from gqe.errors import InputError
from gqe.hierarchy import Hierarchy
from gqe.neighbors import NeighborGraph, knn


@dataclass
class Benchmark:
    """Queries and a database with labels; label -1 is relevant to nobody. The graph is kept once built."""

    name: str
    queries: Tensor
    query_labels: np.ndarray[Any, Any]
    database: Tensor
    database_labels: np.ndarray[Any, Any]
    device: str = "cpu"
    _lists: tuple[NeighborGraph, NeighborGraph] | None = None

    @classmethod
    def load(cls, name: str, path: str | Path, device: str = "cpu") -> Benchmark:
        """Read an .npz with queries, query_labels, database and database_labels."""
        wanted = ("queries", "query_labels", "database", "database_labels")
        try:
            with np.load(path) as file:
                queries, query_labels, database, labels = (file[key] for key in wanted)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path}: not a benchmark with {', '.join(wanted)} ({error})") from None
        return cls.of(name, queries, query_labels, database, labels, device)

    @classmethod
    def of(
        cls, name: str, queries: Any, query_labels: Any, database: Any, labels: Any, device: str = "cpu"
    ) -> Benchmark:
        """Make one from arrays."""
        table = as_table(database, f"{name}: database").to(device, torch.float32)
        asked = as_table(queries, f"{name}: queries", dim=table.shape[1]).to(device, torch.float32)
        return cls(name, asked, np.asarray(query_labels), table, np.asarray(labels), device)

    def lists(self, k: int) -> tuple[NeighborGraph, NeighborGraph]:
        """Neighbours of the database items and of the queries."""
        if self._lists is None or self._lists[0].k < k:
            self._lists = (
                knn(self.database, k, device=self.device),
                knn(self.database, k, queries=self.queries, device=self.device),
            )
        return self._lists

    def few_relevant(self, most: int, *, seed: int = 0) -> Benchmark:
        """The same with at most so many relevant items a class: where expansion can easily do harm."""
        order = np.random.default_rng(seed).permutation(len(self.database_labels))
        labels = self.database_labels[order]
        by_class = np.argsort(labels, kind="stable")
        grouped = labels[by_class]
        place = np.arange(len(grouped)) - np.searchsorted(grouped, grouped)
        kept = np.sort(order[by_class[(place < most) | (grouped < 0)]])
        rows = torch.from_numpy(kept).to(self.database.device)
        name = f"{self.name}, at most {most} relevant"
        labels = self.database_labels[kept]
        return Benchmark(name, self.queries, self.query_labels, self.database[rows], labels, self.device)

    def changed(self, dim: int, noise: float, shift: float, *, seed: int = 0) -> Benchmark:
        """The same in another space: randomly projected, with noise and a common direction added."""
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(self.database.shape[1], dim, generator=generator)
        common = torch.randn(1, dim, generator=generator)
        common = shift * common / common.norm()

        def change(x: Tensor) -> Tensor:
            y = torch.nn.functional.normalize(x.cpu() @ matrix, dim=1)
            y = y + noise * torch.randn(y.shape, generator=generator) / dim**0.5 + common
            return torch.nn.functional.normalize(y, dim=1).to(x.device)

        name = f"{self.name}, {dim}-d, noise {noise}, shift {shift}"
        database, queries = change(self.database), change(self.queries)
        return Benchmark(name, queries, self.query_labels, database, self.database_labels, self.device)


def expanded_precision(stack: Sequence[Aggregator], benchmark: Benchmark) -> dict[str, float]:
    """Measure mAP (0 to 100) of expanded queries on the plain database ("qe") and the expanded one ("dba").

    An empty stack measures the embeddings as they are.
    """
    queries, database = benchmark.queries, benchmark.database
    if not stack:
        plain = benchmark_precision(queries @ database.T, benchmark)
        return {"qe": plain, "dba": plain}
    reach = max(aggregator.reach for aggregator in stack)
    graph, asked = benchmark.lists(reach)
    hierarchy = Hierarchy(stack, database, graph, device=database.device)
    expanded = hierarchy.expand(queries, asked)
    return {
        "qe": benchmark_precision(expanded @ database.T, benchmark),
        "dba": benchmark_precision(expanded @ hierarchy.augment().T, benchmark),
    }


def benchmark_precision(similarities: Tensor, benchmark: Benchmark) -> float:
    """Measure mAP (0 to 100) of similarities (m, n) by the labels of a benchmark."""
    device = similarities.device
    asked = torch.from_numpy(benchmark.query_labels.astype(np.int64)).to(device)
    labels = torch.from_numpy(benchmark.database_labels.astype(np.int64)).to(device)
    relevant = (asked[:, None] == labels) & (asked[:, None] >= 0)
    precision = average_precision(similarities, relevant)[relevant.any(dim=1)]
    return 100 * float(precision.mean()) if len(precision) else float("nan")


def average_precision(similarities: Tensor, relevant: Tensor) -> Tensor:
    """Average precision (m,) by the revisited protocol's trapezoids (Radenović et al., CVPR 2018).

    Args:
        similarities: (m, n).
        relevant: (m, n) bool; a query without any gets 0.
    """
    order = similarities.argsort(dim=1, descending=True, stable=True)
    hits = relevant.gather(1, order).double()
    rank = torch.arange(hits.shape[1], device=hits.device, dtype=torch.float64)
    found = hits.cumsum(dim=1) - hits  # relevant items before this place
    before = torch.where(rank > 0, found / rank.clamp(min=1), torch.ones_like(found))
    after = (found + 1) / (rank + 1)
    total = hits.sum(dim=1).clamp(min=1)
    return ((before + after) / 2 * hits).sum(dim=1) / total
