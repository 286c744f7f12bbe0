"""What an artefact is once it is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gqe.reproduce.tables import Table


class Drawing(NamedTuple):
    """SVG text that stands inside a page, and the same as PNG."""

    svg: str
    png: bytes


@dataclass(frozen=True)
class Picture:
    """A figure. It is drawn when it is written, so that measuring needs no matplotlib."""

    name: str
    description: str
    draw: Callable[[], Drawing]


class Result(NamedTuple):
    """One result of a search: its picture (PIL), and whether it is "relevant", "ignored" or "other"."""

    picture: Any
    state: str


class Example(NamedTuple):
    """A query and its first results before and after expansion.

    Attributes:
        title: which one.
        picture: of the query (PIL).
        scores: its average precision in percent, before and after.
        before: results, best first.
        after: results, best first.
    """

    title: str
    picture: Any
    scores: tuple[float, float]
    before: list[Result]
    after: list[Result]


@dataclass(frozen=True)
class Artefact:
    """Tables, figures, and what they say in words.

    Attributes:
        name: what users type.
        title: its heading.
        text: what it shows.
        tables: in order.
        pictures: in order.
        findings: sentences computed from the numbers.
        examples: queries with their results as pictures.
    """

    name: str
    title: str
    text: str
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
