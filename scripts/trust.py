"""Trust: a learned correction of the log-odds that a frozen affinity model gives to each neighbour.

It reads what the encoder does not: how far the reciprocal neighbours of two items overlap, how certain the
encoder is of the whole list, and whether the node is a query or an item of the database. It stands in place
of the hand-set cautions of `Affinity`, or beside them.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gqe.aggregators import Affinity, Neighborhood
from gqe.aggregators.context import PLACES
from gqe.aggregators.views import BaseView

SIZES = (4, 8, 16, 32)
"""Sizes of reciprocal neighbourhoods whose overlaps are read, and of the first parts of a list."""
PAIR_FEATURES = 6 + len(PLACES) + 2 * len(SIZES) + 2 * (len(PLACES) + 2)
NODE_FEATURES = len(SIZES) ** 2 + len(SIZES) + 2 * len(PLACES) + 3
_OF_LOGITS, _OF_LIST = 3, len(SIZES) + 3
_PRODUCTS = 3
_SCALE = 0.25
"""Brings log-odds to the size of the other features."""


class Features(NamedTuple):
    """What a database says of nodes and their neighbours.

    Attributes:
        pair: (batch, K, PAIR_FEATURES) of each neighbour, 0 where it is missing.
        node: (batch, NODE_FEATURES).
    """

    pair: Tensor
    node: Tensor


def features(base: BaseView, mask: Tensor) -> Features:
    """Read the view of a neighbourhood whose tokens are there where `mask` (batch, K+1) says so."""
    there = mask[:, 1:].float()
    overlap, number = _overlaps(base)
    near, deviations, contrast = base.view.pairs[1:4, :, 0]
    present = mask.sum(dim=1, keepdim=True)
    average = base.view.pairs[1].sum(dim=2) / present
    ranks = torch.log2(1 + torch.arange(mask.shape[1], device=mask.device)) / 5
    ratio = (near / near[:, 1:2].clamp(min=0.05)).clamp(-1.0, 1.5)
    half, places = base.crowded.shape[2] // 2, len(PLACES)
    lists = [base.crowded[:, :, start : start + places] for start in (0, half)]
    between = [base.crowded[:, :, start + 2 * places : start + half] for start in (0, half)]
    pair = [
        torch.stack([ranks.expand_as(near), near, deviations, contrast / 2, ratio, average], dim=2),
        base.ahead[:, :, 0].permute(1, 2, 0),
        overlap,
        number,
        *lists,
        *between,
    ]
    firsts = [_mean(overlap[:, 1 : size + 1], there[:, :size]) for size in SIZES]
    node = [
        *firsts,
        number[:, 0],
        *(each[:, 0] for each in lists),
        average[:, :1],
        torch.log2(present) / 6,
        average.sum(dim=1, keepdim=True) / present,
    ]
    return Features(torch.cat(pair, dim=2)[:, 1:] * there[:, :, None], torch.cat(node, dim=1))


def _overlaps(base: BaseView) -> tuple[Tensor, Tensor]:
    """Jaccard overlaps with the node and shares of reciprocal neighbours (batch, K+1, len(SIZES))."""
    within = 1 - base.ahead[[PLACES.index(size) for size in SIZES]]
    itself = base.both - base.others
    mutual = within * within.transpose(2, 3) * base.others + itself
    shared = (mutual @ mutual[:, :, :1].transpose(2, 3))[:, :, :, 0]
    number = mutual.sum(dim=3)
    overlap = shared / (number[:, :, :1] + number - shared).clamp(min=1e-6)
    sizes = torch.tensor(SIZES, device=number.device)
    return overlap.permute(1, 2, 0), (number.permute(1, 2, 0) - 1) / sizes


def _mean(values: Tensor, there: Tensor) -> Tensor:
    """The mean (batch, f) of values (batch, K, f) that are there (batch, K); 0 of none."""
    return (values * there[:, :, None]).sum(dim=1) / there.sum(dim=1, keepdim=True).clamp(min=1)


class Trust(nn.Module):
    """What is added to log-odds: 0 before training.

    Args:
        hidden: units of a hidden layer; with none it is linear in the features of the neighbour, of the node,
            and in some products of both, which transfers better to unseen kinds of data.
    """

    def __init__(self, hidden: int = 0) -> None:
        super().__init__()
        pair, node = PAIR_FEATURES + _OF_LOGITS, NODE_FEATURES + _OF_LIST + 1
        self.pair = nn.Linear(pair, hidden or 1)
        self.node = nn.Linear(node, hidden or 1 + _PRODUCTS)
        self.last: nn.Sequential | None = None
        outputs = [self.pair, self.node]
        if hidden:
            outputs = [nn.Linear(hidden, 1)]
            self.last = nn.Sequential(nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), outputs[0])
        for layer in outputs:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, logits: Tensor, mask: Tensor, found: Features, is_query: Tensor) -> Tensor:
        """Corrections (batch, K).

        Args:
            logits: (batch, K) log-odds of the neighbours.
            mask: (batch, K) which of them are there.
            found: features of the same neighbours.
            is_query: (batch,) 1 for queries, 0 for items of the database.
        """
        there = mask.to(logits.dtype)
        logits = logits * there
        relevance = torch.sigmoid(logits) * there
        count = there.sum(dim=1, keepdim=True).clamp(min=1)
        mean = relevance.sum(dim=1, keepdim=True) / count
        variance = ((relevance - mean) ** 2 * there).sum(dim=1, keepdim=True) / count
        node = [
            found.node,
            *(_mean(relevance[:, :size, None], there[:, :size]) for size in SIZES),
            (variance + 1e-6).sqrt(),
            _SCALE * logits.sum(dim=1, keepdim=True) / count,
            _SCALE * logits[:, :1],
            is_query[:, None].to(logits.dtype),
        ]
        own = torch.stack([_SCALE * logits, relevance, relevance**2], dim=2)
        by_pair = self.pair(torch.cat([own, found.pair], dim=2))
        by_node = self.node(torch.cat(node, dim=1))
        if self.last is not None:
            result: Tensor = self.last(by_pair + by_node[:, None])[:, :, 0]
            return result
        start = 6 + len(PLACES)
        overlap = found.pair[:, :, start : start + len(SIZES)].mean(dim=2)
        products = torch.stack([_SCALE * logits, overlap, found.pair[:, :, 0]], dim=2)
        return by_pair[:, :, 0] + by_node[:, :1] + (products * by_node[:, None, 1:]).sum(dim=2)


class Trusted(Affinity):
    """An affinity model whose log-odds are corrected by `Trust`.

    Args:
        hidden: see `Trust`.
        cautious: keep the hand-set cautions.
        database_only: correct items of the database only; expanded queries stay as they are.
        **arguments: of `Affinity`.

    Attributes:
        of_queries: whether the nodes that come next are queries; set it before each run.
    """

    of_queries: ClassVar[bool] = False

    def __init__(
        self, hidden: int = 0, cautious: bool = False, database_only: bool = False, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self.hidden, self.cautious, self.database_only = hidden, cautious, database_only
        self.trust = Trust(hidden)

    def logits(self, neighborhood: Neighborhood) -> Tensor:
        """Log-odds (batch, K+1) that a neighbour is relevant."""
        if neighborhood.tokens.shape[1] == 1 or (self.database_only and self.of_queries):
            return super().logits(neighborhood)
        logits, base = self.encode(neighborhood)
        certain = torch.full_like(logits[:, :1], 30.0)
        logits = logits[:, 1:] - (self.doubts(base) if self.cautious else 0)
        is_query = torch.full_like(logits[:, 0], float(self.of_queries))
        found = features(base, neighborhood.mask)
        corrected = logits + self.trust(logits, neighborhood.mask[:, 1:], found, is_query)
        return torch.cat([certain, corrected], dim=1)

    @classmethod
    def on(cls, model: Affinity, **settings: Any) -> Trusted:
        """The same model with a fresh `Trust`; its own weights take no part in a training."""
        result = cls(**settings, **model.settings())
        result.load_state_dict(model.state_dict(), strict=False)
        for name, parameter in result.named_parameters():
            parameter.requires_grad_(name.startswith("trust."))
        return result
