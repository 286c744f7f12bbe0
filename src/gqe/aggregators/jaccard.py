"""Weights by shared reciprocal neighbours."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator, Neighborhood, positive
from gqe.aggregators.context import PLACES
from gqe.aggregators.views import known_base_view

SIZES = (8, 16, 32)
"""Sizes of the reciprocal neighbourhoods whose overlaps are averaged: one of them fits any local density."""


class Jaccard(Aggregator):
    """Weight of a neighbour: how far its reciprocal neighbours are those of the node.

    Two items are reciprocal neighbours if each is among the k1 nearest of the other; every item is one of its
    own. The overlap of two sets of reciprocal neighbours is their Jaccard index, as in k-reciprocal
    re-ranking (Zhong et al., CVPR 2017); it says more about large classes in noisy spaces than a cosine does.
    Sets are looked at within the neighbourhood, so that no more is read than the neighbours and how similar
    their own neighbours are to them. The mean over k1 = 8, 16 and 32 is used.

    Args:
        k: how many neighbours are summed.
        weight: of a neighbour whose reciprocal neighbours are exactly those of the node.
        temperature: see `Aggregator`.

    Example:
        >>> Jaccard()
        Jaccard(k=32, weight=0.3)
    """

    methods: ClassVar = {"jaccard": {"k": 32, "weight": 0.3, "levels": 2}}
    needs_context: ClassVar[bool] = True

    def __init__(self, k: int = 32, weight: float = 0.3, temperature: float | None = None) -> None:
        super().__init__(k, temperature)
        self.weight = positive("weight", weight)

    @property
    def graph_k(self) -> int:
        """Neighbours that must be known of every item: its K, or more for the reciprocal neighbourhoods."""
        return max(self.k, PLACES[-1])

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1)."""
        if neighborhood.tokens.shape[1] == 1:
            return torch.ones_like(neighborhood.tokens[:, :, 0])
        base, _ = known_base_view(neighborhood)
        within = 1 - base.ahead[[PLACES.index(size) for size in SIZES]]
        itself = base.both - base.others
        mutual = within * within.transpose(2, 3) * base.others + itself
        shared = (mutual @ mutual[:, :, :1].transpose(2, 3))[:, :, :, 0]
        count = mutual.sum(dim=3)
        overlap = (shared / (count[:, :, :1] + count - shared).clamp(min=1e-6)).mean(dim=0)
        return torch.cat([torch.ones_like(overlap[:, :1]), self.weight * overlap[:, 1:]], dim=1)
