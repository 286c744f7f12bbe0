"""Searching with pictures, for `gqe search --image`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gqe.cli.common import parse_numbers
from gqe.cli.database import OpenedDatabase
from gqe.errors import InputError


class PictureQueries:
    """Pictures, described as those of a database were.

    Args:
        database: what is searched.
        images: the pictures.
        box: "LEFT,TOP,RIGHT,BOTTOM" to crop the only picture to, or None.
        extraction: record of how the vectors were made; None for the one in the index or beside the file.
        device: where to compute.
    """

    def __init__(
        self,
        database: OpenedDatabase,
        images: Sequence[Path],
        box: str | None,
        extraction: Path | None,
        device: str,
    ) -> None:
        from gqe.extraction.record import IN_INDEX, Describer, read_record, record_path

        record = extraction
        if record is None and database.folder is not None:
            record = database.folder / IN_INDEX
        elif record is None and database.file is not None:
            record = record_path(database.file)
        if record is None or (extraction is None and not record.is_file()):
            raise InputError(
                f"{database.name}: does not know how its pictures were described; give the .extraction.json"
                " that gqe extract wrote, by --extraction"
            )
        self.database, self.images = database, images
        self.record = read_record(record)
        if self.record.dimension != database.dimension:
            raise InputError(
                f"{record}: its vectors have {self.record.dimension} dimensions, the database"
                f" {database.dimension}; give the record of the vectors it was built from"
            )
        if box is not None and len(images) > 1:
            raise InputError("--box: crops one picture; give one --image")
        self.box = None if box is None else parse_numbers("--box", box)
        if self.box is not None and len(self.box) != 4:
            raise InputError(f"--box: {box!r} is not LEFT,TOP,RIGHT,BOTTOM")
        self.vectors = Describer(self.record, device=device)(images, None if box is None else [self.box])

    def write_page(self, page: Path, before: Any, after: Any | None) -> None:
        """Write the results before and after expansion; None for no expansion."""
        from gqe.extraction.page import Hit, PictureHits, write_page

        names = self._names()

        def hits(result: Any, row: int) -> list[Hit]:
            if result is None:
                return []
            pairs = zip(result.ids[row].tolist(), result.scores[row].tolist(), strict=True)
            return [
                Hit(names[i] if names else str(i), score) for i, score in pairs if i is not None and i != -1
            ]

        answers = [
            PictureHits(str(image), self.box, hits(before, row), hits(after, row))
            for row, image in enumerate(self.images)
        ]
        about = f"{len(self.database.items):,} pictures, described by {Path(self.record.network).name}"
        if after is not None:
            about += f"; expanded by {self.database.method}"
        write_page(page, f"Search in {self.database.name}", about, answers, self.record.folder)

    def _names(self) -> list[str] | None:
        """Of the pictures in a file of vectors; None where ids are names."""
        from gqe.extraction.record import names_path

        if self.database.id_kind == "text":
            return None
        file = self.database.file
        names = names_path(file) if file is not None else None
        lines = names.read_text(encoding="utf-8").splitlines() if names and names.is_file() else []
        if len(lines) < len(self.database.items):
            raise InputError(
                "--html: items have numbers instead of names of pictures; build the index with --ids and the"
                " .names.txt that gqe extract wrote"
            )
        return lines
