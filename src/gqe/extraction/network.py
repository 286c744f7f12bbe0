"""The one contract of all networks: pictures in, descriptors of unit length out; `open_network` by name."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gqe.errors import InputError, short_repr
from gqe.extraction.preprocessing import Preprocessing
from gqe.formats.checks import Array

DEFAULT = "lite0"
Key = TypeVar("Key")
_WAITING = 8  # batches' worth of pictures that wait for others of their shape, at most


class Network(ABC):
    """Describes pictures. A kind of network sets the attributes and writes `run`.

    Attributes:
        name: What `open_network` opens it by; a file's absolute path.
        settings: Keyword arguments with which `open_network` opens it again, ready for JSON.
        dimension: Numbers in a descriptor.
        fingerprint: Names the weights; with equal settings, too, descriptors are equal.
        prepare: From a picture to the pixels `run` reads.
        batch_size: Most pictures in one call of `run`.
    """

    name: str
    settings: dict[str, Any]
    dimension: int
    fingerprint: str
    prepare: Preprocessing
    batch_size: int

    @abstractmethod
    def run(self, pixels: Array) -> Array:
        """Descriptors (n, dimension), of any length, of prepared pictures (n, h, w, 3) uint8 of one size."""

    def __call__(self, images: Sequence[Any]) -> Array:
        """Describe pictures.

        Args:
            images: PIL pictures or uint8 arrays (h, w, 3), of any sizes.

        Returns:
            (n, dimension) float32 of unit length, in the order of the pictures.
        """
        pixels = (self._prepare(image, index) for index, image in enumerate(images))
        result = np.zeros((len(images), self.dimension), dtype=np.float32)
        for indices, batch in batches(enumerate(pixels), self.batch_size):
            result[indices] = self.run(batch)
        return normalize_rows(result)

    def _prepare(self, image: Any, index: int) -> Array:
        from PIL import Image

        if isinstance(image, Image.Image):
            picture = image.convert("RGB")
        elif isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,):
            if not image.size:
                raise InputError(f"images: item {index} is empty")
            picture = Image.fromarray(image)
        else:
            is_array = isinstance(image, np.ndarray)
            what = f"array {image.dtype} {image.shape}" if is_array else type(image).__name__
            raise InputError(f"images: item {index} is {what}; give PIL pictures or uint8 arrays (h, w, 3)")
        if min(picture.size) < 1:
            raise InputError(f"images: item {index} is empty")
        return self.prepare(picture, max(picture.size))


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
            raise InputError(
                f"{setting}: expected a whole number from 1 to {most:,}, got {short_repr(value)}"
            )
    if scales is not None and (not isinstance(scales, Sequence) or len(scales) > 16):
        raise InputError(f"scales: expected up to 16 factors, got {short_repr(scales)}")
    common = {"batch_size": batch_size, "threads": threads}
    special = {"size": size, "scales": scales, "power": power}

    def select(*own: str) -> dict[str, Any]:
        """Settings that were given; those that this kind of network does not have are refused."""
        for setting, value in special.items():
            if value is not None and setting not in own:
                raise InputError(f"{setting}: {text} has no such setting; leave it out")
        return {key: value for key, value in (common | special).items() if value is not None}

    if text == DEFAULT:
        from gqe.extraction.lite0 import Lite0

        return Lite0(**select("size"))
    if text.startswith(("timm:", "torchvision:")):
        from gqe.extraction.torch_networks import LibraryNetwork

        return LibraryNetwork(text, device=device, **select())
    if ending == ".onnx":
        from gqe.extraction.onnx_network import OnnxNetwork

        return OnnxNetwork(text, **select())
    if ending in (".pth", ".pt", ".tar"):
        from gqe.extraction.torch_networks import RetrievalNetwork

        return RetrievalNetwork(text, device=device, **select(*special))
    raise InputError(
        f"{text}: no such network; use {DEFAULT}, a .pth checkpoint, a .onnx model, timm:NAME or "
        "torchvision:NAME"
    )


def batches(pictures: Iterable[tuple[Key, Array]], batch_size: int) -> Iterator[tuple[list[Key], Array]]:
    """Join pictures of one shape; which ones depends on their order alone, so a run can be repeated.

    Args:
        pictures: (key, pixels (h, w, 3)).
        batch_size: Most pictures in a batch.

    Yields:
        (keys, pixels (n, h, w, 3)).
    """
    waiting: dict[tuple[int, ...], list[tuple[Key, Array]]] = {}
    count = 0
    for key, pixels in pictures:
        same = waiting.setdefault(pixels.shape, [])
        same.append((key, pixels))
        count += 1
        full = pixels.shape if len(same) == batch_size else None
        if full is None and count == _WAITING * batch_size:
            full = next(iter(waiting))  # where all shapes differ, the oldest goes first
        if full is not None:
            batch = waiting.pop(full)
            count -= len(batch)
            yield _stack(batch)
    for rest in waiting.values():
        yield _stack(rest)


def _stack(pictures: list[tuple[Key, Array]]) -> tuple[list[Key], Array]:
    return [key for key, _ in pictures], np.stack([pixels for _, pixels in pictures])


def normalize_rows(vectors: Array) -> Array:
    """Rows (n, d) divided by their lengths; rows of zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny), dtype=np.float32)


def file_digest(path: str | os.PathLike[str]) -> str:
    """Twelve letters that differ if the file does."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]
