"""A measured artefact: tables, figures and examples, before they are written in any form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True)
class TableRow:
    """A row.

    Attributes:
        title: the method.
        settings: what was chosen.
        values: one per column, and the mean last where the table has one; None for a dash.
        paper: the same of the paper.
    """

    title: str
    settings: str
    values: list[float | None]
    paper: list[float | None]

    @property
    def differences(self) -> list[float | None]:
        """Ours less the paper's."""
        pairs = zip(self.values, self.paper, strict=True)
        return [None if ours is None or theirs is None else ours - theirs for ours, theirs in pairs]


@dataclass(frozen=True)
class ResultTable:
    """Sections of rows below one head.

    Attributes:
        name: of its files.
        title: above it.
        columns: heads of the numbers.
        sections: {title: rows}; the best number of each column of a section is printed bold.
        against: what the paper's numbers are to these: "same", "reference" or "".
        notes: below it.
    """

    name: str
    title: str
    columns: list[str]
    sections: dict[str, list[TableRow]]
    against: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def beside(self) -> str:
        """`against`, or "" where the paper prints nothing of this table."""
        rows = [row for section in self.sections.values() for row in section]
        return self.against if any(n is not None for row in rows for n in row.paper) else ""


class Drawing(NamedTuple):
    """SVG text that stands inside a page, and the same as PNG."""

    svg: str
    png: bytes


@dataclass(frozen=True)
class Chart:
    """A figure. It is drawn when it is written, so that measuring needs no matplotlib."""

    name: str
    description: str
    draw: Callable[[], Drawing]


class PictureResult(NamedTuple):
    """One result of a search: its picture (PIL), and whether it is "relevant", "ignored" or "other"."""

    picture: Any
    state: str


class BeforeAfter(NamedTuple):
    """A query and its first results before and after expansion, best first.

    Attributes:
        title: which one.
        picture: of the query (PIL).
        scores: its average precision in percent, before and after.
        before: results without expansion.
        after: results with it.
    """

    title: str
    picture: Any
    scores: tuple[float, float]
    before: list[PictureResult]
    after: list[PictureResult]


class Headline(NamedTuple):
    """A number in large type, and what it is."""

    value: float
    label: str


@dataclass(frozen=True)
class Artefact:
    """Tables, figures, and what they say in words.

    Attributes:
        name: what users type.
        title: its heading.
        text: what it shows.
        tables: in order.
        charts: in order.
        findings: sentences computed from the numbers.
        examples: queries with their results as pictures.
        headline: numbers in large type, in rising order of effort.
    """

    name: str
    title: str
    text: str
    tables: list[ResultTable] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    examples: list[BeforeAfter] = field(default_factory=list)
    headline: list[Headline] = field(default_factory=list)


def format_number(number: float | None) -> str:
    """One decimal, a dash for none."""
    return "-" if number is None else f"{number:.1f}"


def best_values(rows: list[TableRow]) -> list[float | None]:
    """The highest number of each column."""
    columns = zip(*(row.values for row in rows), strict=True)
    return [max((value for value in column if value is not None), default=None) for column in columns]
