"""ResNet (He et al., CVPR 2016) with pooling and whitening, as image retrieval uses it, in plain torch.

Names and order of the parts are those of the published checkpoints, so their keys fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEPTHS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
FEATURES = 2048
_EPS = 1e-6


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


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; the middle one strides."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) to (n, 4 width, h', w')."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


def resnet_features(architecture: str) -> nn.Sequential:
    """The convolutions of a ResNet: (n, 3, h, w) to (n, 2048, h/32, w/32)."""
    stages: list[nn.Module] = []
    channels = 64
    for stage, blocks in enumerate(DEPTHS[architecture]):
        width = 64 << stage
        layers: list[nn.Module] = []
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
        stages.append(nn.Sequential(*layers))
    begin = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*begin, *stages)


class RetrievalNet(nn.Module):
    """Features, pooling, whitening (Radenović, Tolias, Chum: Fine-tuning CNN image retrieval, TPAMI 2019).

    Args:
        architecture: resnet50, resnet101 or resnet152.
        pool: "gem", "mac" (maximum) or "spoc" (average).
        power: The p of GeM.
        local: Whether features are whitened place by place, before pooling.
        whitened: Length of the whitened descriptor; None for no whitening.
    """

    def __init__(
        self,
        architecture: str = "resnet101",
        *,
        pool: str = "gem",
        power: float = 3.0,
        local: bool = False,
        whitened: int | None = FEATURES,
    ) -> None:
        super().__init__()
        self.features = resnet_features(architecture)
        self.lwhiten = nn.Linear(FEATURES, FEATURES) if local else None
        self.pool: Any = {"gem": GeM(power), "mac": _max_pool, "spoc": _mean_pool}[pool]
        self.whiten = None if whitened is None else nn.Linear(FEATURES, whitened)

    def forward(self, images: Tensor) -> Tensor:
        """Descriptors (n, d) of unit length of normalised pictures (n, 3, h, w)."""
        features = self.features(images)
        if self.lwhiten is not None:
            features = self.lwhiten(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        pooled = _normalize(self.pool(features))
        return pooled if self.whiten is None else _normalize(self.whiten(pooled))


def multi_scale(net: nn.Module, images: Tensor, scales: Sequence[float], power: float = 1.0) -> Tensor:
    """Describe pictures at several scales and join the descriptors.

    Args:
        net: Normalised pictures (n, 3, h, w) to descriptors (n, d).
        images: (n, 3, h, w).
        scales: Factors of the sides, such as (1, 2 ** 0.5, 0.5 ** 0.5).
        power: 1 for the mean; p for the generalised mean, where descriptors are not negative.

    Returns:
        (n, d) of unit length.
    """
    descriptors = [net(images if scale == 1 else _rescale(images, scale)).pow(power) for scale in scales]
    mean: Tensor = torch.stack(descriptors).mean(dim=0).pow(1.0 / power)
    return F.normalize(mean, dim=1, eps=torch.finfo(mean.dtype).tiny)


def _rescale(images: Tensor, scale: float) -> Tensor:
    if min(math.floor(side * scale) for side in images.shape[2:]) < 1:  # a picture a pixel wide
        sides = [max(1, math.floor(side * scale)) for side in images.shape[2:]]
        return F.interpolate(images, size=sides, mode="bilinear", align_corners=False)
    return F.interpolate(images, scale_factor=scale, mode="bilinear", align_corners=False)


def _normalize(vectors: Tensor) -> Tensor:
    unit: Tensor = vectors / (vectors.norm(dim=1, keepdim=True) + _EPS)
    return unit


def _max_pool(features: Tensor) -> Tensor:
    return features.amax(dim=(2, 3))


def _mean_pool(features: Tensor) -> Tensor:
    return features.mean(dim=(2, 3))
