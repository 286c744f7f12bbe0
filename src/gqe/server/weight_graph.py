"""Neighbour weights of a query, and of its neighbours, as a small graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from gqe.expansion import expansion_weights, item_coefficients, level_coefficients
from gqe.retrieval import QueryContext


class Node(NamedTuple):
    """An item, or the query.

    Attributes:
        id: Of the item; None for the query.
        hop: 0 for the query, 1 for its neighbours, 2 for theirs.
        weight: In the expanded query, through all levels. The query's own is 1, or 0 if it is not used.
    """

    id: Any
    hop: int
    weight: float


class Edge(NamedTuple):
    """The weight of one node in the aggregation of another one.

    Attributes:
        source: Position of the node that is aggregated.
        target: Position of its neighbour.
        weight: The neighbour's share of all weights, the node's own included; may be negative.
    """

    source: int
    target: int
    weight: float


class WeightGraph(NamedTuple):
    """Nodes, the query first, and edges, heaviest first in each node's turn."""

    nodes: list[Node]
    edges: list[Edge]
    items_with_weight: int
    """How many items have a weight in all."""


def weight_graph(context: QueryContext, first: int, second: int) -> WeightGraph:
    """The heaviest neighbours of a query, and the heaviest of each of those.

    The first edges carry the weights of the last level, the others those of the level below: the same that
    put the expanded query together. With a single level neighbours have no weights, and edges show the
    similarities of their nearest ones instead.

    Args:
        context: One query and its levels.
        first: How many neighbours.
        second: How many neighbours of each of them.
    """
    source, near = context.source, context.neighbors
    totals = expansion_weights(source, context.queries, near, context.contrast)
    whole = dict(zip(totals.items.indices.tolist(), totals.items.data.tolist(), strict=True))
    top = level_coefficients(source, context.queries, near)[-1][0]
    neighbors = near.ids[0, : len(top) - 1]
    chosen = _heaviest(neighbors, _shares(top)[1:], first)

    rows: list[int] = []
    numbers: dict[int, int] = {}
    hops = {0: 0}

    def node(row: int, hop: int) -> int:
        if row not in numbers:
            rows.append(row)
            numbers[row] = len(rows)
            hops[len(rows)] = hop
        return numbers[row]

    edges = [Edge(0, node(row, 1), share) for row, share in chosen]
    around = _around(context, [row for row, _ in chosen], second)
    for row, others in around.items():
        edges += [Edge(numbers[row], node(other, 2), share) for other, share in others]
    ids = context.ids(np.array(rows, dtype=np.int64)).tolist() if rows else []
    nodes = [Node(None, 0, float(totals.own[0]))]
    nodes += [
        Node(each, hops[number], float(whole.get(row, 0.0)))
        for number, (row, each) in enumerate(zip(rows, ids, strict=True), 1)
    ]
    return WeightGraph(nodes, edges, len(whole))


def _around(context: QueryContext, rows: list[int], count: int) -> dict[int, list[tuple[int, float]]]:
    """The neighbours of items, with their shares of the weights."""
    source, numbers = context.source, np.array(rows, dtype=np.int64)
    if not rows or not count:
        return {}
    if source.depth == 1:
        ids, similarities = (part.cpu().numpy() for part in source.lists(torch.from_numpy(numbers)))
        return {row: _heaviest(ids[i], similarities[i], count) for i, row in enumerate(rows)}
    step = item_coefficients(source, source.depth - 1, np.unique(numbers))
    found = {}
    for row in rows:
        part = slice(step.indptr[row], step.indptr[row + 1])
        targets, shares = step.indices[part], _shares(step.data[part])
        found[row] = _heaviest(targets[targets != row], shares[targets != row], count)
    return found


def _shares(weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(weights / max(float(np.abs(weights).sum()), 1e-30))


def _heaviest(
    rows: np.ndarray[Any, Any], shares: np.ndarray[Any, Any], count: int
) -> list[tuple[int, float]]:
    there = (rows >= 0) & (shares != 0) & np.isfinite(shares)
    rows, shares = rows[there], shares[there]
    order = np.argsort(-np.abs(shares), kind="stable")[:count]
    return [(int(rows[place]), float(shares[place])) for place in order]
