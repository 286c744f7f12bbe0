"""Training of contextual similarity aggregation (`gqe.rerank.csa`) by the project's own loop.

As in the paper, a softmax loss raises the cosines of relevant results, and the affinities must be
recoverable from the refined features. Here every relevant result has a softmax of its own, against the
others that are not relevant: with one softmax for all of them, a single relevant result with a high cosine
satisfies the loss. Episodes are those of `gqe.training.episodes`, so a model meets databases of many kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from gqe.aggregators.base import Aggregator
from gqe.rerank.csa import CsaEncoder, CsaInput, csa_input
from gqe.training.episodes import EpisodeSettings, draw_episode
from gqe.training.loop import TrainingResult, TrainSettings, train
from gqe.training.ranking import mean_over
from gqe.training.spaces import LabelledSet, fingerprint


@dataclass(frozen=True)
class CsaSettings:
    """The loss of an encoder.

    Attributes:
        m: how many first results of a query are ranked.
        temperature: of the softmax over their cosines.
        faithful: share of the loss that keeps the affinities in the features.
    """

    m: int = 128
    temperature: float = 0.1
    faithful: float = 1.0


class CsaLosses:
    """The losses of one episode per update.

    Args:
        sets: labelled sets, on the device.
        settings: of the loss.
        episodes: what episodes look like.
        seed: of all random numbers.
        device: where to train.
    """

    def __init__(
        self,
        sets: Sequence[LabelledSet],
        settings: CsaSettings | None = None,
        episodes: EpisodeSettings | None = None,
        *,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.sets = sets
        self.settings = settings or CsaSettings()
        # Databases are not expanded here: there are no two sides.
        self.episodes = episodes or EpisodeSettings(queries=32, both_sides=0.0)
        self.seed = seed
        self.device = device

    def __call__(self, stack: Sequence[Aggregator], step: int) -> Iterator[Tensor]:
        """The loss of one update; the stack is one encoder."""
        encoder = cast(CsaEncoder, stack[0])
        episode = draw_episode(self.sets, self.episodes, (self.seed, step), self.device)
        wanted = min(max(self.settings.m, encoder.anchors), len(episode.database))
        near = (episode.queries @ episode.database.T).topk(wanted, dim=1).indices
        results = episode.database[near]
        present = torch.ones_like(near, dtype=torch.bool)
        given = csa_input(episode.queries, results, present, anchors=encoder.anchors, m=self.settings.m)
        relevant = episode.query_labels[:, None] == episode.labels[near[:, : self.settings.m]]
        yield csa_loss(encoder, given, relevant, self.settings)


def csa_loss(encoder: CsaEncoder, given: CsaInput, relevant: Tensor, settings: CsaSettings) -> Tensor:
    """The mean loss of queries that have relevant and other results.

    Args:
        encoder: what is trained.
        given: of b queries and m results each.
        relevant: (b, m) bool.
        settings: temperature and shares.
    """
    features = encoder(given)
    there = given.mask[:, 1:]
    wanted, others = relevant & there, ~relevant & there
    logits = encoder.scores(features) / settings.temperature
    against = torch.logsumexp(logits.masked_fill(~others, -1e9), dim=1, keepdim=True)
    each = nn.functional.softplus(against - logits)
    asked = wanted & others.any(dim=1, keepdim=True)
    # A query counts once, however many relevant results it has.
    contrast = mean_over((each * asked).sum(dim=1) / asked.sum(dim=1).clamp(min=1), asked.any(dim=1))
    lost = normalize(encoder.back(features), dim=2) - normalize(given.affinities, dim=2)
    distance = (lost.square().sum(dim=2) + 1e-8).sqrt()
    return contrast + settings.faithful * mean_over(distance, given.mask)


def train_csa(
    encoder: CsaEncoder,
    sets: Sequence[LabelledSet],
    settings: TrainSettings | None = None,
    *,
    csa: CsaSettings | None = None,
    episodes: EpisodeSettings | None = None,
    device: str = "cpu",
    checkpoint: Path | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> TrainingResult:
    """Train an encoder in place; the weights at the end of the schedule are kept.

    Args:
        encoder: where training starts.
        sets: labelled sets, on the device; none trains on synthetic spaces only.
        settings: of the loop.
        csa: settings of the loss.
        episodes: what episodes look like.
        device: where to train.
        checkpoint: file to resume from if it exists, and to write to.
        report: called with each line of the history.

    Example:
        >>> encoder = CsaEncoder(anchors=8, width=8, depth=1, heads=2)
        >>> outcome = train_csa(encoder, [], TrainSettings(steps=2), csa=CsaSettings(m=8))
        >>> outcome.steps
        2
    """
    settings = settings or TrainSettings(learning_rate=3e-4)
    losses = CsaLosses(sets, csa, episodes, seed=settings.seed, device=device)
    stack = [cast(Aggregator, encoder)]
    data = fingerprint(sets, losses.settings, losses.episodes)
    return train(stack, losses, (), settings, device=device, checkpoint=checkpoint, data=data, report=report)
