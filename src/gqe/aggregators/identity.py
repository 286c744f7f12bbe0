"""The node listens to nobody: no expansion, or a skipped level."""

from __future__ import annotations

import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator, Neighborhood


class Identity(Aggregator):
    """Weight 1 for the node, 0 for its neighbours. `[Identity, Attention]` is the paper's collapsed GQE."""

    def __init__(self, k: int = 1, temperature: float | None = None) -> None:
        super().__init__(k, temperature)

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1)."""
        weights = torch.zeros_like(neighborhood.tokens[:, :, 0])
        weights[:, 0] = 1.0
        return weights
