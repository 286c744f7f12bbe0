"""A comparison as one self-contained HTML page: table, figures, and results as pictures."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from gqe.datasets.base import Benchmark
from gqe.evaluation.base import GroundTruth
from gqe.formats.atomic import replacing


class Table(NamedTuple):
    """Column names and rows of text; `numbers` are the columns whose largest value is set in bold."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int]


class Example(NamedTuple):
    """One query before and after expansion: a sentence, and the ids of the results, best first."""

    caption: str
    query: int
    before: Sequence[int]
    after: Sequence[int]


class Section(NamedTuple):
    """A heading, a sentence or two, and what they are about (HTML)."""

    title: str
    text: str
    body: str


def write_report(path: str | os.PathLike[str], title: str, lead: str, sections: Sequence[Section]) -> None:
    """Write the page beside its place and rename it."""
    parts = [
        f"<section><h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>{section.body}</section>"
        for section in sections
    ]
    style = files("gqe.evaluation").joinpath("report.css").read_text(encoding="utf-8")
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{"".join(parts)}</main></body></html>\n'
    )
    with replacing(path) as beside, open(beside, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(page)


def table_html(table: Table) -> str:
    """The table as HTML, the best number of each column in bold."""
    best = {column: max(_number(row[column]) for row in table.rows) for column in table.numbers}
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    body = []
    for row in table.rows:
        cells = [
            f'<td class="best">{escape(text)}</td>'
            if column in best and _number(text) == best[column]
            else f"<td>{escape(text)}</td>"
            for column, text in enumerate(row)
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    inner = f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'


def figure_html(svg: str, description: str) -> str:
    """A figure that a screen reader can name."""
    return f'<div class="figure" role="img" aria-label="{escape(description, quote=True)}">{svg}</div>'


def examples_html(benchmark: Benchmark, truth: GroundTruth, examples: Sequence[Example]) -> str:
    """Queries with their results before and after expansion, as pictures; green frames are relevant."""
    n = len(benchmark.database)
    relevant, ignored = truth.relevance(n), truth.ignored(n)
    blocks = []
    for example in examples:
        states = dict.fromkeys(ignored[[example.query]].indices.tolist(), "ignored")
        states |= dict.fromkeys(relevant[[example.query]].indices.tolist(), "relevant")
        strips = "".join(
            f'<div class="strip"><span>{name}</span>'
            + "".join(_picture(benchmark, "database", item, states.get(item, "other")) for item in ids)
            + "</div>"
            for name, ids in (("before", example.before), ("after", example.after))
        )
        query = _picture(benchmark, "query", example.query, "asked")
        blocks.append(
            f'<div class="example"><h3>{escape(example.caption)}</h3><div class="strips">'
            f'<div class="query">{query}</div><div>{strips}</div></div></div>'
        )
    return "".join(blocks)


_STATES = {
    "asked": "the query",
    "relevant": "relevant",
    "ignored": "not counted: shows too little of the same thing",
    "other": "not relevant",
}


def _picture(benchmark: Benchmark, kind: str, index: int, state: str) -> str:
    assert benchmark.picture is not None
    picture: Any = benchmark.picture(kind, int(index))
    buffer = io.BytesIO()
    picture.convert("RGB").resize((168, 168)).save(buffer, format="JPEG", quality=82)
    data = base64.b64encode(buffer.getvalue()).decode()
    told = f'alt="{kind} {index}, {_STATES[state]}" title="{kind} {index}: {_STATES[state]}"'
    return f'<img class="{state}" src="data:image/jpeg;base64,{data}" {told}>'


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -np.inf
