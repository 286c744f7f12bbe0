"""The built-in town behind the service; its pictures are drawn when they are asked for."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, NamedTuple

from gqe import __version__
from gqe.datasets import town
from gqe.datasets.town import files
from gqe.errors import InputError
from gqe.formats.atomic import replacing
from gqe.index import Index, verify
from gqe.server.index_engine import IndexEngine
from gqe.server.pictures import SIDES, PictureVectors, as_jpeg

log = logging.getLogger(__name__)

SPLIT = "test"
_DRAWN = 224  # pixels: what the descriptors were made of


class Demo(NamedTuple):
    """The parts of the demonstration, as `create_app` takes them."""

    engine: IndexEngine
    describe: PictureVectors | None
    pictures: TownPictures
    examples: list[int]


class TownPictures:
    """Pictures of the town's items, drawn once and kept in a folder.

    Args:
        folder: Where to keep them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, item: int | str, side: int) -> bytes | None:
        """See `ItemPictures`."""
        path = self.folder / f"{item}-{side}.jpg"
        if path.is_file():
            return path.read_bytes()
        try:
            image = town.picture(SPLIT, "database", int(item), size=_DRAWN)
        except InputError:  # an item that was added
            return None
        for each in SIDES:
            with replacing(self.folder / f"{item}-{each}.jpg") as temporary:
                temporary.write_bytes(as_jpeg(image.copy(), each))
        return path.read_bytes()


def make_demo(
    folder: str | os.PathLike[str] | None = None, *, device: str = "auto", most_pixels: int = 40_000_000
) -> Demo:
    """Make the town's index with `universal`, or take the one that was made before.

    Args:
        folder: Where index and pictures are kept; the user's cache folder if None.
        device: Where to compute.
        most_pixels: Of an uploaded picture.
    """
    if importlib.util.find_spec("PIL") is None:
        raise InputError("--demo: Pillow is not installed, which draws the town; pip install 'gqe[serve]'")
    kept = _cache() if folder is None else Path(folder)
    pictures = TownPictures(kept / "pictures")
    data = town.load(SPLIT)
    # What is served is a copy: the next demonstration begins anew.
    place = Path(tempfile.mkdtemp(prefix="gqe-town-"))
    shutil.copytree(_built(data.database, kept / "index", device), place / "index")
    index = Index.open(place / "index", device=device)
    weakref.finalize(index, shutil.rmtree, place, ignore_errors=True)
    truth = data.ground_truth["gnd"]
    # One picture of every landmark that has many: there is something to find.
    examples = [int(entry["easy"][0]) for entry in truth[::2] if len(entry["easy"]) > 3][:24]
    engine = IndexEngine(index, "the built-in town")
    return Demo(engine, _describer(most_pixels), pictures, examples)


def _built(database: Any, place: Path, device: str) -> Path:
    """The town's index, made beside its place and renamed."""
    if (place / "manifest.json").is_file() and not verify(place):
        return place
    beside = Path(tempfile.mkdtemp(prefix="index-", dir=place.parent))
    Index.build(database, "universal", beside / "index", device=device)
    shutil.rmtree(place, ignore_errors=True)
    try:
        (beside / "index").rename(place)
    except OSError:  # another process was faster
        return beside / "index"
    beside.rmdir()
    return place


def _describer(most_pixels: int) -> PictureVectors | None:
    """Pictures to vectors of the town; None where what is needed is not installed."""
    from gqe.extraction.lite0 import Lite0

    try:
        network = Lite0(_DRAWN)
    except InputError as error:
        log.warning("searching by picture is off: %s", error)
        return None
    return PictureVectors(network, files.whitening_of(files.read(None)), most_pixels=most_pixels)


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "gqe" / f"town-{__version__}"
