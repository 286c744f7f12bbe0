"""What an expansion is trained for: to rank the relevant first, to know its neighbours, to do no harm."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gqe.training.forward import Opinions

_EPSILON = 1e-5


class RankingTerms(NamedTuple):
    """Two losses a query, (m,) each, and whether the query has anything to rank."""

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
    of their own spread among the competing items, so no space is louder than another.

    Args:
        similarities: (m, n) of queries and database.
        relevant: (m, n) bool.
        positives: relevant items of a query that are looked at, drawn at random.
        negatives: hardest other items that are looked at.
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


def relevance_loss(opinions: Opinions, *, probabilities: bool = True) -> Tensor:
    """Ask of every weight whether its neighbour is relevant: mean binary cross-entropy.

    Args:
        opinions: of one level.
        probabilities: the weights lie in [0, 1]; if not they are cosines, and log-odds are 5 × cosine.
    """
    weights = opinions.weights if probabilities else torch.sigmoid(5 * opinions.weights)
    weights = weights.clamp(_EPSILON, 1 - _EPSILON)
    entropy = -torch.where(opinions.relevant, weights.log(), (1 - weights).log())
    return (entropy * opinions.present).sum() / opinions.present.sum().clamp(min=1)


def mean_over(values: Tensor, valid: Tensor) -> Tensor:
    """Mean of the valid values; 0 if there is none."""
    return (values * valid).sum() / valid.sum().clamp(min=1)
