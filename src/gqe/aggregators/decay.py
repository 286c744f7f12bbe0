"""Average query expansion with weight decay, AQEwD (Gordo et al., IJCV 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator, Neighborhood


class Decay(Aggregator):
    """Weight 1 for the node and (K - i) / K for its i-th neighbour, i = 1..K, so the K-th gets 0."""

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1)."""
        tokens = neighborhood.tokens
        ranks = torch.arange(tokens.shape[1], dtype=tokens.dtype, device=tokens.device)
        return ((self.k - ranks) / self.k).expand(tokens.shape[:2])
