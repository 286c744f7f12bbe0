"""Our own recipe: rank the relevant items of many small databases first, without harm to any query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gqe.aggregators.base import Aggregator
from gqe.training.episodes import Episode, EpisodeSettings, draw_episode
from gqe.training.forward import LevelRelevance, expand_episode
from gqe.training.loop import ProcessGroup
from gqe.training.spaces import LabelledSet

_EPSILON = 1e-5


@dataclass(frozen=True)
class RankingSettings:
    """The loss of an episode.

    Attributes:
        episodes: episodes per update.
        pairs: factor of the pairwise ranking loss.
        precision: factor of the smoothed average precision.
        relevance: factor of the cross-entropy of weights and relevance of the neighbours.
        caution: factor of the loss of precision against no expansion.
        mixed_precision: run the aggregators in bfloat16; None does so on a GPU.
    """

    episodes: int = 2
    pairs: float = 0.5
    precision: float = 1.0
    relevance: float = 0.3
    caution: float = 1.0
    mixed_precision: bool | None = None


class RankingLosses:
    """The losses of episodes from labelled sets and synthetic spaces.

    Args:
        sets: what to train on, on the device.
        settings: factors of the loss.
        episodes: what episodes look like.
        seed: of all random numbers.
        device: where to train.
        process_group: the processes that train together; each draws its share of the episodes.
    """

    def __init__(
        self,
        sets: Sequence[LabelledSet],
        settings: RankingSettings | None = None,
        episodes: EpisodeSettings | None = None,
        *,
        seed: int = 0,
        device: str = "cpu",
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.sets = sets
        self.settings = settings or RankingSettings()
        self.episodes = episodes or EpisodeSettings()
        self.seed = seed
        self.device = device
        self.process_group = process_group or ProcessGroup()

    def __call__(self, stack: Sequence[Aggregator], step: int) -> Iterator[Tensor]:
        """The losses of one update that this process computes."""
        for place in range(self.process_group.rank, self.settings.episodes, self.process_group.world_size):
            seed = (self.seed, step, place)
            episode = draw_episode(self.sets, self.episodes, seed, self.device)
            loss = episode_loss(stack, episode, self.settings, seed=hash(seed) % 2**31)
            yield loss / self.settings.episodes


def episode_loss(
    stack: Sequence[Aggregator], episode: Episode, settings: RankingSettings, *, seed: int = 0
) -> Tensor:
    """The loss of one episode: ranking on the plain database and, where it is expanded too, on that one."""
    device = episode.database.device
    mixed = device.type == "cuda" if settings.mixed_precision is None else settings.mixed_precision
    expanded = expand_episode(stack, episode, mixed_precision=mixed, seed=seed)
    relevant = episode.query_labels[:, None] == episode.labels
    tables = [episode.database] if expanded.database is None else [episode.database, expanded.database]

    def generator() -> torch.Generator:
        return torch.Generator(device).manual_seed(seed)

    with torch.no_grad():
        plain = ranking_terms(episode.queries @ episode.database.T, relevant, generator=generator())
    loss = torch.zeros((), device=device)
    for table in tables:
        terms = ranking_terms(expanded.queries @ table.T, relevant, generator=generator())
        harm = (terms.precision - plain.precision).clamp(min=0)
        each = settings.pairs * terms.pairs + settings.precision * terms.precision + settings.caution * harm
        loss = loss + mean_over(each, terms.valid) / len(tables)
    for aggregator, relevance in zip(stack, expanded.level_relevance, strict=True):
        entropy = relevance_loss(relevance, probabilities=aggregator.needs_context)
        loss = loss + settings.relevance * entropy / len(stack)
    return loss


class RankingTerms(NamedTuple):
    """Two losses per query, (m,) each, and whether the query has anything to rank."""

    pairs: Tensor
    precision: Tensor
    valid: Tensor


def ranking_terms(
    similarities: Tensor,
    relevant: Tensor,
    *,
    positives: int = 16,
    negatives: int = 48,
    temperature: float = 0.5,
    sharpness: float = 0.1,
    generator: torch.Generator | None = None,
) -> RankingTerms:
    """Rank some relevant items before the hardest others.

    `pairs` is the mean of softplus((s- - s+) / temperature) over pairs, `precision` is 1 - average precision
    with steps smoothed to sigmoids (Brown et al., Smooth-AP, ECCV 2020). Similarities are measured in units
    of their own spread among the competing items, so that all spaces count alike.

    Args:
        similarities: (m, n) of queries and database.
        relevant: (m, n) bool.
        positives: how many relevant items of a query are used, drawn at random.
        negatives: how many of the hardest other items are used.
        temperature: of the pairs, in units of the spread.
        sharpness: of the smoothed ranks, in units of the spread.
        generator: draws the positives.
    """
    n = similarities.shape[1]
    draw = torch.rand(similarities.shape, generator=generator, device=similarities.device)
    chosen = draw.masked_fill(~relevant, -1.0).topk(min(positives, n), dim=1)
    is_positive = chosen.values >= 0
    positive = similarities.gather(1, chosen.indices)
    hardest = similarities.detach().masked_fill(relevant, float("-inf")).topk(min(negatives, n), dim=1)
    is_negative = hardest.values > float("-inf")
    negative = similarities.gather(1, hardest.indices)
    valid = is_positive.any(dim=1) & is_negative.any(dim=1)

    with torch.no_grad():
        competing = torch.cat([positive, negative], dim=1)
        there = torch.cat([is_positive, is_negative], dim=1) & valid[:, None]
        count = there.sum(dim=1).clamp(min=1)
        mean = (competing * there).sum(dim=1) / count
        variance = ((competing - mean[:, None]) ** 2 * there).sum(dim=1) / count
        spread = (variance[valid].mean() + 1e-8).sqrt() if bool(valid.any()) else variance.new_ones(())

    margin = (negative[:, None] - positive[:, :, None]) / spread
    both = is_positive[:, :, None] & is_negative[:, None]
    pairs = (softplus(margin / temperature) * both).sum(dim=(1, 2)) / both.sum(dim=(1, 2)).clamp(min=1)

    before = (similarities[:, None] - positive[:, :, None]) / (spread * sharpness)
    steps = torch.sigmoid(before)
    ahead_relevant = (steps * relevant[:, None]).sum(dim=2) + 0.5  # the item itself counts half, so 1 in all
    ahead_others = (steps * ~relevant[:, None]).sum(dim=2)
    precisions = ahead_relevant / (ahead_relevant + ahead_others)
    precision = 1 - (precisions * is_positive).sum(dim=1) / is_positive.sum(dim=1).clamp(min=1)
    return RankingTerms(pairs, precision, valid)


def relevance_loss(level: LevelRelevance, *, probabilities: bool = True) -> Tensor:
    """Mean binary cross-entropy of the weights as predictions that a neighbour is relevant.

    Args:
        level: weights and relevance of its neighbours.
        probabilities: the weights lie in [0, 1]; if not they are cosines, and log-odds are 5 × cosine.
    """
    weights = level.weights if probabilities else torch.sigmoid(5 * level.weights)
    weights = weights.clamp(_EPSILON, 1 - _EPSILON)
    entropy = -torch.where(level.relevant, weights.log(), (1 - weights).log())
    return (entropy * level.present).sum() / level.present.sum().clamp(min=1)


def mean_over(values: Tensor, valid: Tensor) -> Tensor:
    """Mean of the valid values; 0 if there is none."""
    return (values * valid).sum() / valid.sum().clamp(min=1)
