"""How long the rows of a streamed database will take, from a few items timed before anything is measured."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch

from gqe.aggregators import Aggregator
from gqe.hierarchy import Hierarchy
from gqe.methods import Method, parse_method, parse_methods
from gqe.methods import method as named
from gqe.neighbors import NeighborGraph
from gqe.neighbors.search import nearest
from gqe.planning.quantities import as_time
from gqe.reproduce.clustered import Clustered, lists_for
from gqe.reproduce.filed import finished
from gqe.reproduce.measuring import Measurer
from gqe.reproduce.rows import UNIVERSAL, Row, model_k
from gqe.reproduce.streaming import GRAPH_K, StreamedBench
from gqe.reproduce.suite import Place

# Items to time levels with, rows to search in, queries to search with: a GPU needs more to show its speed.
_TIMED = {"cpu": 48, "cuda": 1024}
_SEARCHED = {"cpu": 1 << 14, "cuda": 1 << 17}
_ASKED = {"cpu": 64, "cuda": 4096}
_ITEMS = 1024
# An approximate graph compares each item with about this share of all: 582 of 2005 lists of a million made-up
# vectors gave 0.95 of the neighbours.
_SHARE = 0.3


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
        costs = {"neighbours of all items": _graph_seconds(bench)}
        for row in rows:
            method = None if measurer.manner.leaves_out(row.title) else _method(measurer, row, place)
            if method is None or measurer.store.get(measurer.key(place, method)) is not None:
                continue
            costs[row.title] = _seconds_an_item(bench, method) * n
        for name, seconds in costs.items():
            yield f"{place.name}, {name}: about {as_time(seconds)}"
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
    n = len(bench.table)
    if finished(bench.graph_file(GRAPH_K)[0], n):
        return 0.0
    part = bench.searched[: _SEARCHED[bench.device.type]]  # a part of the table tells, and takes no minute
    if bench.approximate:
        lists = Clustered.in_order(part, n // lists_for(n))
        one = lists.members(0)
        share, asked, search = _SHARE, len(one), partial(lists.neighbors, one, GRAPH_K)
    else:
        some = part[: _ASKED[bench.device.type]]
        k = min(GRAPH_K, len(part))
        share, asked = 1.0, len(some)
        search = partial(nearest, part, some, k, None, device=bench.device)
    search()
    started = time.perf_counter()
    search()
    return share * (time.perf_counter() - started) / asked * n * n / len(part)


def _seconds_an_item(bench: StreamedBench, method: Method) -> float:
    stack = bench.encoding(method.database_stack(method.stack()))
    table = bench.searched[:_ITEMS]
    graph_k = min(max(level.graph_k for level in stack), len(table) - 1)
    places = np.arange(len(table))[:, None] + np.arange(1, graph_k + 1)
    similarities = np.tile(np.linspace(0.9, 0.1, graph_k, dtype=np.float32), (len(table), 1))
    graph = NeighborGraph((places % len(table)).astype(np.int32), similarities)
    return sum(_level_seconds(level, table, graph, bench.device) for level in stack)


def _level_seconds(
    level: Aggregator, table: torch.Tensor, graph: NeighborGraph, device: torch.device
) -> float:
    """Of one level for one item."""
    hierarchy = Hierarchy([level], table, graph, device=device)
    timed = _TIMED[device.type]
    some = NeighborGraph(graph.ids[:timed], graph.similarities[:timed])
    queries = table[:timed]
    hierarchy.expand(queries[:2], NeighborGraph(some.ids[:2], some.similarities[:2]))
    started = time.perf_counter()
    hierarchy.expand(queries, some)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - started) / len(queries)
