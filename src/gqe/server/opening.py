"""From an index's folder to the parts that `create_app` takes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from gqe.errors import InputError
from gqe.index import Index
from gqe.server.engine import IndexEngine
from gqe.server.pictures import FolderPictures, ItemPictures, PictureVectors

log = logging.getLogger(__name__)


class Opened(NamedTuple):
    """An index ready to be served, with what it knows of pictures."""

    engine: IndexEngine
    describe: PictureVectors | None
    pictures: ItemPictures | None


def open_index(
    path: Path, pictures: Path | None = None, *, device: str = "auto", most_pixels: int = 40_000_000
) -> Opened:
    """Open an index to be served.

    Args:
        path: The index.
        pictures: Folder of the items' pictures; None for the one they were extracted from, if it is there.
        device: Where to compute.
        most_pixels: Of an uploaded picture.
    """
    from gqe.extraction.record import IN_INDEX, Describer, read_record

    index = Index.open(path, device=device)
    describe: PictureVectors | None = None
    folder = pictures
    if (path / IN_INDEX).is_file():
        record = read_record(path / IN_INDEX)
        if folder is None and record.folder and Path(record.folder).is_dir():
            folder = Path(record.folder)
        if record.dimension == index.dimension:
            try:
                describe = PictureVectors.of(Describer(record, device=device), most_pixels)
            except InputError as error:
                log.warning("searching by picture is off: %s", error)
    if pictures is not None and index.id_kind != "text":
        raise InputError(
            "--pictures: items have numbers instead of names of pictures; build the index with --ids and the "
            ".names.txt that gqe extract wrote"
        )
    shown = FolderPictures(folder) if folder is not None and index.id_kind == "text" else None
    return Opened(IndexEngine(index), describe, shown)
