"""A published retrieval network as a `Network`: the paper's descriptors are its output at three scales."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from gqe.errors import InputError, shown
from gqe.extraction.checkpoints import read_checkpoint
from gqe.extraction.network import Array, Network, file_digest
from gqe.extraction.preparing import Thumbnail
from gqe.extraction.resnet import multi_scale

SCALES = (1.0, math.sqrt(2.0), 1.0 / math.sqrt(2.0))
"""Of the paper."""


class RetrievalNetwork(Network):
    """ResNet, pooling and whitening from a checkpoint.

    Args:
        path: The checkpoint; see `gqe.extraction.checkpoints`.
        size: Longest side in pixels; larger pictures are made smaller, none larger.
        scales: At which a picture is described; descriptors are averaged.
        power: 1 for the plain mean over scales, "gem" for the generalised mean with the network's own p,
            which suits GeM without whitening.
        batch_size: Pictures of one size in a call.
        threads: Of torch, None to leave them.
        device: Where to compute.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        size: int = 1024,
        scales: Sequence[float] = SCALES,
        power: float | str = 1.0,
        batch_size: int = 4,
        threads: int | None = None,
        device: str | torch.device = "auto",
    ) -> None:
        from gqe.neighbors.search import resolve_device

        if size < 32:
            raise InputError(f"size: {size} pixels are too few; choose at least 32")
        if batch_size < 1:
            raise InputError(f"batch_size: {batch_size} is not positive")
        try:
            self.scales = tuple(float(scale) for scale in scales)
        except (TypeError, ValueError):
            raise InputError(f"scales: {shown(scales)} are not numbers") from None
        if not self.scales or not all(0.05 <= scale <= 4 for scale in self.scales):
            raise InputError(f"scales: {list(self.scales)} must be one or more factors from 0.05 to 4")
        read = read_checkpoint(path)
        self.power = self._checked_power(power, read.pooling, read.net.whiten is not None, read.net.pool)
        if threads is not None:
            torch.set_num_threads(threads)
        self.device = resolve_device(device)
        self.net = read.net.to(self.device)
        self._mean = 255 * torch.tensor(read.mean, device=self.device).view(1, 3, 1, 1)
        self._std = 255 * torch.tensor(read.std, device=self.device).view(1, 3, 1, 1)
        self.name = str(Path(path).resolve())
        self.settings = {"size": size, "scales": list(self.scales), "power": power}
        self.dimension = read.dimension
        self.fingerprint = f"checkpoint-{file_digest(path)}"
        self.prepare = Thumbnail(size)
        self.batch_size = batch_size

    @staticmethod
    def _checked_power(power: float | str, pooling: str, whitened: bool, pool: object) -> float:
        if power == "gem":
            if pooling != "gem":
                raise InputError(f"power: this network pools by {pooling}, not by gem; give a number")
            power = float(getattr(pool, "p"))  # noqa: B009  # mypy knows nothing of the pool
        if isinstance(power, str) or not 0 < power < 100:
            raise InputError(f"power: {power!r} is neither a positive number nor 'gem'")
        if power != 1 and whitened:
            raise InputError("power: whitened descriptors have negative numbers; leave power at 1")
        return float(power)

    def run(self, pixels: Array) -> Array:
        """See `Network`."""
        with torch.inference_mode():
            images = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device)
            images = (images.permute(0, 3, 1, 2).float() - self._mean) / self._std
            return np.asarray(multi_scale(self.net, images, self.scales, self.power).cpu().numpy())
