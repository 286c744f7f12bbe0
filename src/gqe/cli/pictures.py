"""Searching an index with pictures, for `gqe search --image`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gqe.errors import InputError

if TYPE_CHECKING:
    from gqe.index import Index


class PictureSearch:
    """Pictures, described as those of an index were.

    Args:
        index: The index.
        images: The pictures.
        box: "LEFT,TOP,RIGHT,BOTTOM" to crop the only picture to, or None.
        extraction: Record of how the vectors were made; None for the one in the index.
        device: Where to compute.
    """

    def __init__(
        self, index: Index, images: Sequence[Path], box: str | None, extraction: Path | None, device: str
    ) -> None:
        from gqe.extraction.record import IN_INDEX, Describer, read_record

        inside = index.path / IN_INDEX
        if extraction is None and not inside.is_file():
            raise InputError(
                f"{index.path}: does not know how its pictures were described; give the .extraction.json "
                "that gqe extract wrote, by --extraction"
            )
        self.index = index
        self.images = images
        self.record = read_record(inside if extraction is None else extraction)
        if self.record.dimension != index.dimension:
            raise InputError(
                f"{extraction or inside}: its vectors have {self.record.dimension} dimensions, the index "
                f"{index.dimension}; give the record of the vectors it was built from"
            )
        self.box = None if box is None else _box(box)
        if box is not None and len(images) > 1:
            raise InputError("--box: crops one picture; give one --image")
        boxes = None if self.box is None else [self.box]
        self.queries = Describer(self.record, device=device)(images, boxes)

    def search(self, k: int, *, expand: bool, **settings: Any) -> Any:
        """Results for all pictures, at most as many as there are items."""
        return self.index.search(self.queries, min(k, max(1, len(self.index))), expand=expand, **settings)

    def write(self, page: Path, k: int, found: Any, *, expanded: bool, **settings: Any) -> None:
        """A page of what a plain search finds and, if that is something else, of what was found."""
        from gqe.extraction.page import Answer, Hit, write_page

        if self.index.id_kind != "text":
            raise InputError(
                "--html: items have numbers instead of names of pictures; build the index with --ids "
                "and the .names.txt that gqe extract wrote"
            )
        plain = found
        if expanded:
            plain = self.search(k, expand=False, exact=settings["exact"], filter=settings["filter"])

        def hits(result: Any, row: int) -> list[Hit]:
            ids, scores = result.ids[row].tolist(), result.scores[row].tolist()
            return [Hit(str(i), s) for i, s in zip(ids, scores, strict=True) if i is not None and i != -1]

        answers = [
            Answer(str(image), self.box, hits(plain, row), hits(found, row) if expanded else [])
            for row, image in enumerate(self.images)
        ]
        about = (
            f"{len(self.index):,} pictures, described by {Path(self.record.network).name}; "
            f"expanded by {self.index.expander.name}"
        )
        write_page(page, f"Search in {self.index.path.name}", about, answers, self.record.folder)


def _box(text: str) -> tuple[float, float, float, float]:
    try:
        left, top, right, bottom = (float(side) for side in text.split(","))
    except ValueError:
        raise InputError(f"--box: {text!r} is not LEFT,TOP,RIGHT,BOTTOM") from None
    return left, top, right, bottom
