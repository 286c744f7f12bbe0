"""A table of numbers with the paper's numbers beside them, before it is written in any form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from gqe.reproduce import paper_numbers
from gqe.reproduce.rows import Filled, protocols
from gqe.reproduce.suite import Place, Suite

_SHORT = {"medium": "M", "hard": "H", "map": "mAP"}


class Column(NamedTuple):
    """One column: a benchmark and a protocol ("medium", "hard" or "map")."""

    place: str
    title: str
    protocol: str

    @property
    def heading(self) -> str:
        """Title and short name of the protocol."""
        return self.title if self.protocol == "map" else f"{self.title} {_SHORT[self.protocol]}"


@dataclass(frozen=True)
class Line:
    """A row.

    Attributes:
        title: the method.
        settings: what was chosen.
        values: one a column, and the mean last where the table has one; None for a dash.
        paper: the same of the paper.
    """

    title: str
    settings: str
    values: list[float | None]
    paper: list[float | None]


@dataclass(frozen=True)
class Table:
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
    sections: dict[str, list[Line]]
    against: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def beside(self) -> str:
        """`against`, or "" where the paper prints nothing of this table."""
        lines = [line for rows in self.sections.values() for line in rows]
        return self.against if any(n is not None for line in lines for n in line.paper) else ""


def columns_of(places: list[Place], filled: list[Filled]) -> list[Column]:
    """The columns of benchmarks: what their protocols are is known from any measured row."""
    columns = []
    for place in places:
        cell = next((c for row in filled if (c := row.cells.get(place.name)) is not None), None)
        names = ("map",) if cell is None else protocols(cell)
        columns += [Column(place.name, place.title, protocol) for protocol in names]
    return columns


def value(filled: Filled, column: Column) -> float | None:
    """One number, None where there is none."""
    cell = filled.cells.get(column.place)
    number = None if cell is None else cell.scores.get(column.protocol)
    return None if number is None or math.isnan(number) else number


def compared(columns: list[Column], filled: list[Filled], needed: tuple[str, ...]) -> list[Column]:
    """The columns that the mean runs over: those that the needed rows have, all if they have none."""
    rows = [row for row in filled if row.row.title in needed]
    common = [c for c in columns if rows and all(value(row, c) is not None for row in rows)]
    return common or columns


def mean(filled: Filled, columns: list[Column]) -> float | None:
    """The mean over the columns; None if one is missing."""
    numbers = [value(filled, column) for column in columns]
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known and len(known) == len(numbers) else None


def line(
    filled: Filled, columns: list[Column], suite: Suite, table: str, mean_over: list[Column] | None
) -> Line:
    """A row of numbers, the paper's beside them."""
    title = filled.row.title
    values = [value(filled, column) for column in columns]
    paper: list[float | None] = [None] * len(columns)
    if suite.paper:
        paper = [paper_numbers.printed(table, title, c.place, c.protocol) for c in columns]
    if mean_over is not None:
        values.append(mean(filled, mean_over))
        whole = suite.paper == "same" and len(columns) == len(paper_numbers.COLUMNS)
        paper.append(paper_numbers.printed_mean(title) if whole and table == "table1" else None)
    return Line(title, filled.settings, values, paper)


def shown(number: float | None) -> str:
    """One decimal, a dash for none."""
    return "-" if number is None else f"{number:.1f}"
