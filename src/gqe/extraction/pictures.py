"""Files of pictures: those of a folder, a list or a benchmark, and each as RGB pixels, whatever it holds."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gqe.errors import InputError
from gqe.formats.checks import Array, existing_file, one_line, wrap_parse_errors
from gqe.formats.ground_truth import read_ground_truth
from gqe.formats.names import stays_inside

ENDINGS = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".jp2", ".png", ".apng", ".webp", ".gif", ".avif"),
    *(".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"),
}
"""Endings of files that are taken for pictures."""

# Pillow can read more, some of it by starting other programs (EPS); a folder from anywhere may hold anything.
_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
_TRUTHS = (".pkl", ".mat", ".json")
MOST_PIXELS = 89_478_485
"""Pixels above which a picture is refused: Pillow's own limit, a quarter of a gigabyte of RGB."""


Box = tuple[float, float, float, float]


class Picture(NamedTuple):
    """A picture to describe.

    Attributes:
        path: Its file.
        name: What it is called in the results.
        box: (left, top, right, bottom) to crop to, or None.
    """

    path: str
    name: str
    box: Box | None = None


class UnreadablePictureError(InputError):
    """A picture that cannot be used; its text is the reason."""


class DecodingOptions(NamedTuple):
    """How pictures are opened.

    Attributes:
        most_pixels: Larger pictures are refused.
        rotate: Turn pictures as their EXIF data say. Published evaluations take pixels as they are stored.
    """

    most_pixels: int = MOST_PIXELS
    rotate: bool = True


