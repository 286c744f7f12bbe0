"""From measured rows to a table with the paper's numbers beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gqe.reproduce import paper_numbers
from gqe.reproduce.artefact import ResultTable, TableRow
from gqe.reproduce.rows import RowResult, missing_row_notes, protocols
from gqe.reproduce.suite import BenchmarkEntry, Suite

_SHORT = {"medium": "M", "hard": "H", "map": "mAP"}


class Column(NamedTuple):
    """One column: a benchmark and a protocol ("medium", "hard" or "map")."""

    benchmark: str
    title: str
    protocol: str

    @property
    def heading(self) -> str:
        """Title and short name of the protocol."""
        return self.title if self.protocol == "map" else f"{self.title} {_SHORT[self.protocol]}"


class Columns(NamedTuple):
    """The columns of a table, and those that the mean runs over."""

    all: list[Column]
    in_mean: list[Column]

    @property
    def headings(self) -> list[str]:
        """Of all columns and of the mean."""
        return [*(column.heading for column in self.all), "Mean"]


def columns_of(
    entries: Sequence[BenchmarkEntry], results: Sequence[RowResult], needed: tuple[str, ...]
) -> Columns:
    """The columns of benchmarks, whose protocols are known from any measured row.

    The mean runs over those that all needed rows have a number in, or over all if there are none.
    """
    columns = []
    for entry in entries:
        cells = (result.cells.get(entry.name) for result in results)
        cell = next((cell for cell in cells if cell is not None), None)
        names = ("map",) if cell is None else protocols(cell)
        columns += [Column(entry.name, entry.title, protocol) for protocol in names]
    rows = [result for result in results if result.row.title in needed]
    common = [c for c in columns if rows and all(value(row, c) is not None for row in rows)]
    return Columns(columns, common or columns)


def value(result: RowResult, column: Column) -> float | None:
    """One number, None where there is none."""
    cell = result.cells.get(column.benchmark)
    number = None if cell is None else cell.scores.get(column.protocol)
    return None if number is None or math.isnan(number) else number


def mean(result: RowResult, columns: Sequence[Column]) -> float | None:
    """The mean over the columns; None if one is missing."""
    numbers = [value(result, column) for column in columns]
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known and len(known) == len(numbers) else None


def make_table(
    suite: Suite,
    name: str,
    title: str,
    columns: Columns,
    sections: Mapping[str, Sequence[RowResult]],
    *,
    paper_table: str = "",
    notes: Sequence[str] | None = None,
) -> ResultTable:
    """A table of measured rows.

    Args:
        suite: says what the paper's numbers are to these.
        name: of its files.
        title: above it.
        columns: from `columns_of`.
        sections: {title: rows}.
        paper_table: "table1" or "table2" if the paper prints this table.
        notes: below it; which rows are missing if None.
    """
    # The paper's mean runs over all of its columns.
    whole = suite.paper == "same" and len(columns.all) == len(paper_numbers.COLUMNS)

    def table_row(result: RowResult) -> TableRow:
        row = result.row.title
        values = [value(result, column) for column in columns.all] + [mean(result, columns.in_mean)]
        paper: list[float | None] = [None] * len(values)
        if suite.paper:
            paper = [
                paper_numbers.paper_number(paper_table, row, column.benchmark, column.protocol)
                for column in columns.all
            ]
            paper.append(paper_numbers.paper_mean(row) if whole and paper_table == "table1" else None)
        return TableRow(row, result.settings, values, paper)

    if notes is None:
        notes = missing_row_notes([result for results in sections.values() for result in results])
    rows = {head: [table_row(result) for result in results] for head, results in sections.items()}
    return ResultTable(name, title, columns.headings, rows, suite.paper if paper_table else "", list(notes))
