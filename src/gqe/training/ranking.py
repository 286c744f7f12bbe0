"""Our own recipe: rank on many small databases, know your neighbours, do no harm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator
from gqe.training.episodes import Episode, EpisodeSettings, draw_episode
from gqe.training.forward import expand_episode
from gqe.training.losses import mean_over, ranking_terms, relevance_loss
from gqe.training.spaces import LabelledSet
from gqe.training.workers import Workers


@dataclass(frozen=True)
class RankingSettings:
    """What an episode is asked for.

    Attributes:
        episodes: episodes an update.
        pairs: share of the pairwise ranking loss.
        precision: share of the smoothed average precision.
        relevance: share of the cross-entropy that asks each weight whether its neighbour is relevant.
        caution: extra price of a query that got worse than without expansion.
        mixed_precision: run the aggregators in bfloat16; None does so on a GPU.
    """

    episodes: int = 2
    pairs: float = 0.5
    precision: float = 1.0
    relevance: float = 0.3
    caution: float = 1.0
    mixed_precision: bool | None = None


class RankingLosses:
    """The losses of episodes of labelled sets and of made-up spaces.

    Args:
        sets: what to train on, on the device.
        settings: what an episode is asked for.
        episodes: what episodes look like.
        seed: of everything drawn.
        device: where to train.
        workers: the processes that train together; each draws its share of the episodes.
    """

    def __init__(
        self,
        sets: Sequence[LabelledSet],
        settings: RankingSettings | None = None,
        episodes: EpisodeSettings | None = None,
        *,
        seed: int = 0,
        device: str = "cpu",
        workers: Workers | None = None,
    ) -> None:
        self.sets = sets
        self.settings = settings or RankingSettings()
        self.episodes = episodes or EpisodeSettings()
        self.seed = seed
        self.device = device
        self.workers = workers or Workers()

    def __call__(self, stack: Sequence[Aggregator], step: int) -> Iterator[Tensor]:
        """The losses of one update that fall to this process."""
        for place in range(self.workers.rank, self.settings.episodes, self.workers.count):
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

    def drawn() -> torch.Generator:
        return torch.Generator(device).manual_seed(seed)

    with torch.no_grad():
        plain = ranking_terms(episode.queries @ episode.database.T, relevant, generator=drawn())
    loss = torch.zeros((), device=device)
    for table in tables:
        terms = ranking_terms(expanded.queries @ table.T, relevant, generator=drawn())
        harm = (terms.precision - plain.precision).clamp(min=0)
        each = settings.pairs * terms.pairs + settings.precision * terms.precision + settings.caution * harm
        loss = loss + mean_over(each, terms.valid) / len(tables)
    for aggregator, opinions in zip(stack, expanded.opinions, strict=True):
        known = relevance_loss(opinions, probabilities=aggregator.needs_context)
        loss = loss + settings.relevance * known / len(stack)
    return loss
