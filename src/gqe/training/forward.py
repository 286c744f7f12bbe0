"""Algorithm 2 of the paper for training: differentiable, and bounded in memory at any depth.

The literal recursion meets the same database item again and again. Here the distinct items needed at each
level are found first (the sets S^i of the paper), and each is computed once a level, in chunks. A chunk's
activations are kept for the backward pass while they fit into a memory budget; the other chunks are computed
a second time when their gradient is due. So the peak is set by the budget and a chunk's size, not by K^L.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gqe.aggregators.base import Aggregator, Neighborhood, positive_int, weighted_sum
from gqe.errors import InputError

# Kept activations on a CPU, and the share of a GPU's free memory they may take.
_CPU_BYTES = 2 << 30
_GPU_SHARE = 0.6
# Activations of one chunk, the least a recomputed chunk needs. Few large pieces run best on a large GPU.
_CPU_CHUNK_BYTES = 256 << 20
_GPU_CHUNK_BYTES = 12 << 30
_GPU_CHUNK_SHARE = 0.08


class LevelWeights(NamedTuple):
    """What one level's aggregator said about every node it was asked about.

    Attributes:
        nodes: (s,) database id of each node; the j-th query is -1 - j. Queries come first.
        ids: (s, K) database ids of their neighbours, -1 where there is none.
        weights: (s, K+1) of the node itself (first) and its neighbours as they enter the sum, with gradient;
            0 where there is no neighbour.
    """

    nodes: Tensor
    ids: Tensor
    weights: Tensor


class Expanded(NamedTuple):
    """Expanded queries (m, d) and, if asked for, the weights of each level, first level first."""

    embeddings: Tensor
    levels: list[LevelWeights]


class BuildNeighborhood(Protocol):
    """Makes an aggregator's input from nodes and their neighbours; give your own if a model needs more."""

    def __call__(
        self, level: int, nodes: Tensor, table: Tensor, rows: Tensor, members: Tensor
    ) -> Neighborhood:
        """Build a neighbourhood.

        Args:
            level: which aggregator of the stack it is for, from 0.
            nodes: (b, d) the nodes at the level below.
            table: (t, d) the database items needed at the level below.
            rows: (b, K) rows of the table that are the nodes' neighbours, -1 where there is none.
            members: (b, K+1) who they are: the node (as in `LevelWeights.nodes`), then its neighbours' ids.
        """


def gather(level: int, nodes: Tensor, table: Tensor, rows: Tensor, members: Tensor) -> Neighborhood:
    """Tokens and mask, nothing more: the node, then the rows of the table. See `BuildNeighborhood`."""
    present = rows >= 0
    mask = torch.cat([present.new_ones(len(nodes), 1), present], dim=1)
    if len(table) == 0:
        return Neighborhood(nodes[:, None], mask[:, :1])
    neighbors = table.index_select(0, rows.clamp(min=0).reshape(-1)).reshape(*rows.shape, table.shape[1])
    return Neighborhood(torch.cat([nodes[:, None], neighbors], dim=1), mask)


