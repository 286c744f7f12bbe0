"""Open a network by its name or file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gqe.errors import InputError, shown
from gqe.extraction.network import Network

DEFAULT = "lite0"


def open_network(
    name: str | os.PathLike[str] = DEFAULT,
    *,
    size: int | None = None,
    scales: Sequence[float] | None = None,
    power: float | str | None = None,
    batch_size: int | None = None,
    threads: int | None = None,
    device: Any = "auto",
) -> Network:
    """Open a network.

    Args:
        name: "lite0" (comes with `gqe[extract]`, works offline), a published checkpoint (.pth), an ONNX model
            (.onnx, with a .toml beside it), "timm:NAME" or "torchvision:NAME".
        size: Longer side of pictures in pixels, for lite0 and checkpoints.
        scales: For checkpoints: factors at which a picture is described; 1, √2 and 1/√2 if None.
        power: For checkpoints: how scales are joined, see `RetrievalNetwork`.
        batch_size: Pictures in one call.
        threads: On the CPU, None for all cores.
        device: "auto", "cpu", "cuda"...; lite0 and ONNX models run on the CPU.

    Returns:
        The network: call it with pictures.

    Example:
        >>> from PIL import Image
        >>> open_network("lite0", size=64)([Image.new("RGB", (80, 60))]).shape
        (1, 1280)
    """
    if find_spec("PIL") is None:
        raise InputError("pictures: Pillow is not installed; pip install 'gqe[extract]'")
    text = os.fspath(name)
    ending = Path(text).suffix.lower()
    for setting, value, most in (
        ("size", size, 16_384),
        ("batch_size", batch_size, 4096),
        ("threads", threads, 1024),
    ):
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise InputError(f"{setting}: expected a whole number from 1 to {most:,}, got {shown(value)}")
    if scales is not None and (not isinstance(scales, Sequence) or len(scales) > 16):
        raise InputError(f"scales: expected up to 16 factors, got {shown(scales)}")
    common = {"batch_size": batch_size, "threads": threads}
    special = {"size": size, "scales": scales, "power": power}
    if text == DEFAULT:
        from gqe.extraction.lite0 import Lite0

        return Lite0(**_given(text, common, special, ("size",)))
    if text.startswith(("timm:", "torchvision:")):
        from gqe.extraction.torch_network import TorchNetwork

        return TorchNetwork(text, device=device, **_given(text, common, special, ()))
    if ending == ".onnx":
        from gqe.extraction.onnx_network import OnnxNetwork

        return OnnxNetwork(text, **_given(text, common, special, ()))
    if ending in (".pth", ".pt", ".tar"):
        from gqe.extraction.retrieval_network import RetrievalNetwork

        return RetrievalNetwork(text, device=device, **_given(text, common, special, tuple(special)))
    raise InputError(
        f"{text}: no such network; use {DEFAULT}, a .pth checkpoint, a .onnx model, timm:NAME or "
        "torchvision:NAME"
    )


def _given(
    name: str, common: dict[str, Any], special: dict[str, Any], own: tuple[str, ...]
) -> dict[str, Any]:
    """Settings that were given; those that this kind of network does not have are refused."""
    for setting, value in special.items():
        if value is not None and setting not in own:
            raise InputError(f"{setting}: {name} has no such setting; leave it out")
    return {key: value for key, value in (common | special).items() if value is not None}
