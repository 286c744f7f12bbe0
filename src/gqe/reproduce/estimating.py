"""How long the rows of a streamed database will take, from a few items timed before anything is measured."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from gqe.methods import Method, parse_methods
from gqe.models import Expander
from gqe.neighbors import NeighborGraph, knn
from gqe.planning.quantities import as_time
from gqe.reproduce.measuring import Measurer
from gqe.reproduce.rows import MethodRow, fixed_method
from gqe.reproduce.streaming import GRAPH_K, StreamedBench, is_complete

# Items to time levels with, rows to search in, queries to search with: a GPU needs more to show its speed.
_TIMED = {"cpu": 48, "cuda": 1024}
_SEARCHED = {"cpu": 1 << 14, "cuda": 1 << 17}
_QUERIES = {"cpu": 64, "cuda": 4096}


def estimate_cost(measurer: Measurer, rows: Sequence[MethodRow]) -> Iterator[str]:
    """Lines such as "planted+distractors, DBA + GQE: about 4 h", then the sum; none for small databases.

    Args:
        measurer: rows that it leaves out are not timed.
        rows: those with the database augmented; the others take minutes.
    """
    for entry in measurer.suite.tests:
        bench = measurer.bench(entry)
        if not isinstance(bench, StreamedBench):
            continue
        n = len(bench.table)
        exact = _graph_seconds(bench)
        without = "" if bench.recall is None else " without --graph-recall"
        yield f"{entry.name}, neighbours of all items: about {as_time(exact)}{without}"
        total = exact
        for row in rows:
            if measurer.options.is_left_out(row.title):
                continue
            if row.grid:  # any setting costs about as much; which one is best is not known yet
                method: Method | None = parse_methods(measurer.suite.grids[row.grid])[-1]
            else:
                method = fixed_method(measurer, row, entry.space)
            if method is None or measurer.store.get(measurer.key(entry, method)) is not None:
                continue
            seconds = _seconds_per_item(bench, method) * n
            yield f"{entry.name}, {row.title}: about {as_time(seconds)}"
            total += seconds
        yield f"{entry.name}, {n:,} items: about {as_time(total)} in all, and minutes for each other row"


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
    """Of augmenting, from a few items whose neighbours are each other; more of them if that was fast."""
    stack = bench.encoding(method.database_stack(method.stack()))
    graph_k = max(level.graph_k for level in stack)
    few = max(_TIMED[bench.device.type], graph_k + 1)
    seconds, items = 0.0, 1
    for size in (few, few, 8 * few):  # the first time is slower
        part = bench.table[:size]
        width = min(graph_k, len(part) - 1)
        ids = (np.arange(len(part))[:, None] + np.arange(1, width + 1)) % len(part)
        similarities = np.tile(np.linspace(0.9, 0.1, width, dtype=np.float32), (len(part), 1))
        started = time.perf_counter()
        Expander(stack).fit(part, NeighborGraph(ids, similarities), device=bench.device).augment()
        seconds, items = time.perf_counter() - started, len(part)
        if seconds > 1:
            break
    return seconds / items
