"""Pictures of the service: uploads to vectors, items to thumbnails."""

from __future__ import annotations

import io
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gqe.errors import InputError
from gqe.extraction.network import Network, normalize_rows
from gqe.extraction.pictures import DecodingOptions, UnreadablePictureError, open_picture, picture_file
from gqe.extraction.whitening import Whitening
from gqe.server.engine import Array, Engine, ItemId

SIDES = (160, 320)
"""Sides of thumbnails in pixels."""
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
_CACHE_BYTES = 64 << 20
# Pillow's limit of pixels is one for the whole process, so files are opened one at a time.
_OPEN_LOCK = threading.Lock()


class PictureVectors:
    """Uploaded pictures to vectors, computed as those of the index.

    Args:
        network: The network.
        whitening: What follows it, or None.
        rotate: Whether to rotate pictures by their EXIF orientation.
        max_pixels: Larger pictures are refused.
    """

    def __init__(
        self, network: Network, whitening: Whitening | None, rotate: bool = True, max_pixels: int = 40_000_000
    ) -> None:
        self.network, self.whitening = network, whitening
        self.opening = DecodingOptions(max_pixels, rotate)

    def __call__(self, content: bytes) -> Array:
        """The vector (d,) of a picture file's content.

        Raises:
            InputError: It is not a picture that can be used.
        """
        network = self.network
        with tempfile.NamedTemporaryFile(prefix="gqe-upload-") as file:
            file.write(content)
            file.flush()
            try:
                with _OPEN_LOCK:
                    opened = open_picture(file.name, opening=self.opening, at_least=network.prepare.at_least)
            except UnreadablePictureError as error:
                reason = str(error).partition(";")[0]
                raise InputError(f"picture: {reason}; give another one (JPEG, PNG, WebP...)") from error
        pixels = network.prepare(opened.image, opened.full_side)
        vector = normalize_rows(network.run(pixels[None]))
        return np.asarray(vector[0] if self.whitening is None else self.whitening.apply(vector)[0])


class ItemPictures(Protocol):
    """Where the pictures of items come from."""

    def __call__(self, item: ItemId, side: int) -> bytes | None:
        """A JPEG file with at most so many pixels per side; None if there is no picture."""


class FolderPictures:
    """Pictures of items that are named like files in a folder, with or without their suffix.

    Args:
        folder: The folder. Nothing outside of it is ever shown, whatever the name of an item.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give the folder of the pictures by --pictures")
        self.folder = folder.resolve()

    def __call__(self, item: ItemId, side: int) -> bytes | None:
        """See `ItemPictures`."""
        try:
            for suffix in ("", *_SUFFIXES):
                path = picture_file(self.folder, f"{item}{suffix}").resolve()
                if path.is_relative_to(self.folder) and path.is_file():
                    with _OPEN_LOCK:
                        image = open_picture(path, at_least=2 * side).image
                    return encode_thumbnail(image, side)
        except (UnreadablePictureError, OSError, ValueError):
            pass
        return None


class Thumbnails:
    """A least-recently-used cache of the thumbnails of an engine's items; called by one thread only."""

    def __init__(self, source: ItemPictures, engine: Engine) -> None:
        self._source, self._engine = source, engine
        self._cache: OrderedDict[tuple[ItemId, int], bytes] = OrderedDict()
        self._bytes = 0

    def __call__(self, item: ItemId, side: int) -> bytes | None:
        """A thumbnail; None if there is no such item, or no picture of it."""
        if item not in self._engine:
            for each in SIDES:
                self._bytes -= len(self._cache.pop((item, each), b""))
            return None
        if (item, side) in self._cache:
            self._cache.move_to_end((item, side))
            return self._cache[item, side]
        content = self._source(item, side)
        if content is not None:
            self._cache[item, side] = content
            self._bytes += len(content)
            while self._bytes > _CACHE_BYTES:
                self._bytes -= len(self._cache.popitem(last=False)[1])
        return content


def encode_thumbnail(image: Any, side: int) -> bytes:
    """A picture of Pillow as a JPEG file with at most so many pixels per side."""
    image.thumbnail((side, side))
    content = io.BytesIO()
    image.save(content, format="JPEG", quality=82)
    return content.getvalue()
