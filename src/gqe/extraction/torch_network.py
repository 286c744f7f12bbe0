"""Models of timm and torchvision, where the user has them installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn

from gqe.errors import InputError
from gqe.extraction.network import Array, Network
from gqe.extraction.preparing import RESAMPLES, CentreCrop
from gqe.formats.checks import one_line


class TorchNetwork(Network):
    """A model by name, with the weights its library offers.

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
        from gqe.neighbors.search import resolve_device

        if batch_size < 1:
            raise InputError(f"batch_size: {batch_size} is not positive")
        library, _, model = name.partition(":")
        try:
            import_module(library)
        except ImportError as error:
            raise InputError(f"{name}: {library} is not installed; pip install {library}") from error
        try:
            net, self.prepare, mean, std = (_from_timm if library == "timm" else _from_torchvision)(model)
        except InputError:
            raise
        except Exception as error:  # unknown names, no network to download from, ...
            raise InputError(f"{name}: cannot be loaded: {one_line(error)}; check its name") from error
        if threads is not None:
            torch.set_num_threads(threads)
        self.device = resolve_device(device)
        self.net = net.eval().requires_grad_(False).to(self.device)
        self._mean = 255 * torch.tensor(mean, device=self.device).view(1, 3, 1, 1)
        self._std = 255 * torch.tensor(std, device=self.device).view(1, 3, 1, 1)
        self.name = name
        self.settings = {}
        self.batch_size = batch_size
        self.fingerprint = f"{library}-{model}-{_weights_digest(net)}"
        blank = np.zeros((1, self.prepare.height, self.prepare.width, 3), np.uint8)
        self.dimension = self.run(blank).shape[1]

    def run(self, pixels: Array) -> Array:
        """See `Network`."""
        with torch.inference_mode():
            images = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device)
            output = self.net((images.permute(0, 3, 1, 2).float() - self._mean) / self._std)
            return np.asarray(output.flatten(1).float().cpu().numpy())


Loaded = tuple[nn.Module, CentreCrop, Sequence[float], Sequence[float]]


def _from_timm(model: str) -> Loaded:
    timm: Any = import_module("timm")
    net = timm.create_model(model, pretrained=True, num_classes=0)  # no classes: descriptors
    config = import_module("timm.data").resolve_model_data_config(net)
    _, height, width = config["input_size"]
    resample = config.get("interpolation", "bicubic")
    crop = CentreCrop(
        width, height, float(config.get("crop_pct", 1.0)), resample if resample in RESAMPLES else "bicubic"
    )
    return net, crop, config["mean"], config["std"]


def _from_torchvision(model: str) -> Loaded:
    models: Any = import_module("torchvision.models")
    weights = models.get_model_weights(model).DEFAULT
    net = models.get_model(model, weights=weights)
    for head in ("fc", "classifier", "heads", "head"):
        if hasattr(net, head):
            setattr(net, head, nn.Identity())
            break
    else:
        raise InputError(f"torchvision:{model}: it has no classifier to take off; use another model")
    preset: Any = weights.transforms()
    side = int(preset.crop_size[0])
    share = side / int(preset.resize_size[0])
    resample = str(getattr(preset.interpolation, "value", "bilinear"))
    return net, CentreCrop(side, side, share, resample), preset.mean, preset.std


def _weights_digest(net: nn.Module) -> str:
    import hashlib

    digest = hashlib.sha256()
    for name, value in net.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]
