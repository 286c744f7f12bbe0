"""Expansion with gradients: of queries with given neighbours, and of an episode with its own database."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator
from gqe.aggregators.context import list_profiles
from gqe.errors import InputError
from gqe.expansion import ExpandedQueries, LevelWeights, expand_with_gradients
from gqe.neighbors.candidates import Candidates
from gqe.source import ComputedSource
from gqe.statistics import MAX_LISTS, ListSample, SpaceStatistics, background
from gqe.training.episodes import Episode

# Items that the background of the levels above the embeddings is measured on.
_SAMPLE = 256
# Additional neighbours that are searched, to replace dropped ones.
_SPARE = 16


def expand(
    stack: Sequence[Aggregator],
    queries: Tensor,
    neighbors: Any,
    table: Tensor,
    graph: Any,
    *,
    chunk: int | None = None,
    memory: int | None = None,
) -> ExpandedQueries:
    """Expand queries with gradients through every level, see `gqe.expansion.expand_with_gradients`.

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

    Returns:
        `ExpandedQueries`: embeddings (m, d) of unit length, and the weights of each level.

    Example:
        >>> table = torch.nn.functional.normalize(torch.randn(20, 8), dim=1)
        >>> ids = (table @ table.T - 2 * torch.eye(20)).topk(3).indices
        >>> from gqe.aggregators import Mean
        >>> expand([Mean(3), Mean(3)], table[:4], ids[:4], table, ids).embeddings.shape
        torch.Size([4, 8])
    """
    lists, known = _ids(neighbors, "neighbors", len(queries)), _ids(graph, "graph", len(table))
    _check_width(stack, lists, known, len(table))
    if any(aggregator.needs_context for aggregator in stack):
        raise InputError("stack: it reads similarities, which plain ids do not hold; use expand_episode")
    source = ComputedSource(stack, table, Candidates(known, _no_similarities(known)), queries.device)
    given = Candidates(lists.to(queries.device), _no_similarities(lists))
    return expand_with_gradients(source, queries, given, chunk=chunk, memory=memory)


class LevelRelevance(NamedTuple):
    """Of the neighbours at one level (nodes, K): their weights, which are relevant, and which are present."""

    weights: Tensor
    relevant: Tensor
    present: Tensor


class ExpandedEpisode(NamedTuple):
    """An episode after expansion.

    Attributes:
        queries: (m, d) expanded.
        database: (n, d) expanded; None unless the episode expands both sides.
        level_relevance: of each level, first level first.
    """

    queries: Tensor
    database: Tensor | None
    level_relevance: list[LevelRelevance]


def expand_episode(
    stack: Sequence[Aggregator], episode: Episode, *, mixed_precision: bool = False, seed: int = 0
) -> ExpandedEpisode:
    """Run a stack over an episode.

    Args:
        stack: the aggregators, first level first.
        episode: the queries and their database.
        mixed_precision: run the aggregators in bfloat16 (sums and similarities stay float32).
        seed: for dropping neighbours, where the episode drops some.
    """
    x, context = episode.database, any(aggregator.needs_context for aggregator in stack)
    with torch.no_grad():
        width = max([episode.k] + [a.graph_k for a in stack if a.needs_context])
        generator = torch.Generator(x.device).manual_seed(seed)
        graph = _nearest(x, x, width, episode.keep, generator, itself=True)
        neighbors = _nearest(episode.queries, x, width, episode.keep, generator)
        statistics, sample = _measure(x, graph, generator) if context else (None, None)
    source = ComputedSource(stack, x, graph, x.device, k=episode.k, statistics=statistics)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=mixed_precision):
        expanded = expand_with_gradients(
            source,
            episode.queries,
            neighbors,
            everything=episode.both_sides,
            sample=sample if len(stack) > 1 else None,
            chunk=sys.maxsize,  # an episode is made small enough to be computed at once
            memory=sys.maxsize,
        )
    relevance = [_level_relevance(level, episode) for level in expanded.levels]
    every = torch.arange(len(x), device=x.device)
    database = source.rows(len(stack), every) if episode.both_sides else None
    return ExpandedEpisode(expanded.embeddings, database, relevance)


def _measure(x: Tensor, graph: Candidates, generator: torch.Generator) -> tuple[SpaceStatistics, Tensor]:
    """Statistics of an episode's database, and the items whose levels complete them."""
    listed = torch.randperm(len(x), generator=generator, device=x.device)[:MAX_LISTS]
    sample = ListSample.of(listed.cpu().numpy(), list_profiles(graph.similarities[listed]))
    items = torch.from_numpy(sample.items).to(x.device)
    first = background(x[items])
    items = items[torch.randperm(len(items), generator=generator, device=x.device)[:_SAMPLE]]
    sample = sample._replace(items=items.cpu().numpy())
    return SpaceStatistics(sample.quantiles, [first], sample), items


def _level_relevance(level: LevelWeights, episode: Episode) -> LevelRelevance:
    labels = torch.cat([episode.query_labels, episode.labels[level.nodes[len(episode.queries) :]]])
    relevant = labels[:, None] == episode.labels[level.ids.clamp(min=0)]
    return LevelRelevance(level.weights[:, 1:].float(), relevant, level.ids >= 0)


def _nearest(
    queries: Tensor,
    database: Tensor,
    k: int,
    keep: float,
    generator: torch.Generator,
    *,
    itself: bool = False,
) -> Candidates:
    """Neighbours (m, k) by falling similarity; missing and dropped ones are -1 and -inf at the end."""
    similarities = queries @ database.T
    if itself:
        similarities.fill_diagonal_(float("-inf"))
    top = similarities.topk(min(k + _SPARE * (keep < 1), len(database)), dim=1)
    values, ids = top.values, top.indices
    if keep < 1:
        dropped = torch.rand(values.shape, generator=generator, device=values.device) > keep
        values, order = values.masked_fill(dropped, float("-inf")).sort(dim=1, descending=True, stable=True)
        ids = ids.gather(1, order)
    values, ids = values[:, :k], ids[:, :k]
    return Candidates(ids.masked_fill(values == float("-inf"), -1), values)


def _no_similarities(ids: Tensor) -> Tensor:
    return torch.zeros((), device=ids.device).expand(ids.shape)


def _ids(ids: Any, name: str, n: int) -> Tensor:
    table = torch.as_tensor(ids.ids if hasattr(ids, "similarities") else ids)
    if table.ndim != 2 or len(table) != n or table.is_floating_point():
        raise InputError(f"{name}: expected ({n}, K) ids, got {tuple(table.shape)} {table.dtype}")
    return table


def _check_width(stack: Sequence[Aggregator], neighbors: Tensor, graph: Tensor, n: int) -> None:
    """The lists must be as long as the longest K, unless the whole database is shorter."""
    if not stack:
        raise InputError("stack: an expansion needs at least one aggregator")
    wanted = max(aggregator.k for aggregator in stack)
    for name, ids, most in (("neighbors", neighbors, n), ("graph", graph, n - 1)):
        if ids.shape[1] < min(wanted, most) and (name == "neighbors" or len(stack) > 1):
            raise InputError(f"{name}: {ids.shape[1]} neighbours a row, the stack listens to {wanted}")
    if neighbors.numel() and not -1 <= int(neighbors.min()) <= int(neighbors.max()) < n:
        raise InputError(f"neighbors: ids outside the database's {n} items")
