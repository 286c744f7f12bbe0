"""Average query expansion, AQE (Chum et al., ICCV 2007)."""

from __future__ import annotations

import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator, Neighborhood


class Mean(Aggregator):
    """Weight 1 for the node and for each of its K neighbours.

    Example:
        >>> Mean(k=10)
        Mean(k=10)
    """

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1)."""
        return torch.ones_like(neighborhood.tokens[:, :, 0])
