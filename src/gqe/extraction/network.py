"""The one contract of all networks: pictures in, descriptors of unit length out."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from gqe.errors import InputError
from gqe.extraction.preparing import Preparation

Array: TypeAlias = "np.ndarray[Any, Any]"
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
    prepare: Preparation
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
        pixels = (self._prepared(image, index) for index, image in enumerate(images))
        result = np.zeros((len(images), self.dimension), dtype=np.float32)
        for indices, batch in batches(enumerate(pixels), self.batch_size):
            result[indices] = self.run(batch)
        return of_unit_length(result)

    def _prepared(self, image: Any, index: int) -> Array:
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
            yield _joined(batch)
    for rest in waiting.values():
        yield _joined(rest)


def _joined(pictures: list[tuple[Key, Array]]) -> tuple[list[Key], Array]:
    return [key for key, _ in pictures], np.stack([pixels for _, pixels in pictures])


def of_unit_length(vectors: Array) -> Array:
    """Rows (n, d) divided by their lengths; rows of zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny), dtype=np.float32)


def file_digest(path: str | os.PathLike[str]) -> str:
    """Twelve letters that differ if the file does."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]
