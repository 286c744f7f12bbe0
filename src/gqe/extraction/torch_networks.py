"""Networks that torch runs: published retrieval checkpoints, and models of timm and torchvision."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gqe.errors import InputError, short_repr
from gqe.extraction.checkpoints import read_checkpoint
from gqe.extraction.network import Network, file_digest
from gqe.extraction.preprocessing import RESAMPLES, CenterCrop, Thumbnail
from gqe.extraction.resnet import multi_scale
from gqe.formats.checks import Array, one_line
from gqe.neighbors.search import resolve_device

SCALES = (1.0, math.sqrt(2.0), 1.0 / math.sqrt(2.0))
"""Of the paper."""


class TorchNetwork(Network):
    """A module of torch that reads colours normalised by their mean and deviation.

    Args:
        net: The module.
        mean: Of the three colours, between 0 and 1.
        std: Their deviations.
        threads: Of torch, None to leave them.
        device: Where to compute.
    """

    def __init__(
        self,
        net: nn.Module,
        mean: Sequence[float],
        std: Sequence[float],
        threads: int | None,
        device: str | torch.device,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.device = resolve_device(device)
        self.net = net.eval().requires_grad_(False).to(self.device)
        self._mean = 255 * torch.tensor(mean, device=self.device).view(1, 3, 1, 1)
        self._std = 255 * torch.tensor(std, device=self.device).view(1, 3, 1, 1)

    def run(self, pixels: Array) -> Array:
        """See `Network`."""
        with torch.inference_mode():
            images = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device)
            images = (images.permute(0, 3, 1, 2).float() - self._mean) / self._std
            return np.asarray(self.describe(images).cpu().numpy())

    def describe(self, images: Tensor) -> Tensor:
        """Descriptors (n, d) of normalised pictures (n, 3, h, w)."""
        output: Tensor = self.net(images)
        return output.flatten(1).float()


class RetrievalNetwork(TorchNetwork):
    """ResNet, pooling and whitening from a checkpoint; at three scales it gives the paper's descriptors.

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
        if size < 32:
            raise InputError(f"size: {size} pixels are too few; choose at least 32")
        try:
            self.scales = tuple(float(scale) for scale in scales)
        except (TypeError, ValueError):
            raise InputError(f"scales: {short_repr(scales)} are not numbers") from None
        if not self.scales or not all(0.05 <= scale <= 4 for scale in self.scales):
            raise InputError(f"scales: {list(self.scales)} must be one or more factors from 0.05 to 4")
        checkpoint = read_checkpoint(path)
        net: Any = checkpoint.net
        if power == "gem" and checkpoint.pooling != "gem":
            raise InputError(f"power: this network pools by {checkpoint.pooling}, not by gem; give a number")
        self.power = net.pool.p if power == "gem" else power
        if isinstance(self.power, str) or not 0 < self.power < 100:
            raise InputError(f"power: {power!r} is neither a positive number nor 'gem'")
        if self.power != 1 and net.whiten is not None:
            raise InputError("power: whitened descriptors have negative numbers; leave power at 1")
        super().__init__(net, checkpoint.mean, checkpoint.std, threads, device)
        self.name = str(Path(path).resolve())
        self.settings = {"size": size, "scales": list(self.scales), "power": power}
        self.dimension = checkpoint.dimension
        self.fingerprint = f"checkpoint-{file_digest(path)}"
        self.prepare = Thumbnail(size)
        self.batch_size = batch_size

    def describe(self, images: Tensor) -> Tensor:
        """See `TorchNetwork`."""
        return multi_scale(self.net, images, self.scales, float(self.power))


class LibraryNetwork(TorchNetwork):
    """A model of timm or torchvision, with the weights its library offers.

    Args:
        name: "timm:NAME" or "torchvision:NAME".
        batch_size: Pictures in a call.
        threads: Of torch, None to leave them.
        device: Where to compute.
    """

    def __init__(
        self,
        name: str,
        *,
        batch_size: int = 16,
        threads: int | None = None,
        device: str | torch.device = "auto",
    ) -> None:
        library, _, model = name.partition(":")
        load: Callable[[str], _Model] = _load_timm if library == "timm" else _load_torchvision
        try:
            import_module(library)
        except ImportError as error:
            raise InputError(f"{name}: {library} is not installed; pip install {library}") from error
        try:
            net, crop, mean, std = load(model)
        except InputError:
            raise
        except Exception as error:  # unknown names, no network to download from, ...
            raise InputError(f"{name}: cannot be loaded: {one_line(error)}; check its name") from error
        super().__init__(net, mean, std, threads, device)
        self.name = name
        self.settings = {}
        self.batch_size = batch_size
        self.fingerprint = f"{library}-{model}-{_weights_digest(net)}"
        self.prepare = crop
        self.dimension = self.run(np.zeros((1, crop.height, crop.width, 3), np.uint8)).shape[1]


_Model = tuple[nn.Module, CenterCrop, Sequence[float], Sequence[float]]  # with mean and std


def _load_timm(model: str) -> _Model:
    timm: Any = import_module("timm")
    net = timm.create_model(model, pretrained=True, num_classes=0)  # no classes: descriptors
    config = import_module("timm.data").resolve_model_data_config(net)
    _, height, width = config["input_size"]
    resample = config.get("interpolation", "bicubic")
    resample = resample if resample in RESAMPLES else "bicubic"
    crop = CenterCrop(width, height, float(config.get("crop_pct", 1.0)), resample)
    return net, crop, config["mean"], config["std"]


def _load_torchvision(model: str) -> _Model:
    models: Any = import_module("torchvision.models")
    weights = models.get_model_weights(model).DEFAULT
    net = models.get_model(model, weights=weights)
    head = next((head for head in ("fc", "classifier", "heads", "head") if hasattr(net, head)), None)
    if head is None:
        raise InputError(f"torchvision:{model}: it has no classifier to take off; use another model")
    setattr(net, head, nn.Identity())
    preset: Any = weights.transforms()
    side = int(preset.crop_size[0])
    share = side / int(preset.resize_size[0])
    resample = str(getattr(preset.interpolation, "value", "bilinear"))
    return net, CenterCrop(side, side, share, resample), preset.mean, preset.std


def _weights_digest(net: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in net.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]
