"""How long the rows of a streamed database will take, from a few items timed before anything is measured."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from gqe.methods import Method, parse_method, parse_methods
from gqe.methods import method as named
from gqe.models import Expander
from gqe.neighbors import NeighborGraph, knn
from gqe.planning.quantities import as_time
from gqe.reproduce.measuring import Measurer
from gqe.reproduce.rows import UNIVERSAL, Row, model_k
from gqe.reproduce.streaming import GRAPH_K, StreamedBench, is_complete
from gqe.reproduce.suite import Place

GRAPH = "neighbours of all items"
# Items to time levels with, rows to search in, queries to search with: a GPU needs more to show its speed.
_TIMED = {"cpu": 48, "cuda": 1024}
_SEARCHED = {"cpu": 1 << 14, "cuda": 1 << 17}
_QUERIES = {"cpu": 64, "cuda": 4096}


def estimated(measurer: Measurer, rows: Sequence[Row]) -> Iterator[str]:
    """Lines such as "planted+distractors, DBA + GQE: about 4 h", then the sum; none for small databases.

    Args:
        measurer: rows that it leaves out are not timed.
        rows: those with the database augmented; the others take minutes.
    """
    for place in measurer.suite.tests:
        bench = measurer.stream(place) if measurer.streamed(place) else None
        if bench is None:
            continue
        n = len(bench.table)
        costs = {GRAPH: _graph_seconds(bench)}
        unless = "" if bench.recall is None else " without --graph-recall"
        for row in rows:
            method = None if measurer.manner.leaves_out(row.title) else _method(measurer, row, place)
            if method is None or measurer.store.get(measurer.key(place, method)) is not None:
                continue
            costs[row.title] = _seconds_per_item(bench, method) * n
        for name, seconds in costs.items():
            yield f"{place.name}, {name}: about {as_time(seconds)}{unless if name == GRAPH else ''}"
        total = as_time(sum(costs.values()))
        yield f"{place.name}, {n:,} items: about {total} in all, and minutes for each other row"


def _method(measurer: Measurer, row: Row, place: Place) -> Method | None:
    """One that costs as much as the row's; which settings are best is not known yet."""
    if row.grid:
        return parse_methods(measurer.suite.grids[row.grid])[-1]
    if row.same_k:
        return parse_method(f"{row.same_k}:k={model_k(measurer, place.space)}")
    folder = UNIVERSAL if row.model == UNIVERSAL else measurer.suite.model(place.space, row.model)
    if folder is None:
        return None
    return named(f"dba-{folder}", **({row.change: 1} if row.change else {}))


def _graph_seconds(bench: StreamedBench) -> float:
    """Of comparing all items with each other, from some of them."""
    folder, k = bench.graph_folder(GRAPH_K)
    if is_complete(folder):
        return 0.0
    part = bench.table[: _SEARCHED[bench.device.type]]
    queries = part[: _QUERIES[bench.device.type]]
    knn(part, k, queries=queries, device=bench.device)
    started = time.perf_counter()
    knn(part, k, queries=queries, device=bench.device)
    return (time.perf_counter() - started) / len(queries) * len(bench.table) ** 2 / len(part)


def _seconds_per_item(bench: StreamedBench, method: Method) -> float:
    """Of augmenting, from a few items whose neighbours are each other."""
    stack = bench.encoding(method.database_stack(method.stack()))
    graph_k = max(level.graph_k for level in stack)
    part = bench.table[: max(_TIMED[bench.device.type], graph_k + 1)]
    graph_k = min(graph_k, len(part) - 1)
    ids = (np.arange(len(part))[:, None] + np.arange(1, graph_k + 1)) % len(part)
    similarities = np.tile(np.linspace(0.9, 0.1, graph_k, dtype=np.float32), (len(part), 1))
    seconds = 0.0
    for _ in range(2):  # the first time is slower
        started = time.perf_counter()
        Expander(stack).fit(part, NeighborGraph(ids, similarities), device=bench.device).augment()
        seconds = time.perf_counter() - started
    return seconds / len(part)
