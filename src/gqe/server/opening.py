"""From an index's folder, or a store's address, to the parts that `create_app` takes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from gqe.errors import InputError
from gqe.index import Index
from gqe.server.engine import Engine
from gqe.server.index_engine import IndexEngine
from gqe.server.pictures import FolderPictures, ItemPictures, PictureVectors

log = logging.getLogger(__name__)


class Opened(NamedTuple):
    """Something to be served, with what is known of pictures."""

    engine: Engine
    describe: PictureVectors | None
    pictures: ItemPictures | None


def open_served(
    place: str,
    pictures: Path | None = None,
    extraction: Path | None = None,
    *,
    device: str = "auto",
    most_pixels: int = 40_000_000,
) -> Opened:
    """Open an index or a vector database to be served.

    Args:
        place: Folder of an index, or address of a store (see `gqe.connect`).
        pictures: Folder of the items' pictures; None for the one they were extracted from, if it is there.
        extraction: Record of how pictures were described, that `gqe extract` wrote; None for the index's own.
        device: Where to compute.
        most_pixels: Of an uploaded picture.
    """
    from gqe.extraction.record import IN_INDEX
    from gqe.stores.address import parse

    address = parse(place)
    if address.engine != "embedded":
        return _open_store(place, pictures, extraction, device, most_pixels)
    folder = Path(address.path)
    index = Index.open(folder, device=device)
    inside = folder / IN_INDEX
    record = extraction if extraction is not None else inside if inside.is_file() else None
    describe, source = _describer(record, index.dimension, device, most_pixels, given=extraction is not None)
    if pictures is not None and index.id_kind != "text":
        raise InputError(
            "--pictures: items have numbers instead of names of pictures; build the index with --ids and the "
            ".names.txt that gqe extract wrote"
        )
    shown = pictures if pictures is not None else source
    named = shown is not None and index.id_kind == "text"
    return Opened(IndexEngine(index), describe, FolderPictures(shown) if shown and named else None)


def _open_store(
    url: str, pictures: Path | None, extraction: Path | None, device: str, most_pixels: int
) -> Opened:
    from gqe.server.store_engine import StoreEngine
    from gqe.stores import connect

    connection = connect(url, device=device)
    try:
        describe, source = _describer(extraction, connection.dimension, device, most_pixels, given=True)
        folder = pictures if pictures is not None else source
        shown = None if folder is None else FolderPictures(folder)
        return Opened(StoreEngine(connection), describe, shown)
    except BaseException:
        connection.close()
        raise


def _describer(
    path: Path | None, dimension: int, device: str, most_pixels: int, *, given: bool
) -> tuple[PictureVectors | None, Path | None]:
    """Pictures to vectors as a record says, and the folder it names if that is there."""
    from gqe.extraction.record import Describer, read_record

    if path is None:
        return None, None
    record = read_record(path)
    folder = Path(record.folder) if record.folder and Path(record.folder).is_dir() else None
    if record.dimension != dimension:
        if given:
            raise InputError(
                f"{path}: its vectors have {record.dimension} dimensions, those to be served {dimension};"
                " give the record of these"
            )
        return None, folder
    try:
        return PictureVectors.of(Describer(record, device=device), most_pixels), folder
    except InputError as error:
        if given:
            raise
        log.warning("searching by picture is off: %s", error)
        return None, folder
