"""Files of pictures to RGB pixels, whatever the camera, scanner or joker put into them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gqe.errors import InputError
from gqe.formats.checks import one_line

ENDINGS = frozenset(
    (
        *(
            ".jpg",
            ".jpeg",
            ".jpe",
            ".jfif",
            ".mpo",
            ".png",
            ".apng",
            ".webp",
            ".gif",
            ".bmp",
            ".tif",
            ".tiff",
        ),
        *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif"),
    )
)
"""Endings of files that are taken for pictures."""

# Pillow can read more, some of it by starting other programs (EPS); a folder from anywhere may hold anything.
_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
MOST_PIXELS = 89_478_485
"""Pixels above which a picture is refused: Pillow's own limit, a quarter of a gigabyte of RGB."""


class Unreadable(InputError):
    """A picture that cannot be used; its text is the reason."""


class Opening(NamedTuple):
    """How pictures are opened.

    Attributes:
        most_pixels: Larger pictures are refused.
        rotate: Turn pictures as their EXIF data say. Published evaluations take pixels as they are stored.
    """

    most_pixels: int = MOST_PIXELS
    rotate: bool = True


class Opened(NamedTuple):
    """An opened picture.

    Attributes:
        image: RGB, cropped to its box.
        full_side: Longer side in pixels before cropping.
    """

    image: Any
    full_side: int


def open_picture(
    path: str | os.PathLike[str],
    *,
    box: Sequence[float] | None = None,
    opening: Opening | None = None,
    at_least: int | None = None,
) -> Opened:
    """Open a picture as RGB.

    The first frame of animations is taken. Transparent pixels become white, 16 bits become 8.

    Args:
        path: The file.
        box: (left, top, right, bottom) in pixels to crop to, before anything is resized.
        opening: Limits and rotation.
        at_least: If no pixel beyond this side length is needed, a large JPEG file is decoded at a half, a
            quarter or an eighth of its size, not below this; several times faster. None decodes all of it.

    Raises:
        Unreadable: With the reason; for any file, nothing else.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> path = Path(tempfile.mkdtemp()) / "grey.png"
        >>> Image.new("L", (40, 30)).save(path)
        >>> open_picture(path, box=(0, 0, 10, 20)).image.size
        (10, 20)
    """
    limits = opening or Opening()
    from PIL import Image, ImageOps

    try:
        with _limited_to(limits.most_pixels), Image.open(path, formats=_known_formats()) as image:
            if at_least is not None and box is None:
                image.draft(None, (at_least, at_least))
            image.load()
            turned: Any = image
            if limits.rotate:
                with suppress(Exception):  # broken EXIF data say nothing about the pixels
                    turned = ImageOps.exif_transpose(image)
            full_side = max(turned.size)
            cropped = turned if box is None else _cropped(turned, box)
            return Opened(_as_rgb(cropped), full_side)
    except Unreadable:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise Unreadable(f"larger than {limits.most_pixels} pixels; see --max-pixels") from error
    except MemoryError as error:
        raise Unreadable("does not fit into memory") from error
    except Exception as error:  # decoders raise whatever they like for broken files
        raise Unreadable(_reason(path, error)) from error


def _known_formats() -> list[str]:
    from PIL import Image

    Image.init()
    return [name for name in _FORMATS if name in Image.OPEN]


@contextmanager
def _limited_to(most_pixels: int) -> Iterator[None]:
    """Let Pillow itself refuse larger pictures, also those hidden inside others."""
    from PIL import Image

    before = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of slightly broken files
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        Image.MAX_IMAGE_PIXELS = most_pixels
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = before


def _reason(path: str | os.PathLike[str], error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    with suppress(OSError, ValueError):  # ValueError: a null character in the name
        if Path(path).stat().st_size == 0:
            return "empty file"
    if type(error).__name__ == "UnidentifiedImageError":
        return "not a picture of a known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(error)


def _cropped(image: Any, box: Sequence[float]) -> Any:
    left, top, right, bottom = (round(float(side)) for side in box)
    if left >= right or top >= bottom:
        raise Unreadable(f"its box {left}, {top}, {right}, {bottom} is empty")
    if left >= image.width or top >= image.height or right <= 0 or bottom <= 0:
        raise Unreadable(f"its box {left}, {top}, {right}, {bottom} is outside of its {image.size} pixels")
    return image.crop((left, top, right, bottom))


def _as_rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode == "RGB":
        return image.copy() if image.info else image
    if image.mode.startswith(("I", "F")):
        image = Image.fromarray(_as_bytes(np.asarray(image), image.mode))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        see_through = image.convert("RGBA")
        white = Image.new("RGBA", see_through.size, "white")
        return Image.alpha_composite(white, see_through).convert("RGB")
    return image.convert("RGB")


def _as_bytes(values: np.ndarray[Any, Any], mode: str) -> np.ndarray[Any, Any]:
    """Grey values of more than 8 bits as bytes. Only 16 bits have a known range; others show it."""
    values = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    largest = float(values.max(initial=0.0))
    if mode.startswith("I;16") or (mode == "I" and 255 < largest <= 65535):
        white = 65535.0
    elif mode == "F" and largest <= 1.0:
        white = 1.0
    else:
        white = max(255.0, largest)
    return np.rint(values.clip(0.0, white) * (255.0 / white)).astype(np.uint8)
