"""Algorithm 2 on an episode, differentiable: each needed node is computed once a level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator, Neighborhood, weighted_sum
from gqe.aggregators.context import LISTS, background, landscape, profiles, resolved, with_company
from gqe.training.episodes import Episode

# Items whose similarities tell the background of a level.
_SAMPLE = 256
# Neighbours found beyond those wanted, to take the places of lost ones.
_SPARE = 16


class Opinions(NamedTuple):
    """What one aggregator said of its neighbours: weights, relevance and presence, (nodes, K) each."""

    weights: Tensor
    relevant: Tensor
    present: Tensor


class Expanded(NamedTuple):
    """Expanded queries (m, d), the database they search (n, d), and what every level said on the way.

    `database` is the expanded one where the episode expands both sides, else None.
    """

    queries: Tensor
    database: Tensor | None
    opinions: list[Opinions]


class _Lists(NamedTuple):
    ids: Tensor
    similarities: Tensor


def expand_episode(
    stack: Sequence[Aggregator], episode: Episode, *, mixed_precision: bool = False, seed: int = 0
) -> Expanded:
    """Run a stack over an episode.

    Args:
        stack: the aggregators, first level first.
        episode: the queries and their database.
        mixed_precision: run the aggregators in bfloat16 (sums and similarities stay float32).
        seed: for losing neighbours, where the episode asks for it.
    """
    x, depth, k = episode.database, len(stack), episode.k
    with torch.no_grad():
        width = max([k] + [a.graph_k for a in stack if a.needs_context])
        lost = torch.Generator(x.device).manual_seed(seed)
        graph = _nearest(x, x, width, episode.keep, lost, itself=True)
        asked = _nearest(episode.queries, x, width, episode.keep, lost)
        everything = torch.arange(len(x), device=x.device)
        listed = torch.randperm(len(x), generator=lost, device=x.device)[:LISTS]
        usual_lists = profiles(graph.similarities[listed])
        company = listed[with_company(usual_lists)]
        sample = company[torch.randperm(len(company), generator=lost, device=x.device)[:_SAMPLE]]
        needed = _needed(graph.ids[:, :k], asked.ids[:, :k], everything, sample, depth, episode.both_sides)

    table, queries, opinions = x, episode.queries, list[Opinions]()
    grounds = [background(x[company])]
    usual = landscape(usual_lists)
    for i, aggregator in enumerate(stack):
        nodes = needed[i]
        current = torch.cat([queries, table[nodes]])
        originals = torch.cat([episode.queries, x[nodes]])
        lists = _Lists(*(torch.cat([a, g[nodes]]) for a, g in zip(asked, graph, strict=True)))
        ids = lists.ids[:, :k].clamp(min=0)
        present = lists.ids[:, :k] >= 0
        around = Neighborhood(
            torch.cat([current[:, None], _rows(table, ids)], dim=1),
            torch.cat([torch.ones_like(present[:, :1]), present], dim=1),
        )
        if aggregator.needs_context:
            base = around.tokens if i == 0 else torch.cat([originals[:, None], _rows(x, ids)], dim=1)
            own = profiles(lists.similarities)[:, None]
            theirs = profiles(graph.similarities)[ids]
            around = around._replace(
                base=base,
                profiles=torch.cat([own, theirs], dim=1),
                background=resolved(torch.stack([grounds[0], grounds[i]]), usual),
                landscape=usual,
            )
        with torch.autocast(x.device.type, torch.bfloat16, enabled=mixed_precision):
            weights = aggregator.weights(around).float()
        expanded = weighted_sum(around.tokens, weights).embeddings
        labels = torch.cat([episode.query_labels, episode.labels[nodes]])
        opinions.append(Opinions(weights[:, 1:], labels[:, None] == episode.labels[ids], present))
        queries = expanded[: len(queries)]
        if len(nodes):
            table = torch.zeros_like(x).index_copy(0, nodes, expanded[len(queries) :])
        if i + 1 < depth:
            grounds.append(background(table.detach()[sample]))
    return Expanded(queries, table if episode.both_sides else None, opinions)


def _needed(
    graph: Tensor, asked: Tensor, everything: Tensor, sample: Tensor, depth: int, both_sides: bool
) -> list[Tensor]:
    """The database items each level must compute: those within reach of what the next level reads."""
    if both_sides:
        return [everything] * depth
    needed = [everything[:0]]
    wanted = torch.cat([asked.flatten(), sample])
    for _ in range(depth - 1):
        nodes = torch.unique(wanted[wanted >= 0])
        needed.insert(0, nodes)
        wanted = torch.cat([nodes, graph[nodes].flatten()])
    return needed


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    """table[ids], with a cheaper way back."""
    return table.index_select(0, ids.flatten()).reshape(*ids.shape, table.shape[1])


def _nearest(
    queries: Tensor, database: Tensor, k: int, keep: float, lost: torch.Generator, *, itself: bool = False
) -> _Lists:
    """Neighbours (m, k) by falling similarity; fewer than k, or lost ones, leave -1 and -inf at the end."""
    similarities = queries @ database.T
    if itself:
        similarities.fill_diagonal_(float("-inf"))
    top = similarities.topk(min(k + _SPARE * (keep < 1), len(database)), dim=1)
    values, ids = top.values, top.indices
    if keep < 1:
        gone = torch.rand(values.shape, generator=lost, device=values.device) > keep
        values, order = values.masked_fill(gone, float("-inf")).sort(dim=1, descending=True, stable=True)
        ids = ids.gather(1, order)
    values, ids = values[:, :k], ids[:, :k]
    return _Lists(ids.masked_fill(values == float("-inf"), -1), values)