def expand(
    stack: Sequence[Aggregator],
    queries: Tensor,
    neighbors: Any,
    table: Tensor,
    graph: Any,
    *,
    chunk: int | None = None,
    memory: int | None = None,
    weights: bool = False,
    build: BuildNeighborhood = gather,
) -> Expanded:
    """Expand queries with gradients through every level.

    Args:
        stack: the aggregators, first level first.
        queries: (m, d) unit vectors on the device to compute on.
        neighbors: (m, K) database ids of the queries' neighbours, -1 = missing; NumPy or torch.
        table: (n, d) database embeddings, on any device. Only rows that take part are copied.
        graph: (n, K) database ids of the items' neighbours, -1 = missing; NumPy or torch. On a GPU it is best
            kept there too.
        chunk: nodes computed at a time; None chooses by the number of tokens.
        memory: bytes of activations that may be kept for the backward pass; beyond it chunks are computed
            twice. 0 keeps none. None: 60% of a GPU's free memory, 2 GB on a CPU.
        weights: also return each level's weights, for a loss on them.
        build: how a neighbourhood is made, for aggregators that need more than tokens.

    Returns:
        `Expanded`: embeddings (m, d) of unit length, and the levels' weights.

    Example:
        >>> table = torch.nn.functional.normalize(torch.randn(20, 8), dim=1)
        >>> ids = (table @ table.T - 2 * torch.eye(20)).topk(3).indices
        >>> from gqe.aggregators import Mean
        >>> expand([Mean(3), Mean(3)], table[:4], ids[:4], table, ids).embeddings.shape
        torch.Size([4, 8])
    """
    if not stack:
        raise InputError("stack: an expansion needs at least one aggregator")
    n, device = len(table), queries.device
    asked, known = _ids(neighbors, "neighbors", len(queries)), _ids(graph, "graph", n)
    _check_width(stack, asked, known, n)
    asked = asked.to(device, torch.int64)
    needed = needed_items(stack, asked, known)
    budget = _Budget(_free_bytes(device) if memory is None else memory, queries)

    names = -1 - torch.arange(len(queries), device=device)
    nodes = queries
    below = table.index_select(0, needed[0].to(table.device)).to(device, queries.dtype)
    levels = []
    for i, aggregator in enumerate(stack):
        items = needed[i + 1]
        ids = torch.cat([asked[:, : aggregator.k], _neighbors_of(items, known, aggregator.k, asked)])
        members = torch.cat([torch.cat([names, items.to(device)])[:, None], ids], dim=1)
        places = _Places(needed[i], n, device)
        nodes = torch.cat([nodes, below.index_select(0, places.of(items.to(device)))])
        embeddings, said = _level(i, aggregator, nodes, below, places.of(ids), members, chunk, budget, build)
        nodes, below = embeddings[: len(queries)], embeddings[len(queries) :]
        if weights:
            levels.append(LevelWeights(members[:, 0], ids, said))
    return Expanded(nodes, levels)


def needed_items(stack: Sequence[Aggregator], neighbors: Tensor, graph: Tensor) -> list[Tensor]:
    """The distinct database items to be known at every level: the sets S^0..S^L without the queries.

    Args:
        stack: the aggregators, first level first.
        neighbors: (m, K) neighbours of the queries.
        graph: (n, K) neighbours of the items.

    Returns:
        L+1 tensors of ascending ids on the graph's device; the last, S^L, is empty.
    """
    place = graph.device
    seen = torch.zeros(len(graph) + 1, dtype=torch.bool, device=place)  # the last place is for -1
    items = torch.empty(0, dtype=torch.int64, device=place)
    result = [items]
    for aggregator in reversed(stack):
        seen[neighbors[:, : aggregator.k].to(place, torch.int64)] = True
        seen[graph[items, : aggregator.k].to(torch.int64)] = True
        items = torch.nonzero(seen[:-1])[:, 0]
        result.append(items)
    return result[::-1]


def _neighbors_of(items: Tensor, graph: Tensor, k: int, like: Tensor) -> Tensor:
    """The lists (s, K) of items, as wide as the queries' own lists `like` (m, >= K) where one is shorter."""
    width = min(k, like.shape[1])
    ids = graph[items, :width].to(like)
    return torch.nn.functional.pad(ids, (0, width - ids.shape[1]), value=-1)


class _Budget:
    """Hands out memory for kept activations until it is spent."""

    def __init__(self, left: int, queries: Tensor) -> None:
        self.left = left
        self.token_bytes = queries.shape[1] * queries.element_size()
        self.element_size = _element_size(queries)

    def per_token(self, aggregator: Aggregator) -> int:
        """Bytes that a token and its activations take until the backward pass."""
        estimate = getattr(aggregator, "memory_per_token", None)
        kept = 8 * self.token_bytes if estimate is None else int(estimate()) * self.element_size
        return self.token_bytes + kept

    def allows(self, cost: int) -> bool:
        """Whether activations of that many bytes may be kept; if so they are paid for."""
        if cost > self.left:
            return False
        self.left -= cost
        return True


