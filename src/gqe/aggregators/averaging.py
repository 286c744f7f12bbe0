"""Weights by rank or by similarity: no expansion, AQE, AQEwD and αQE."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from gqe.aggregators.base import TUNING_K, Aggregator, Neighborhood, positive


class Identity(Aggregator):
    """Weight 1 for the node, 0 for its neighbours: no expansion, or a skipped level.

    `[Identity, Attention]` is the paper's collapsed GQE.
    """

    methods: ClassVar = {"none": {}}
    fixed_steps: ClassVar[bool] = True

    def __init__(self, k: int = 1, temperature: float | None = None) -> None:
        super().__init__(k, temperature)

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1)."""
        weights = torch.zeros_like(neighborhood.tokens[:, :, 0])
        weights[:, 0] = 1.0
        return weights


class Mean(Aggregator):
    """Average query expansion, AQE (Chum et al., ICCV 2007): weight 1 for the node and its K neighbours.

    On every level of the neighbour graph it is AQE-G (Klein and Wolf, BMVC 2021).

    Example:
        >>> Mean(k=10)
        Mean(k=10)
    """

    methods: ClassVar = {"aqe": {"k": 10}, "aqe-g": {"k": 10, "levels": 2}}
    fixed_steps: ClassVar[bool] = True

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1)."""
        return torch.ones_like(neighborhood.tokens[:, :, 0])


class Decay(Aggregator):
    """Average query expansion with weight decay, AQEwD (Gordo et al., IJCV 2017).

    Weight 1 for the node and (K - i) / K for its i-th neighbour, i = 1..K, so the K-th gets 0.
    """

    methods: ClassVar = {"aqewd": {"k": 8}}
    fixed_steps: ClassVar[bool] = True

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1)."""
        tokens = neighborhood.tokens
        ranks = torch.arange(tokens.shape[1], dtype=tokens.dtype, device=tokens.device)
        return ((self.k - ranks) / self.k).expand(tokens.shape[:2])


class Alpha(Aggregator):
    """Alpha query expansion, αQE (Radenović et al., TPAMI 2019): cosine^alpha for each neighbour.

    The node has weight 1. A negative cosine has no real power for most alpha and would push the query away
    from a neighbour, so it counts as 0. alpha = 0 is AQE. On every level of the neighbour graph it is αQE-G
    (Klein and Wolf, BMVC 2021).

    Args:
        k: how many neighbours are summed.
        alpha: the exponent.
        temperature: see `Aggregator`.
    """

    methods: ClassVar = {"alpha": {"k": 48}, "alpha-g": {"k": 10, "alpha": 3.0, "levels": 2}}
    tuning_grid: ClassVar = {"k": TUNING_K, "alpha": (0.5, 1, 2, 3, 4)}
    fixed_steps: ClassVar[bool] = True

    def __init__(self, k: int, alpha: float = 3.0, temperature: float | None = None) -> None:
        super().__init__(k, temperature)
        self.alpha = positive("alpha", alpha, or_zero=True)

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1)."""
        node, neighbors = neighborhood.tokens[:, 0], neighborhood.tokens[:, 1:]
        cosines = torch.bmm(neighbors, node[:, :, None])[:, :, 0]
        return torch.nn.functional.pad(cosines.clamp(min=0.0) ** self.alpha, (1, 0), value=1.0)
