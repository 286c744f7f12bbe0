"""Pictures of the service: uploads to vectors, items to thumbnails."""

from __future__ import annotations

import io
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gqe.errors import InputError
from gqe.extraction.network import Network, normalize_rows
from gqe.extraction.pictures import Opening, UnreadablePictureError, open_picture, picture_file
from gqe.extraction.record import Describer
from gqe.extraction.whitening import Whitening

Array = np.ndarray[Any, Any]
SIDES = (160, 320)
"""Sides of thumbnails in pixels."""
_ENDINGS = (".jpg", ".jpeg", ".png", ".webp")
_KEPT_BYTES = 64 << 20
# Pillow's limit of pixels is one for the whole process, so files are opened one at a time.
_OPENING = threading.Lock()


class PictureVectors:
    """Uploaded pictures to vectors, as those of the index were made.

    Args:
        network: The network.
        whitening: What follows it, or None.
        rotate: Whether to turn pictures as their EXIF data say.
        most_pixels: Larger pictures are refused.
    """

    def __init__(
        self,
        network: Network,
        whitening: Whitening | None,
        rotate: bool = True,
        most_pixels: int = 40_000_000,
    ) -> None:
        self.network, self.whitening = network, whitening
        self.opening = Opening(most_pixels, rotate)

    @classmethod
    def of(cls, describer: Describer, most_pixels: int) -> PictureVectors:
        """As a describer does it, with a limit of its own."""
        return cls(describer.network, describer.whitening, describer.record.rotate, most_pixels)

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
                with _OPENING:
                    opened = open_picture(file.name, opening=self.opening, at_least=network.prepare.at_least)
            except UnreadablePictureError as error:
                reason = str(error).partition(";")[0]
                raise InputError(f"picture: {reason}; give another one (JPEG, PNG, WebP...)") from error
        pixels = network.prepare(opened.image, opened.full_side)
        vector = normalize_rows(network.run(pixels[None]))
        return np.asarray(vector[0] if self.whitening is None else self.whitening.apply(vector)[0])


class ItemPictures(Protocol):
    """Where the pictures of items come from."""

    def __call__(self, item: int | str, side: int) -> bytes | None:
        """A JPEG file of at most so many pixels on a side; None if there is no picture."""


class FolderPictures:
    """Items that are named like files in a folder, with or without their endings.

    Args:
        folder: The folder. Nothing outside of it is ever shown, whatever an item is called.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give the folder of the pictures by --pictures")
        self.folder = folder.resolve()

    def __call__(self, item: int | str, side: int) -> bytes | None:
        """See `ItemPictures`."""
        try:
            path = self._file(str(item))
            if path is None:
                return None
            with _OPENING:
                image = open_picture(path, at_least=2 * side).image
        except (UnreadablePictureError, OSError, ValueError):
            return None
        return as_jpeg(image, side)

    def _file(self, name: str) -> Path | None:
        for ending in ("", *_ENDINGS):
            path = picture_file(self.folder, name + ending).resolve()
            if path.is_relative_to(self.folder) and path.is_file():
                return path
        return None


class Thumbnails:
    """Thumbnails, the latest of which stay in memory.

    Args:
        source: Where pictures come from.
    """

    def __init__(self, source: Callable[[int | str, int], bytes | None]) -> None:
        self._source = source
        self._kept: OrderedDict[tuple[int | str, int], bytes] = OrderedDict()
        self._bytes = 0

    def forget(self, item: int | str) -> None:
        """Keep nothing of an item that was removed; called by the same thread."""
        for side in SIDES:
            self._bytes -= len(self._kept.pop((item, side), b""))

    def __call__(self, item: int | str, side: int) -> bytes | None:
        """A thumbnail; called by one thread only."""
        known = self._kept.get((item, side))
        if known is not None:
            self._kept.move_to_end((item, side))
            return known
        content = self._source(item, side)
        if content is not None:
            self._kept[item, side] = content
            self._bytes += len(content)
            while self._bytes > _KEPT_BYTES:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return content


def as_jpeg(image: Any, side: int) -> bytes:
    """A picture of Pillow as a JPEG file of at most so many pixels on a side."""
    image.thumbnail((side, side))
    content = io.BytesIO()
    image.save(content, format="JPEG", quality=82)
    return content.getvalue()
