"""From a picture to the pixels a network reads. Small and picklable: workers do this, without the network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from gqe.formats.checks import Array

RESAMPLES = ("nearest", "bilinear", "bicubic", "lanczos")


class Preprocessing(ABC):
    """Makes pixels (h, w, 3) uint8 of an RGB picture."""

    @property
    def at_least(self) -> int | None:
        """Pixels per side beyond which a JPEG file need not be decoded; None to decode it exactly."""
        return None

    @abstractmethod
    def __call__(self, image: Any, full_side: int) -> Array:
        """Prepare a PIL picture.

        Args:
            image: RGB, cropped.
            full_side: Longer side of the picture before it was cropped.
        """


@dataclass(frozen=True)
class FitLongerSide(Preprocessing):
    """The longer side becomes `size`; both sides are rounded to multiples of `step`."""

    size: int
    step: int = 32

    @property
    def at_least(self) -> int | None:
        """Twice what is needed: reading such a file smaller changes descriptors less than JPEG itself."""
        return 2 * self.size

    def __call__(self, image: Any, full_side: int) -> Array:
        """See `Preprocessing`."""
        scale = self.size / max(image.size)
        width, height = (max(self.step, self.step * round(side * scale / self.step)) for side in image.size)
        return _resize(image, width, height, "bicubic")


@dataclass(frozen=True)
class Thumbnail(Preprocessing):
    """The longer side is at most `size`: the rule of the networks of Radenović, Tolias, Chum (TPAMI 2019).

    No picture is enlarged. A picture that was cropped to its box keeps the scale its whole would have got.
    """

    size: int

    def __call__(self, image: Any, full_side: int) -> Array:
        """See `Preprocessing`."""
        from PIL import Image

        side = max(1.0, self.size * max(image.size) / full_side)
        small = image.copy()
        # Without a gap: Pillow then resamples in one step, as it did when the networks were published.
        small.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=None)
        return np.asarray(small)


@dataclass(frozen=True)
class Stretch(Preprocessing):
    """Exactly `width` x `height`, whatever the shape of the picture."""

    width: int
    height: int
    resample: str = "bilinear"

    def __call__(self, image: Any, full_side: int) -> Array:
        """See `Preprocessing`."""
        return _resize(image, self.width, self.height, self.resample)


@dataclass(frozen=True)
class CenterCrop(Preprocessing):
    """Scaled to cover `width` x `height` divided by `share`, then the centre is cut out."""

    width: int
    height: int
    share: float = 1.0
    resample: str = "bilinear"

    def __call__(self, image: Any, full_side: int) -> Array:
        """See `Preprocessing`."""
        scale = max(self.width / image.width, self.height / image.height) / self.share
        width = max(self.width, round(image.width * scale))
        height = max(self.height, round(image.height * scale))
        pixels = _resize(image, width, height, self.resample)
        left, top = (width - self.width) // 2, (height - self.height) // 2
        return np.ascontiguousarray(pixels[top : top + self.height, left : left + self.width])


def _resize(image: Any, width: int, height: int, resample: str) -> Array:
    from PIL import Image

    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling[resample.upper()])
    return np.asarray(image)
