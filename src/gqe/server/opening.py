"""From an index's folder, a store's address or the built-in town to what `create_app` takes."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gqe import __version__
from gqe.datasets import town
from gqe.datasets.town import files
from gqe.errors import InputError
from gqe.extraction.lite0 import Lite0
from gqe.extraction.record import IN_INDEX, Describer, read_record
from gqe.formats.atomic import atomic_path
from gqe.index import Index, verify
from gqe.integrations.sentence_transformers import TextModel, read_model_name
from gqe.server.engine import Engine, ItemId
from gqe.server.index_engine import IndexEngine
from gqe.server.pictures import SIDES, FolderPictures, ItemPictures, PictureVectors, encode_thumbnail
from gqe.server.service import TextVectors
from gqe.server.store_engine import StoreEngine
from gqe.stores import connect
from gqe.stores.address import parse

log = logging.getLogger(__name__)

_TOWN_SPLIT = "test"
_TOWN_PIXELS = 224  # the side of the pictures that the town's vectors were computed from


class ServedParts(NamedTuple):
    """An engine with its pictures, as `create_app` takes them."""

    engine: Engine
    describe: PictureVectors | None
    pictures: ItemPictures | None
    examples: list[int] | None = None
    embed: TextVectors | None = None
    labels: dict[ItemId, ItemId] | None = None


def open_served(
    place: str,
    pictures: Path | None = None,
    extraction: Path | None = None,
    model: str | None = None,
    *,
    device: str = "auto",
    max_pixels: int = 40_000_000,
    cluster: Mapping[str, Any] | None = None,
) -> ServedParts:
    """Open an index or a vector database to be served.

    Args:
        place: Folder of an index, or address of a store (see `gqe.connect`).
        pictures: Folder of the items' pictures; None for the one they were extracted from, if it exists.
        extraction: Record of the extraction, written by `gqe extract`; None for the index's own.
        model: The sentence-transformers model of texts; None for the one noted in the index.
        device: Where to compute.
        max_pixels: Of an uploaded picture.
        cluster: Settings of `ShardedServing`, for an index whose shards a cluster searches.
    """
    address = parse(place)
    if address.engine != "embedded":
        if cluster is not None:
            raise InputError("--cluster: a vector database is searched where it is; leave it out")
        connection = connect(place, device=device)
        try:
            describe, source = _open_describer(extraction, connection.dimension, device, max_pixels, True)
            folder = pictures if pictures is not None else source
            shown = None if folder is None else FolderPictures(folder)
            embed = _open_text_model(model, connection.dimension, device, True)
            return ServedParts(StoreEngine(connection), describe, shown, embed=embed)
        except BaseException:
            connection.close()
            raise
    index = Index.open(Path(address.path), device=device)
    record = extraction or index.path / IN_INDEX
    describe, source = _open_describer(record, index.dimension, device, max_pixels, extraction is not None)
    if pictures is not None and index.id_kind != "text":
        raise InputError(
            "--pictures: items have numbers instead of names of pictures; build the index with --ids and the "
            ".names.txt that gqe extract wrote"
        )
    folder = pictures if pictures is not None else source
    shown = None if folder is None or index.id_kind != "text" else FolderPictures(folder)
    noted = read_model_name(index.path) if model is None else model
    embed = _open_text_model(noted, index.dimension, device, model is not None)
    engine = IndexEngine(index) if cluster is None else _open_sharded(index, device, cluster)
    return ServedParts(engine, describe, shown, embed=embed)


def _open_sharded(index: Index, device: str, settings: Mapping[str, Any]) -> IndexEngine:
    from gqe.server.sharded_engine import ShardedEngine  # Ray is an extra

    return ShardedEngine(index.path, device=device, **settings)


def _open_text_model(name: str | None, dimension: int, device: str, required: bool) -> TextVectors | None:
    """Texts to vectors by a model; None if there is none, or if it is not required and cannot be loaded."""
    if name is None:
        return None
    try:
        text_model = TextModel(name, device)
        found = text_model.embed_queries(["a first text, which loads everything"])
    except InputError as error:
        if required:
            raise
        log.warning("searching by text is off: %s", error)
        return None
    if found.shape[1] != dimension:
        raise InputError(
            f"model: {name} gives {found.shape[1]} dimensions, those to be served have {dimension};"
            " give the model of these"
        )
    return lambda text: text_model.embed_queries([text])[0]


def _open_describer(
    path: Path | None, dimension: int, device: str, max_pixels: int, required: bool
) -> tuple[PictureVectors | None, Path | None]:
    """Pictures to vectors as a record says, and the folder it names if that exists."""
    if path is None or not (required or path.is_file()):
        return None, None
    record = read_record(path)
    folder = Path(record.folder) if record.folder and Path(record.folder).is_dir() else None
    if record.dimension != dimension and required:
        raise InputError(
            f"{path}: its vectors have {record.dimension} dimensions, those to be served {dimension};"
            " give the record of these"
        )
    if record.dimension != dimension:
        return None, folder
    try:
        describer = Describer(record, device=device)
    except InputError as error:
        if required:
            raise
        log.warning("searching by picture is off: %s", error)
        return None, folder
    return PictureVectors(describer.network, describer.whitening, record.rotate, max_pixels), folder


def open_demo(
    folder: str | os.PathLike[str] | None = None, *, device: str = "auto", max_pixels: int = 40_000_000
) -> ServedParts:
    """Open the town's index with `universal`, which is built at the first time.

    Args:
        folder: Where index and pictures are stored; the user's cache folder if None.
        device: Where to compute.
        max_pixels: Of an uploaded picture.
    """
    if importlib.util.find_spec("PIL") is None:
        raise InputError("--demo: Pillow is not installed, which draws the town; pip install 'gqe[serve]'")
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME", "")
        folder = (Path(home) if home else Path.home() / ".cache") / "gqe" / f"town-{__version__}"
    pictures = TownPictures(Path(folder) / "pictures")
    data = town.load(_TOWN_SPLIT)
    # A copy is served: the next demonstration begins anew.
    copy = Path(tempfile.mkdtemp(prefix="gqe-town-"))
    shutil.copytree(_build_town(data.database, Path(folder) / "index", device), copy / "index")
    index = Index.open(copy / "index", device=device)
    weakref.finalize(index, shutil.rmtree, copy, ignore_errors=True)
    try:
        network = Lite0(_TOWN_PIXELS)
    except InputError as error:  # what the network needs is not installed
        log.warning("searching by picture is off: %s", error)
        describe = None
    else:
        whitening = files.whitening_of(files.read(None))
        describe = PictureVectors(network, whitening, max_pixels=max_pixels)
    # One picture of every landmark that has many: there is something to find.
    truth = data.ground_truth["gnd"]
    examples = [int(entry["easy"][0]) for entry in truth[::2] if len(entry["easy"]) > 3][:24]
    landmarks = files.read(None)[f"{_TOWN_SPLIT}_database_landmarks"].tolist()
    labels: dict[ItemId, ItemId] = {
        item: landmark for item, landmark in enumerate(landmarks) if landmark >= 0
    }
    engine = IndexEngine(index, "the built-in town")
    return ServedParts(engine, describe, pictures, examples, labels=labels)


def _build_town(database: Any, place: Path, device: str) -> Path:
    """The town's index, built beside its place and renamed."""
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


class TownPictures:
    """Pictures of the town's items, drawn at their first use and stored in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, item: ItemId, side: int) -> bytes | None:
        """See `ItemPictures`."""
        path = self.folder / f"{item}-{side}.jpg"
        if path.is_file():
            return path.read_bytes()
        try:
            image = town.picture(_TOWN_SPLIT, "database", int(item), size=_TOWN_PIXELS)
        except InputError:  # an item that was added
            return None
        for each in SIDES:
            with atomic_path(self.folder / f"{item}-{each}.jpg") as temporary:
                temporary.write_bytes(encode_thumbnail(image.copy(), each))
        return path.read_bytes()
