"""Alpha query expansion, αQE (Radenović et al., TPAMI 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator, Neighborhood, positive


class Alpha(Aggregator):
    """Weight 1 for the node and cosine^alpha for each neighbour.

    A negative cosine has no real power for most alpha and would push the query away from a neighbour, so it
    counts as 0. alpha = 0 is AQE.

    Args:
        k: how many neighbours the node listens to.
        alpha: the exponent.
        temperature: see `Aggregator`.
    """

    def __init__(self, k: int, alpha: float = 3.0, temperature: float | None = None) -> None:
        super().__init__(k, temperature)
        self.alpha = positive("alpha", alpha, or_zero=True)

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1)."""
        node, neighbors = neighborhood.tokens[:, 0], neighborhood.tokens[:, 1:]
        cosines = torch.bmm(neighbors, node[:, :, None])[:, :, 0]
        return torch.nn.functional.pad(cosines.clamp(min=0.0) ** self.alpha, (1, 0), value=1.0)

    def settings(self) -> dict[str, Any]:
        """The keyword arguments that make this aggregator again."""
        return {"k": self.k, "alpha": self.alpha, "temperature": self.temperature}