class LoadedPicture(NamedTuple):
    """The pixels of a picture.

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
    opening: DecodingOptions | None = None,
    at_least: int | None = None,
) -> LoadedPicture:
    """Open a picture as RGB.

    The first frame of animations is taken. Transparent pixels become white, 16 bits become 8.

    Args:
        path: The file.
        box: (left, top, right, bottom) in pixels to crop to, before anything is resized.
        opening: Limits and rotation.
        at_least: If no pixel beyond this side length is needed, a large JPEG file is decoded at a half, a
            quarter or an eighth of its size, not below this; several times faster. None decodes all of it.

    Raises:
        UnreadablePictureError: With the reason; for any file, nothing else.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> path = Path(tempfile.mkdtemp()) / "grey.png"
        >>> Image.new("L", (40, 30)).save(path)
        >>> open_picture(path, box=(0, 0, 10, 20)).image.size
        (10, 20)
    """
    limits = opening or DecodingOptions()
    from PIL import Image, ImageOps

    try:
        with _limit_pixels(limits.most_pixels), Image.open(path, formats=_known_formats()) as image:
            if at_least is not None and box is None:
                image.draft(None, (at_least, at_least))
            image.load()
            turned: Any = image
            if limits.rotate:
                with suppress(Exception):  # broken EXIF data say nothing about the pixels
                    turned = ImageOps.exif_transpose(image)
            full_side = max(turned.size)
            cropped = turned if box is None else _crop(turned, box)
            return LoadedPicture(_to_rgb(cropped), full_side)
    except UnreadablePictureError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise UnreadablePictureError(f"larger than {limits.most_pixels} pixels; see --max-pixels") from error
    except MemoryError as error:
        raise UnreadablePictureError("does not fit into memory") from error
    except Exception as error:  # decoders raise whatever they like for broken files
        raise UnreadablePictureError(_reason(path, error)) from error


def _known_formats() -> list[str]:
    from PIL import Image

    Image.init()
    return [name for name in _FORMATS if name in Image.OPEN]


@contextmanager
def _limit_pixels(most_pixels: int) -> Iterator[None]:
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


def _crop(image: Any, box: Sequence[float]) -> Any:
    left, top, right, bottom = (round(float(side)) for side in box)
    shown = f"its box {left}, {top}, {right}, {bottom}"
    if left >= right or top >= bottom:
        raise UnreadablePictureError(f"{shown} is empty")
    if left >= image.width or top >= image.height or right <= 0 or bottom <= 0:
        raise UnreadablePictureError(f"{shown} is outside of its {image.size} pixels")
    return image.crop((left, top, right, bottom))


def _to_rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode == "RGB":
        return image.copy() if image.info else image
    if image.mode.startswith(("I", "F")):
        image = Image.fromarray(_to_bytes(np.asarray(image), image.mode))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        see_through = image.convert("RGBA")
        white = Image.new("RGBA", see_through.size, "white")
        return Image.alpha_composite(white, see_through).convert("RGB")
    return image.convert("RGB")


def _to_bytes(values: Array, mode: str) -> Array:
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


def pictures_of_folder(folder: str | os.PathLike[str]) -> list[Picture]:
    """All pictures in a folder and the folders in it, in the order of their names.

    Names are paths from the folder on, with "/" between parts. Links to folders are not followed.
    """
    root = _check_folder(folder)

    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}; check its rights") from error

    found = []
    for place, _, files in os.walk(root, onerror=fail):
        for file in files:
            path = Path(place, file)
            if path.suffix.lower() in ENDINGS and path.is_file():
                found.append(Picture(str(path.absolute()), path.relative_to(root).as_posix()))
    if not found:
        raise InputError(f"{folder}: holds no pictures ({', '.join(sorted(ENDINGS))})")
    return sorted(found, key=lambda picture: picture.name)


def pictures_of_list(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> list[Picture]:
    """Pictures that a file names, in its order.

    Args:
        folder: Where they are.
        path: A text file with one name per line and, where a picture is to be cropped, left, top, right and
            bottom behind it, all separated by tabs. Or the ground truth of a benchmark (.pkl, .mat, .json):
            the pictures of its database, or with ":queries" behind it those of its queries, cropped to their
            boxes.
    """
    root = _check_folder(folder)
    text = os.fspath(path)
    truth = text.removesuffix(":queries")
    if Path(truth).suffix.lower() in _TRUTHS:
        listed = _read_truth_list(truth, queries=truth != text)
    else:
        listed = _read_text_list(existing_file(text))
    if not listed:
        raise InputError(f"{text}: names no pictures")
    seen: set[str] = set()
    for name, _ in listed:
        if name in seen:
            raise InputError(f"{text}: names {name!r} twice; a name must be unique")
        if not stays_inside(name):
            raise InputError(f"{text}: {name[:60]!r} does not lie in {folder}; give names of pictures in it")
        seen.add(name)
    return [Picture(str(picture_file(root, name)), name, box) for name, box in listed]


def _read_truth_list(path: str, *, queries: bool) -> list[tuple[str, Box | None]]:
    truth = read_ground_truth(path)
    names = truth.get("qimlist") if queries else truth.get("imlist")
    if names is None:
        raise InputError(f"{path}: does not name its pictures (imlist, qimlist); give a list of names")
    if not queries:
        return [(name, None) for name in names]
    boxes = [
        None if (box := entry["bbx"]) is None else (box[0], box[1], box[2], box[3]) for entry in truth["gnd"]
    ]
    return list(zip(names, boxes, strict=True))


def _read_text_list(path: Path) -> list[tuple[str, Box | None]]:
    with wrap_parse_errors(path, "list of pictures"):
        lines = path.read_text(encoding="utf-8").split("\n")
    listed: list[tuple[str, Box | None]] = []
    for number, line in enumerate(lines, 1):
        name, *sides = line.rstrip("\r").split("\t")
        if not name and not sides:
            continue
        try:
            left, top, right, bottom = map(float, sides or (0, 0, 0, 0))
            if not name:
                raise ValueError
        except ValueError:
            raise InputError(
                f"{path}: line {number} is {line!r:.60}; write a name, or with tabs name, left, top, right, "
                "bottom"
            ) from None
        listed.append((name, (left, top, right, bottom) if sides else None))
    return listed


def picture_file(root: Path, name: str) -> Path:
    """The file of a picture by its name; benchmarks leave out the ending."""
    path = root.absolute() / name
    if path.suffix.lower() not in ENDINGS:
        for ending in (".jpg", ".png", ".jpeg"):
            if path.with_name(path.name + ending).is_file():
                return path.with_name(path.name + ending)
    return path


def _check_folder(folder: str | os.PathLike[str]) -> Path:
    root = Path(folder)
    if "\0" in str(root) or not root.exists():
        raise InputError(f"{str(folder)!r}: no such folder; check the name")
    if not root.is_dir():
        raise InputError(f"{folder}: is a file; give the folder of the pictures")
    return root
