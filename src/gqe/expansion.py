"""Algorithm 2 of the paper: a stack of aggregators over the neighbour graph. The only implementation.

One function, `_aggregate`, gathers the tokens of some nodes from a level and runs an aggregator on them.
Around it are the loops that its users need: `expand` (queries, all levels), `compute_level` (database items,
one level), `expansion_weights` (the weight of every database item in an expanded query) and
`expand_with_gradients` (training: the levels of the items in reach are computed, too, chunk by chunk in
bounded memory).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gqe.aggregators.base import Aggregation, Neighborhood, positive_int
from gqe.aggregators.context import list_profiles
from gqe.aggregators.views import BaseView, Described, base_view
from gqe.embeddings import blocks
from gqe.memory_budget import MemoryBudget, chunk_bytes, free_bytes
from gqe.negatives import negative_weights
from gqe.neighbors import NeighborGraph
from gqe.neighbors.candidates import Candidates
from gqe.progress import Report
from gqe.source import ComputedSource, LevelSource
from gqe.transfer import to_device

# Bytes of the tokens of one aggregator call; small enough that a block stays in a CPU's cache.
_TOKEN_BYTES = {"cpu": 8 << 20, "cuda": 2 << 30}
# An aggregator that reads similarities holds much beside its tokens and takes many small steps: whatever the
# dimension, about 2000 tokens per call stay in a CPU's cache and outweigh the overhead of a step.
_CONTEXT_WIDTH = 1024
# Below this the weight of a query itself, of a unit vector, is lost in float32.
_NO_WEIGHT = 1e-8


class Weights(NamedTuple):
    """An expanded query is the unit vector along `own * query + items @ database`.

    Attributes:
        items: (m, n) sparse weights of the database items.
        own: (m,) weight of the query itself: 1, or 0 where it has none.
    """

    items: sparse.csr_array
    own: np.ndarray[tuple[int], np.dtype[np.float32]]


class LevelWeights(NamedTuple):
    """The weights that one aggregator gave, in training.

    Attributes:
        nodes: (s,) database id of each node; the j-th query is -1 - j. Queries come first.
        ids: (s, K) database ids of their neighbours, -1 where there is none.
        weights: (s, K+1) of the node itself (first) and its neighbours, with gradient; 0 where there is no
            neighbour.
    """

    nodes: Tensor
    ids: Tensor
    weights: Tensor


class ExpandedQueries(NamedTuple):
    """Queries (m, d) expanded with gradients, and the weights of each level, first level first."""

    embeddings: Tensor
    levels: list[LevelWeights]


@dataclass
class _Nodes:
    """The embeddings of queries or database items, level by level.

    Attributes:
        embeddings: (b, d) at the level they have reached.
        originals: (b, d) at level 0.
        neighbors: their neighbour lists.
        view: what the similarities of the originals say, once an aggregator has read it.
    """

    embeddings: Tensor
    originals: Tensor
    neighbors: Candidates
    view: BaseView | None = None

    def __getitem__(self, part: slice) -> _Nodes:
        lists = Candidates(*(column[part] for column in self.neighbors))
        return _Nodes(self.embeddings[part], self.originals[part], lists)


def expand(source: LevelSource, queries: Tensor, neighbors: NeighborGraph | Candidates) -> Tensor:
    """(m, d) queries after all aggregators, given the (m, >= graph_k) neighbours of each."""
    parts = [results[-1].embeddings for results in _expand_blocks(source, queries, neighbors)]
    return _concatenate(parts, queries, source.dim)


def level_coefficients(
    source: LevelSource, queries: Tensor, neighbors: NeighborGraph | Candidates
) -> list[np.ndarray[Any, Any]]:
    """For each level (m, 1 + K) coefficients: of the query below it, and of its neighbours there."""
    parts = list(_expand_blocks(source, queries, neighbors))
    levels = ([results[i].coefficients for results in parts] for i in range(source.depth))
    return [_concatenate(level, queries, 1).cpu().numpy() for level in levels]


def compute_level(source: LevelSource, level: int, ids: Tensor, progress: Report | None = None) -> Tensor:
    """(p, d) rows of a level >= 1 of database items by id (p,), from the level below."""
    parts, done = list[Tensor](), 0
    for result in _level_blocks(source, level, ids):
        parts.append(result.embeddings)
        done += len(result.embeddings)
        if progress is not None:
            progress(done, len(ids), f"level {level}")
    return _concatenate(parts, None, source.dim)


def item_coefficients(source: LevelSource, level: int, ids: np.ndarray[Any, Any]) -> sparse.csr_array:
    """(n, n) sparse: the rows of items (p,) hold their coefficients at a level >= 1, of the level below."""
    n, nodes = len(source), torch.from_numpy(ids).to(torch.int64)
    parts = [result.coefficients for result in _level_blocks(source, level, nodes)]
    coefficients = _concatenate(parts, None, 1).cpu().numpy()
    neighbors = np.asarray(source.lists(nodes).ids.cpu())[:, : source.num_neighbors(level - 1)]
    compact = _sparse(coefficients, np.concatenate([ids[:, None], neighbors], axis=1), n).tocoo()
    return sparse.csr_array((compact.data, (ids[compact.row], compact.col)), shape=(n, n))


def expansion_weights(
    source: LevelSource, queries: Tensor, neighbors: NeighborGraph | Candidates, contrast: float = 0.0
) -> Weights:
    """The weight of every database item in each expanded query, negatives included.

    With q^i = a_i q^(i-1) + B_i D^(i-1) and D^i = A_i D^(i-1), where B_i and A_i are sparse, the last level
    is unrolled downwards. Only rows of A_i that carry weight are ever computed.
    """
    n, ids = len(source), np.asarray(neighbors.ids)
    own, towards = [], []
    for coefficients in level_coefficients(source, queries, neighbors):
        own.append(coefficients[:, 0])
        towards.append(_sparse(coefficients[:, 1:], ids, n))

    through_query, items = own[-1], towards[-1]
    for i in range(source.depth - 2, -1, -1):
        step = item_coefficients(source, i + 1, np.unique(items.indices).astype(np.int64))
        items = sparse.csr_array(scale_rows(towards[i], through_query) + items @ step)
        through_query = through_query * own[i]

    if contrast:
        negatives, shares = negative_weights(source, neighbors, contrast)
        items = sparse.csr_array(items - _sparse(shares, negatives, n))

    # The query itself has weight 1 wherever it has any: AQE's weights then read 1, 1, 1...
    has_weight = np.abs(through_query) > _NO_WEIGHT
    items = scale_rows(items, 1 / np.where(has_weight, through_query, 1).astype(np.float64))
    items.eliminate_zeros()
    items.sort_indices()
    return Weights(items, has_weight.astype(np.float32))


def expand_with_gradients(
    source: ComputedSource,
    queries: Tensor,
    neighbors: Candidates,
    *,
    everything: bool = False,
    sample: Tensor | None = None,
    chunk: int | None = None,
    memory: int | None = None,
) -> ExpandedQueries:
    """Expand queries with gradients through every level of the items they depend on.

    The literal recursion meets the same database item again and again. Here the distinct items needed at
    each level are found first (the sets S^i of the paper), and each is computed once per level, in chunks.
    The activations of a chunk are kept for the backward pass while they fit into a memory budget; the other
    chunks are computed a second time when their gradient is due. So the budget and the size of a chunk set
    the peak, not K^L.

    Args:
        source: the database; its levels are filled in.
        queries: (m, d) unit vectors on the device to compute on.
        neighbors: (m, >= K) of the queries.
        everything: compute all levels of all items, the last one, too.
        sample: (p,) further items whose levels below the last one are computed.
        chunk: nodes computed at a time; None chooses by the number of tokens.
        memory: bytes of activations that may be kept for the backward pass; 0 keeps none. None: 60% of a
            GPU's free memory, 2 GB on a CPU.
    """
    device, m, depth = queries.device, len(queries), source.depth
    every = torch.arange(len(source), device=source.graph.ids.device)
    needed = [every] * (depth + 1) if everything else needed_items(source, neighbors.ids, sample)
    if source.table.device == device and source.table.dtype == queries.dtype:
        source.set_level(0, None, source.table)
    else:
        first = source.table.index_select(0, needed[0].to(source.table.device))
        source.set_level(0, needed[0], first.to(device, queries.dtype))
    budget = MemoryBudget(free_bytes(device) if memory is None else memory, queries)
    names, nodes, levels = -1 - torch.arange(m, device=device), queries, list[LevelWeights]()
    for i in range(depth):
        items = needed[i + 1].to(device)
        lists = _joined_lists(neighbors, source.lists(needed[i + 1]), device)
        both = _Nodes(
            torch.cat([nodes, source.rows(i, items)]), torch.cat([queries, source.rows(0, items)]), lists
        )
        embeddings, weights = _run_chunks(source, i, both, chunk, budget)
        nodes = embeddings[:m]
        source.set_level(i + 1, None if everything else items, embeddings[m:])
        ids = lists.ids[:, : source.num_neighbors(i)]
        levels.append(LevelWeights(torch.cat([names, items]), ids, weights))
    return ExpandedQueries(nodes, levels)


def needed_items(source: ComputedSource, neighbors: Tensor, sample: Tensor | None = None) -> list[Tensor]:
    """The distinct database items to be known at every level: the sets S^0..S^L without the queries.

    Args:
        source: the database and the stack.
        neighbors: (m, K) neighbours of the queries.
        sample: (p,) further items, needed below the last level.

    Returns:
        L+1 tensors of ascending ids on the device of the source's lists; the last, S^L, is empty.
    """
    graph = source.graph.ids
    seen = torch.zeros(len(graph) + 1, dtype=torch.bool, device=graph.device)  # the last place is for -1
    if sample is not None:
        seen[sample.to(graph.device)] = True
    items = torch.empty(0, dtype=torch.int64, device=graph.device)
    result = [items]
    for level in reversed(range(source.depth)):
        k = source.num_neighbors(level)
        seen[neighbors[:, :k].to(graph.device, torch.int64)] = True
        seen[graph[items, :k].to(torch.int64)] = True
        items = torch.nonzero(seen[:-1])[:, 0]
        result.append(items)
    return result[::-1]


def scale_rows(matrix: sparse.csr_array, factors: np.ndarray[Any, Any]) -> sparse.csr_array:
    """A copy with each row multiplied by its factor (m,)."""
    data = (matrix.data * np.repeat(factors, np.diff(matrix.indptr))).astype(np.float32)
    return sparse.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _expand_blocks(
    source: LevelSource, queries: Tensor, neighbors: NeighborGraph | Candidates
) -> Iterator[list[Aggregation]]:
    """Run all aggregators on queries, block by block; gives the results of each level."""
    nodes = _Nodes(
        queries, queries, Candidates(*map(torch.as_tensor, (neighbors.ids, neighbors.similarities)))
    )
    for part in _blocks(source, range(source.depth), len(queries), neighbors.ids.shape[1]):
        block, results = nodes[part], list[Aggregation]()
        for level in range(source.depth):
            with torch.no_grad():
                results.append(_aggregate(source, level, block))
            block.embeddings = results[-1].embeddings
        yield results


def _level_blocks(source: LevelSource, level: int, ids: Tensor) -> Iterator[Aggregation]:
    """Run the aggregator that makes a level >= 1 on database items, block by block."""
    below, reads_originals = level - 1, level > 1 and source.stack[level - 1].needs_context
    for part in _blocks(source, [below], len(ids), source.graph_k):
        nodes = source.rows(below, ids[part])
        originals = source.rows(0, ids[part]) if reads_originals else nodes
        with torch.no_grad():
            yield _aggregate(source, below, _Nodes(nodes, originals, source.lists(ids[part])))


def _aggregate(source: LevelSource, level: int, nodes: _Nodes) -> Aggregation:
    """Run the aggregator above a level on some nodes."""
    aggregator = source.aggregator(level)
    ids = nodes.neighbors.ids[:, : source.num_neighbors(level)]
    neighborhood = gather(source, level, nodes.embeddings, ids)
    if aggregator.needs_context:
        neighborhood = _with_context(source, level, nodes, neighborhood)
    result: Aggregation = aggregator(neighborhood)
    return result


def gather(source: LevelSource, level: int, nodes: Tensor, ids: Tensor) -> Neighborhood:
    """Tokens and mask of nodes (b, d) whose neighbours at a level are `ids` (b, K), -1 = missing."""
    device = source.device
    dtype = torch.float64 if nodes.dtype == torch.float64 else torch.float32
    ids = ids.to(torch.int64)
    if len(source) == 0:
        mask = torch.ones((len(nodes), 1), dtype=torch.bool, device=device)
        return Neighborhood(nodes.to(device, dtype, copy=True)[:, None], mask)
    mask = torch.nn.functional.pad(to_device(ids, device) >= 0, (1, 0), value=True)
    if torch.is_grad_enabled():
        rows = source.rows(level, ids.clamp(min=0).flatten()).to(device, dtype)
        neighbors = rows.reshape(*ids.shape, source.dim)
        return Neighborhood(torch.cat([nodes[:, None], neighbors], dim=1), mask)
    # Any row is gathered for the node's own place, too, and written over: tokens are copied only once.
    wanted = torch.nn.functional.pad(ids.clamp(min=0), (1, 0))
    tokens = source.rows(level, wanted.flatten()).to(device, dtype).reshape(*wanted.shape, source.dim)
    tokens[:, 0] = nodes
    return Neighborhood(tokens, mask)


def _with_context(source: LevelSource, level: int, nodes: _Nodes, neighborhood: Neighborhood) -> Described:
    """Add what the original embeddings say, and the statistics of the database."""
    backgrounds, quantiles = source.statistics.read(level, source)
    count = neighborhood.tokens.shape[1]
    if nodes.view is None or nodes.view.both.shape[1] != count:  # not known yet, or for another K
        ids = nodes.neighbors.ids[:, : count - 1].to(torch.int64)
        base = neighborhood if level == 0 else gather(source, 0, nodes.originals, ids)
        own = to_device(list_profiles(nodes.neighbors.similarities), source.device)
        theirs = source.profiles(ids.clamp(min=0)).to(source.device)
        profiles = torch.cat([own[:, None], theirs], dim=1)
        nodes.view = base_view(base.tokens, neighborhood.mask, profiles, backgrounds[0], quantiles)
    return Described.of(neighborhood._replace(background=backgrounds, quantiles=quantiles), nodes.view)


def _blocks(source: LevelSource, levels: Sequence[int], n: int, width: int) -> Iterator[slice]:
    """Blocks of n nodes whose lists have a width, for the aggregators above some levels."""
    per_node = max(
        (max(source.dim // 2, _CONTEXT_WIDTH) if source.stack[i].needs_context else source.dim)
        * (min(source.num_neighbors(i), width) + 1)
        * 4
        for i in levels
    )
    budget = _TOKEN_BYTES["cpu"]
    if source.device.type == "cuda":
        # An encoder makes several times as much of them.
        total = torch.cuda.get_device_properties(source.device).total_memory
        budget = min(_TOKEN_BYTES["cuda"], total // 32)
    return blocks(n, per_node, budget)


def _run_chunks(
    source: ComputedSource, level: int, nodes: _Nodes, chunk: int | None, budget: MemoryBudget
) -> tuple[Tensor, Tensor]:
    """One aggregator over all nodes (s, d) of a level: embeddings (s, d) and weights (s, K+1)."""

    def run(part: slice) -> tuple[Tensor, Tensor]:
        result = _aggregate(source, level, nodes[part])
        return result.embeddings, result.weights

    tokens = min(source.num_neighbors(level), nodes.neighbors.ids.shape[1]) + 1
    per_node = tokens * budget.per_token(source.stack[level])
    device = nodes.embeddings.device
    step = max(1, chunk_bytes(device) // per_node) if chunk is None else positive_int("chunk", chunk)
    results = []
    for start in range(0, len(nodes.embeddings), step):
        part = slice(start, min(start + step, len(nodes.embeddings)))
        keep = not torch.is_grad_enabled() or budget.allows((part.stop - part.start) * per_node)
        results.append(run(part) if keep else checkpoint(run, part, use_reentrant=False))
    if not results:
        return nodes.embeddings, nodes.embeddings.new_ones(0, tokens)
    embeddings, weights = (torch.cat(column) for column in zip(*results, strict=True))
    return embeddings, weights


def _joined_lists(first: Candidates, second: Candidates, device: torch.device) -> Candidates:
    """Lists (m, K) and (p, K') below each other; shorter ones end in missing neighbours."""
    width = max(first.ids.shape[1], second.ids.shape[1])

    def pad(column: Tensor, value: float) -> Tensor:
        return torch.nn.functional.pad(column, (0, width - column.shape[1]), value=value)

    ids = [pad(lists.ids.to(device, torch.int64), -1) for lists in (first, second)]
    similarities = [pad(lists.similarities.to(device), float("-inf")) for lists in (first, second)]
    return Candidates(torch.cat(ids), torch.cat(similarities))


def _concatenate(parts: list[Tensor], template: Tensor | None, width: int) -> Tensor:
    """Blocks as one tensor, on the template's device if there is one; no blocks give an empty one."""
    if not parts:
        return torch.empty((0, width), device=None if template is None else template.device)
    joined = parts[0] if len(parts) == 1 else torch.cat(parts)
    return joined if template is None else joined.to(template.device)


def _sparse(coefficients: np.ndarray[Any, Any], ids: np.ndarray[Any, Any], n: int) -> sparse.csr_array:
    """(m, n) sparse coefficients (m, K) at columns `ids` (m, >= K), without missing neighbours and zeros."""
    ids = ids[:, : coefficients.shape[1]]
    present = (ids >= 0) & (coefficients != 0)
    ends = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    return sparse.csr_array((coefficients[present], ids[present].astype(np.int64), ends), shape=(len(ids), n))
