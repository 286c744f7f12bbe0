"""Weights in the layout of the published checkpoints, and what they compute, written without our network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCKS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
Make = Callable[..., Tensor]


def constant(*shape: int) -> Tensor:
    """One number that looks like many, so that files stay small."""
    return torch.full((1,), 0.01).expand(shape)


def state_dict(architecture: str, make: Make = constant, whitened: int | None = 2048) -> dict[str, Tensor]:
    """Keys as torchvision's children give them in a Sequential: conv1 is features.0, layer1 features.4."""
    state: dict[str, Tensor] = {"pool.p": torch.tensor([2.9])}

    def conv(name: str, *shape: int) -> None:
        state[f"{name}.weight"] = make(*shape)

    def norm(name: str, size: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            state[f"{name}.{part}"] = make(size)
        state[f"{name}.num_batches_tracked"] = torch.tensor(7)

    conv("features.0", 64, 3, 7, 7)
    norm("features.1", 64)
    channels = 64
    for stage, count in enumerate(BLOCKS[architecture]):
        width = 64 * 2**stage
        for block in range(count):
            at = f"features.{4 + stage}.{block}"
            conv(f"{at}.conv1", width, channels, 1, 1)
            norm(f"{at}.bn1", width)
            conv(f"{at}.conv2", width, width, 3, 3)
            norm(f"{at}.bn2", width)
            conv(f"{at}.conv3", 4 * width, width, 1, 1)
            norm(f"{at}.bn3", 4 * width)
            if block == 0:
                conv(f"{at}.downsample.0", 4 * width, channels, 1, 1)
                norm(f"{at}.downsample.1", 4 * width)
            channels = 4 * width
    if whitened is not None:
        state["whiten.weight"], state["whiten.bias"] = make(whitened, 2048), make(whitened)
    return state


def random_state(architecture: str, whitened: int | None = 2048) -> dict[str, Tensor]:
    """Weights under which signals neither vanish nor explode."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        fan = 1
        for side in shape[1:]:
            fan *= side
        return torch.randn(shape, generator=generator) * (2.0 / fan) ** 0.5

    state = state_dict(architecture, make, whitened)
    for name, value in state.items():
        if name.endswith(("running_mean", "bias")):
            state[name] = 0.05 * value
        elif name.endswith("running_var"):
            state[name] = 0.5 + value.abs()
        elif value.ndim == 1 and name.endswith("weight"):
            state[name] = 0.4 + 0.1 * value
    # As training would: without it, random layers end in nearly the same descriptor for every picture.
    pictures = F.interpolate(torch.randn(6, 3, 8, 8, generator=generator), size=64, mode="bilinear")
    features(state, architecture, pictures, measure=True)
    return state


def checkpoint(state: dict[str, Tensor], architecture: str, **meta: Any) -> dict[str, Any]:
    about = {
        "architecture": architecture,
        "local_whitening": False,
        "pooling": "gem",
        "regional": False,
        "whitening": "whiten.weight" in state,
        "mean": MEAN,
        "std": STD,
        "outputdim": 2048,
    }
    return {"meta": about | meta, "state_dict": state}


def features(state: dict[str, Tensor], architecture: str, x: Tensor, measure: bool = False) -> Tensor:
    """(n, 3, h, w) to (n, 2048, h / 32, w / 32); `measure` notes means and variances on the way."""

    def conv(x: Tensor, name: str, **settings: int) -> Tensor:
        return F.conv2d(x, state[f"{name}.weight"], **settings)  # type: ignore[arg-type]

    def norm(x: Tensor, name: str) -> Tensor:
        if measure:
            state[f"{name}.running_mean"] = x.mean(dim=(0, 2, 3))
            state[f"{name}.running_var"] = x.var(dim=(0, 2, 3))
        scale = state[f"{name}.weight"] / (state[f"{name}.running_var"] + 1e-5).sqrt()
        shift = state[f"{name}.bias"] - state[f"{name}.running_mean"] * scale
        return x * scale[:, None, None] + shift[:, None, None]

    x = F.max_pool2d(norm(conv(x, "features.0", stride=2, padding=3), "features.1").relu(), 3, 2, 1)
    for stage, count in enumerate(BLOCKS[architecture]):
        for block in range(count):
            at, stride = f"features.{4 + stage}.{block}", 2 if stage > 0 and block == 0 else 1
            y = norm(conv(x, f"{at}.conv1"), f"{at}.bn1").relu()
            y = norm(conv(y, f"{at}.conv2", stride=stride, padding=1), f"{at}.bn2").relu()
            y = norm(conv(y, f"{at}.conv3"), f"{at}.bn3")
            if block == 0:
                x = norm(conv(x, f"{at}.downsample.0", stride=stride), f"{at}.downsample.1")
            x = (x + y).relu()
    return x


def described(state: dict[str, Tensor], architecture: str, x: Tensor) -> Tensor:
    """One descriptor (d,) of one normalised picture (1, 3, h, w)."""
    p = float(state["pool.p"])
    maps = features(state, architecture, x)[0]
    pooled = torch.stack([(m.clamp(min=1e-6) ** p).sum() / m.numel() for m in maps]) ** (1 / p)
    pooled = pooled / pooled.norm()
    if "whiten.weight" not in state:
        return pooled
    white = state["whiten.weight"] @ pooled + state["whiten.bias"]
    return white / white.norm()
