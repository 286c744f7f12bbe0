"""What a search found, as pictures: one HTML page that needs nothing beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from gqe.extraction.pictures import UnreadablePictureError, open_picture, picture_file
from gqe.page import picture, text
from gqe.page import write_page as write_html

_SIDE = 320  # pixels of a thumbnail: sharp on dense screens


class Hit(NamedTuple):
    """A found picture: what it is called, how similar it is."""

    name: str
    score: float


class PictureHits(NamedTuple):
    """What was found for one picture.

    Attributes:
        query: File of the picture.
        box: What it was cropped to, or None.
        before: Results without expansion, best first.
        after: Results with it; empty for a search without.
    """

    query: str
    box: Sequence[float] | None
    before: Sequence[Hit]
    after: Sequence[Hit]


def write_page(
    path: str | os.PathLike[str], title: str, about: str, answers: Sequence[PictureHits], folder: str
) -> None:
    """Write the page beside its place and rename it.

    Args:
        path: The page.
        title: Its heading.
        about: A sentence below it.
        answers: What was found.
        folder: Where the found pictures are, by their names.
    """
    known: dict[str, str] = {}
    blocks = "".join(_block(answer, folder, known) for answer in answers)
    style = files("gqe.extraction").joinpath("page.css").read_text(encoding="utf-8")
    head = f"<header><h1>{text(title)}</h1><p>{text(about)}</p></header>"
    write_html(path, title, style, head + blocks)


def _block(answer: PictureHits, folder: str, known: dict[str, str]) -> str:
    ranks = {hit.name: rank for rank, hit in enumerate(answer.before, 1)}
    before = [_hit(hit, rank, "", folder, known) for rank, hit in enumerate(answer.before, 1)]
    after = [
        _hit(hit, rank, _rank_change(ranks.get(hit.name), rank), folder, known)
        for rank, hit in enumerate(answer.after, 1)
    ]
    columns = {"Before expansion": before, "After expansion": after} if after else {"Found": before}
    lists = "".join(
        f"<section><h2>{title}</h2><ol>{''.join(hits)}</ol></section>" for title, hits in columns.items()
    )
    name = Path(answer.query).name
    query = _image(answer.query, answer.box, name)
    return (
        f'<article><figure class="query">{query}<figcaption>{text(name)}</figcaption></figure>'
        f'<div class="columns">{lists}</div></article>'
    )


def _hit(hit: Hit, rank: int, moved: str, folder: str, known: dict[str, str]) -> str:
    if hit.name not in known:
        known[hit.name] = _image(str(picture_file(Path(folder), hit.name)), None, hit.name)
    name = text(hit.name)
    return (
        f'<li>{known[hit.name]}<div class="label"><span class="rank">{rank}</span>'
        f'<span class="name" title="{name}">{name}</span>{moved}'
        f'<span class="score">{hit.score:.3f}</span></div></li>'
    )


def _rank_change(before: int | None, now: int) -> str:
    if before is None:
        return '<span class="up">new</span>'
    if before == now:
        return ""
    if before > now:
        return f'<span class="up">▲{before - now}</span>'
    return f'<span class="down">▼{now - before}</span>'


def _image(path: str, box: Sequence[float] | None, name: str) -> str:
    try:
        image: Any = open_picture(path, box=box, at_least=2 * _SIDE).image
    except (UnreadablePictureError, ValueError):
        return '<div class="missing">no picture</div>'
    image.thumbnail((_SIDE, _SIDE))
    return picture(image, name)
