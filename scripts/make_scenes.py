r"""Cut-out pictures pasted into others as labelled pictures: the views of one thing are a class.

    python scripts/make_scenes.py --objects /usr/share/tuxpaint/stamps --objects /usr/share/openclipart/png \
        --backgrounds /usr/share/wallpapers --out scenes

Objects are PNG files with transparency (Debian: tuxpaint-stamps-default, openclipart-png), backgrounds any
JPEG files (plasma-workspace-wallpapers, ukui-wallpapers). Each object is seen in some places, sizes, turns
and lights. Pictures are described by EfficientNet-Lite0 and PCA-whitened. Writes train.npz, val.npz and
test.npz, see `labelled_sets`.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from labelled_sets import write_sets
from PIL import Image, ImageEnhance

from gqe.extraction import Lite0, fit

Array = np.ndarray[Any, Any]
_DIM = 256
_BATCH = 64
# Pixels of a picture, and of objects and backgrounds before they are placed.
_SIDE, _OBJECT, _BACKGROUND = 96, 256, 600
# Backgrounds that objects are seen on.
_PLACES = 40


def main() -> None:
    """Read the command line, draw, describe, write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objects", type=Path, action="append", required=True, help="folder with PNG files")
    parser.add_argument("--backgrounds", type=Path, required=True, help="folder with JPEG files")
    parser.add_argument("--most", type=int, default=1000, help="objects of each folder")
    parser.add_argument("--views", type=int, default=20, help="pictures of each object")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.npz, val.npz, test.npz")
    options = parser.parse_args()

    objects = [path for folder in options.objects for path in _some(folder, "*.png", options.most)]
    backgrounds = _some(options.backgrounds, "*.jpg", _PLACES)
    with ProcessPoolExecutor(initializer=_open_backgrounds, initargs=(backgrounds,)) as pool:
        drawn = list(pool.map(partial(views, count=options.views), objects, range(len(objects)), chunksize=8))
    labels = np.repeat(np.arange(len(drawn)), [len(each) for each in drawn])
    pixels = np.concatenate(drawn)
    network = Lite0(_SIDE, batch_size=_BATCH)
    parts = [network.run(pixels[start : start + _BATCH]) for start in range(0, len(pixels), _BATCH)]
    descriptors = np.concatenate(parts)
    descriptors = descriptors / np.linalg.norm(descriptors, axis=1, keepdims=True)
    print(write_sets(options.out, fit(descriptors, _DIM).apply(descriptors), labels))


def views(path: Path, seed: int, *, count: int) -> Array:
    """(count, side, side, 3) pictures of an object; none if it cannot be read or is seen through nowhere."""
    rng = np.random.default_rng(seed)
    try:
        thing = Image.open(path).convert("RGBA")
        thing.thumbnail((_OBJECT, _OBJECT))
    except (OSError, ValueError, Image.DecompressionBombError):
        return np.empty((0, _SIDE, _SIDE, 3), np.uint8)
    solid = thing.getchannel("A").getbbox()
    if solid is None or thing.getchannel("A").getextrema()[0] == 255:
        return np.empty((0, _SIDE, _SIDE, 3), np.uint8)
    change = rng.random()  # some things are always seen alike, others from everywhere
    return np.stack([_view(thing.crop(solid), change, rng) for _ in range(count)])


def _view(thing: Image.Image, change: float, rng: np.random.Generator) -> Array:
    place = _backgrounds[rng.integers(len(_backgrounds))]
    width = rng.uniform(0.15, 1) * min(place.size)
    left, upper = rng.uniform(0, place.width - width), rng.uniform(0, place.height - width)
    picture = place.resize((_SIDE, _SIDE), box=(left, upper, left + width, upper + width))
    if rng.random() < change / 2:
        thing = thing.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    scale = rng.uniform(0.35 + 0.2 * change, 1.1) * _SIDE / max(thing.size)
    thing = thing.resize((max(4, int(thing.width * scale)), max(4, int(thing.height * scale))))
    turn = rng.normal(0, 8 + 25 * change)
    thing = thing.rotate(turn, expand=True, resample=Image.Resampling.BILINEAR)
    thing = ImageEnhance.Brightness(thing).enhance(rng.uniform(0.6, 1.4))
    thing = ImageEnhance.Color(thing).enhance(rng.uniform(0.4, 1.4))
    # A large thing is cut off somewhere.
    spots = [rng.uniform(min(0, _SIDE - size), max(0, _SIDE - size)) for size in thing.size]
    picture.paste(thing, (int(spots[0]), int(spots[1])), thing)
    return np.asarray(picture)


_backgrounds: list[Image.Image] = []


def _open_backgrounds(paths: list[Path]) -> None:
    """Of a process, once."""
    for path in paths:
        picture = Image.open(path).convert("RGB")
        picture.thumbnail((_BACKGROUND, _BACKGROUND))
        _backgrounds.append(picture)


def _some(folder: Path, pattern: str, most: int) -> list[Path]:
    """Files below a folder, always the same ones."""
    files = sorted(folder.rglob(pattern))
    chosen = np.random.default_rng(0).permutation(len(files))[:most]
    return [files[number] for number in sorted(chosen)]


if __name__ == "__main__":
    main()