def _level(
    i: int,
    aggregator: Aggregator,
    nodes: Tensor,
    table: Tensor,
    rows: Tensor,
    members: Tensor,
    chunk: int | None,
    budget: _Budget,
    build: BuildNeighborhood,
) -> tuple[Tensor, Tensor]:
    """One aggregator over all nodes (s, d) of a level: embeddings (s, d) and weights (s, K+1)."""

    def run(nodes: Tensor, table: Tensor, rows: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
        neighborhood = build(i, nodes, table, rows, members)
        weights = aggregator.weights(neighborhood)
        with torch.autocast(nodes.device.type, enabled=False):  # 16 bits would cost the sum its last digits
            return weighted_sum(neighborhood.tokens, weights.to(nodes.dtype)).embeddings, weights

    per_node = members.shape[1] * budget.per_token(aggregator)
    step = max(1, _chunk_bytes(nodes.device) // per_node) if chunk is None else positive_int("chunk", chunk)
    made, said = [], []
    for start in range(0, len(nodes), step):
        part = slice(start, start + step)
        given = (nodes[part], table, rows[part], members[part])
        keep = not torch.is_grad_enabled() or budget.allows(len(members[part]) * per_node)
        embeddings, weights = run(*given) if keep else checkpoint(run, *given, use_reentrant=False)
        made.append(embeddings)
        said.append(weights)
    if not made:
        return nodes, nodes.new_ones(0, members.shape[1])
    return torch.cat(made), torch.cat(said)


class _Places:
    """Where each item stands in a sorted list of items; -1 stays -1."""

    def __init__(self, items: Tensor, n: int, device: torch.device) -> None:
        self._place = torch.full((n + 1,), -1, dtype=torch.int64, device=device)  # the last place is for -1
        self._place[items.to(device)] = torch.arange(len(items), device=device)

    def of(self, ids: Tensor) -> Tensor:
        return self._place[ids]


def _ids(ids: Any, name: str, n: int) -> Tensor:
    table = torch.as_tensor(ids.ids if hasattr(ids, "similarities") else ids)
    if table.ndim != 2 or len(table) != n or table.is_floating_point():
        raise InputError(f"{name}: expected ({n}, K) ids, got {tuple(table.shape)} {table.dtype}")
    return table


def _check_width(stack: Sequence[Aggregator], neighbors: Tensor, graph: Tensor, n: int) -> None:
    """The lists must be as long as the longest K, unless the whole database is shorter."""
    wanted = max(aggregator.k for aggregator in stack)
    for name, ids, most in (("neighbors", neighbors, n), ("graph", graph, n - 1)):
        if ids.shape[1] < min(wanted, most) and (name == "neighbors" or len(stack) > 1):
            raise InputError(f"{name}: {ids.shape[1]} neighbours a row, the stack listens to {wanted}")
    if neighbors.numel() and not -1 <= int(neighbors.min()) <= int(neighbors.max()) < n:
        raise InputError(f"neighbors: ids outside the database's {n} items")


def _free_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return _CPU_BYTES
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(_GPU_SHARE * (torch.cuda.mem_get_info(device)[0] + unused))


def _chunk_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return _CPU_CHUNK_BYTES
    return min(_GPU_CHUNK_BYTES, int(_GPU_CHUNK_SHARE * torch.cuda.mem_get_info(device)[1]))


def _element_size(queries: Tensor) -> int:
    """Bytes of one activation: autocast computes in a type of its own."""
    if torch.is_autocast_enabled(queries.device.type):
        return torch.get_autocast_dtype(queries.device.type).itemsize
    return queries.element_size()
