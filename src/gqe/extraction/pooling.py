"""Pooling: from a map of features to one vector."""

from __future__ import annotations

from torch import Tensor, nn


class GeM(nn.Module):
    """Generalised-mean pooling (Radenović, Tolias, Chum: Fine-tuning CNN image retrieval, TPAMI 2019).

    Args:
        p: The power: 1 is the average, large values approach the maximum.
        eps: Smallest value of a feature, so that powers stay defined.

    Example:
        >>> import torch
        >>> GeM(p=1.0)(torch.tensor([[[[1.0, 3.0]]]]))
        tensor([[2.]])
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.p = p
        self.eps = eps

    def forward(self, features: Tensor) -> Tensor:
        """Pool features (n, c, h, w) to (n, c)."""
        return features.clamp(min=self.eps).pow(self.p).mean(dim=(2, 3)).pow(1.0 / self.p)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"p={self.p}, eps={self.eps}"
