"""Artefacts as files: the page, which loads nothing else, and tables as CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from gqe.page import picture, text
from gqe.page import write_page as write_html
from gqe.reproduce.artefact import (
    Artefact,
    BeforeAfter,
    Chart,
    Drawing,
    PictureResult,
    ResultTable,
    best_values,
    format_number,
)
from gqe.reproduce.measuring import Measurement
from gqe.reproduce.paper_numbers import CITATION
from gqe.reproduce.suite import Suite

_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: "\\" + c for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "α": r"$\alpha$",
    "–": "--",
}
_SIDE = 168  # pixels: sharp on dense screens
_STATES = {
    "relevant": "right",
    "ignored": "not counted: shows too little of the same thing",
    "other": "wrong",
}
_AGAINST = {
    "same": f"Small: what the paper prints, and ours less the paper's ({CITATION}).",
    "reference": f"Small: what the paper prints for other descriptors; a reference only ({CITATION}).",
}
_LEAD = (
    "All numbers are mean average precision (mAP) in percent, unless a head says otherwise. Every setting was"
    " chosen on validation data; where a table says otherwise, its title says so. The best of each column is"
    " bold."
)
_WORDS = {
    "M, H": "Medium counts all views of the right thing, Hard only those that are hard to recognise"
    " (the protocol of Revisited Oxford and Paris).",
    "QE": "query expansion: each query is replaced by a sum of itself and its neighbours, and searched"
    " again.",
    "DBA": "database-side augmentation: each item of the database is replaced in the same way, too.",
    "K": "how many neighbours are summed; K_DBA is that of the database side.",
    "α": "each neighbour weighs its cosine similarity to the power of α.",
    "T": "temperature, one for each level of a model on the database side: the smaller, the more weight the"
    " largest weights get; – leaves them as they are.",
    "untrained, collapsed": "the model with random weights; without its first level.",
}
# A table wider than the screen scrolls by itself, with the keyboard, too.
_SCROLL = '<div class="scroll" tabindex="0" role="region" aria-label="{}">'
_GLOSSARY = (
    "<dl>"
    + "".join(f"<dt>{escape(word)}</dt><dd>{escape(says)}</dd>" for word, says in _WORDS.items())
    + "</dl>"
)


def csv_text(table: ResultTable) -> str:
    """One line per row: section, method, settings, the numbers, then the paper's and the differences."""
    head = ["section", "method", "settings", *table.columns]
    if table.beside:
        head += [f"{column}, paper" for column in table.columns]
    if table.beside == "same":
        head += [f"{column}, difference" for column in table.columns]
    lines = [head]
    for section, rows in table.sections.items():
        for row in rows:
            numbers = [*row.values, *(row.paper if table.beside else [])]
            numbers += row.differences if table.beside == "same" else []
            texts = ["" if number is None else f"{number:.4f}" for number in numbers]
            lines.append([section, row.title, row.settings, *texts])
    return _csv(lines)


def measurements_csv(measurements: Sequence[Measurement]) -> str:
    """The cost of every measurement."""
    return _csv([Measurement._fields, *measurements])


def _csv(lines: Iterable[Sequence[Any]]) -> str:
    content = io.StringIO()
    csv.writer(content, lineterminator="\n").writerows(lines)
    return content.getvalue()


def latex_text(table: ResultTable) -> str:
    """A tabular of the booktabs package; the paper's numbers stand below ours in small type."""
    count = len(table.columns) + 1
    lines = [
        f"% {table.name}: needs \\usepackage{{booktabs}}",
        f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "\\toprule",
        " & ".join(["", *(latex(column) for column in table.columns)]) + r" \\",
    ]
    for section, rows in table.sections.items():
        lines += ["\\midrule", f"\\multicolumn{{{count}}}{{c}}{{{latex(section)}}} \\\\", "\\midrule"]
        best = best_values(rows)
        for row in rows:
            cells = [
                f"\\textbf{{{format_number(v)}}}" if v is not None and v == b else format_number(v)
                for v, b in zip(row.values, best, strict=True)
            ]
            lines.append(" & ".join([latex(row.title), *cells]) + r" \\")
            if table.beside and any(number is not None for number in row.paper):
                small = [f"{{\\scriptsize {format_number(number)}}}" for number in row.paper]
                lines.append(" & ".join([r"{\scriptsize \quad printed in the paper}", *small]) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    lines += [f"% {note}" for note in table.notes]
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    r"""Text with everything escaped that means something to LaTeX.

    Example:
        >>> latex("αQE & 50%")
        '$\\alpha$QE \\& 50\\%'
    """
    return "".join(_LATEX.get(character, character) for character in text)


def write_page(
    path: str | os.PathLike[str],
    suite: Suite,
    artefacts: Sequence[Artefact],
    drawings: Mapping[str, Drawing],
    measurements: Sequence[Measurement] = (),
    pending: Sequence[str] = (),
) -> None:
    """Write the page of a suite.

    Args:
        path: the page.
        suite: what was measured.
        artefacts: in order.
        drawings: figures by name; those that could not be drawn are missing.
        measurements: with their cost, if it is to be shown.
        pending: names of artefacts that are still being measured.
    """
    head = f"<h1>{escape(suite.title)}</h1>"
    if pending:
        more = f"Still being measured: {', '.join(pending)}. Reload this page to see them."
        head += f'<p class="pending">{escape(more)}</p>'
    parts = [_section(a.name, a.title, a.text, _body(a, drawings), _headline(a)) for a in artefacts]
    if any(artefact.tables for artefact in artefacts):
        first = next(place for place, artefact in enumerate(artefacts) if artefact.tables)
        parts.insert(first, _section("reading", "How to read the tables", _LEAD, _GLOSSARY))
    parts.append(_section("about", "What was measured", suite.about, _notes(suite.notes)))
    if measurements:
        about = "Of every measurement; memory with mapped files."
        parts.append(_section("cost", "Time and memory", about, _cost(measurements)))
    style = files("gqe.reproduce").joinpath("page.css").read_text(encoding="utf-8")
    write_html(path, suite.title, style, head + "".join(parts))


def _section(name: str, title: str, text: str, body: str, top: str = "") -> str:
    return f'<section id="{escape(name)}"><h2>{escape(title)}</h2>{top}<p>{escape(text)}</p>{body}</section>'


def table_html(table: ResultTable) -> str:
    """The table with the paper's numbers and the differences below ours."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("method", "settings", *table.columns))
    body = []
    for section, lines in table.sections.items():
        if len(table.sections) > 1:
            span = len(table.columns) + 2
            body.append(f'<tr><th class="section" colspan="{span}">{escape(section)}</th></tr>')
        best = best_values(lines)
        for line in lines:
            settings = escape(line.settings)  # below the name where there is no room for a column
            below = f'<small class="narrow">{settings}</small>' if settings else ""
            cells = [f"<td>{escape(line.title)}{below}</td><td>{settings}</td>"]
            for ours, most, theirs, difference in zip(
                line.values, best, line.paper, line.differences, strict=True
            ):
                kind = ' class="best"' if ours is not None and ours == most else ""
                small = _small(theirs, difference if table.beside == "same" else None)
                cells.append(f"<td{kind}>{format_number(ours)}{small}</td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
    notes = [*([_AGAINST[table.beside]] if table.beside else []), *table.notes]
    return (
        f'<h3>{escape(table.title)}</h3>{_SCROLL.format(escape(table.title))}<table class="paper">'
        f"<thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>{_notes(notes)}{_links(table.name, 'csv', 'tex')}"
    )


def _small(theirs: float | None, difference: float | None) -> str:
    if theirs is None:
        return ""
    if difference is None:
        return f"<small>{format_number(theirs)}</small>"
    kind = "up" if difference >= 0 else "down"
    return f'<small>{format_number(theirs)} <span class="{kind}">{difference:+.1f}</span></small>'


def _headline(artefact: Artefact) -> str:
    items = "".join(
        f"<li><b>{format_number(number.value)}</b> {escape(number.label)}</li>"
        for number in artefact.headline
    )
    return f'<ol class="headline">{items}</ol>' if items else ""


def _body(artefact: Artefact, drawings: Mapping[str, Drawing]) -> str:
    charts = "".join(_figure(chart, drawings.get(chart.name)) for chart in artefact.charts)
    tables = "".join(table_html(table) for table in artefact.tables)
    return examples_html(artefact.examples) + charts + tables + _findings(artefact)


def _findings(artefact: Artefact) -> str:
    """What the numbers say: a quiet note, folded where it is long."""
    items = "".join(f"<li>{escape(text)}</li>" for text in artefact.findings)
    if len(artefact.findings) < 2:
        return _notes(artefact.findings)
    return f'<details><summary>In words</summary><ul class="findings">{items}</ul></details>'


def _figure(chart: Chart, drawing: Drawing | None) -> str:
    if drawing is None:
        missing = f"{chart.description}: not drawn, since matplotlib is not installed."
        return _notes([f"{missing} The same command draws it where it is, without measuring again."])
    label = escape(chart.description, quote=True)
    figure = f'<div class="figure" role="img" aria-label="{label}">{drawing.svg}</div>'
    return figure + _links(chart.name, "svg", "png")


def _notes(notes: Sequence[str]) -> str:
    """Small paragraphs; what stands between backticks is a command."""
    lines = (re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(note)) for note in notes)
    return "".join(f'<p class="note">{line}</p>' for line in lines)


def _links(name: str, *endings: str) -> str:
    links = "".join(f'<a href="{escape(name)}.{e}">{escape(name)}.{e}</a>' for e in endings)
    return f'<p class="files">{links}</p>'


def _cost(measurements: Sequence[Measurement]) -> str:
    heads = "".join(f"<th>{name}</th>" for name in ("benchmark", "method", "seconds", "peak GiB"))
    rows = "".join(
        f"<tr><td>{escape(s.place)}</td><td>{escape(s.method)}</td><td>{s.seconds:.1f}</td>"
        f"<td>{s.peak_bytes / 2**30:.2f}</td></tr>"
        for s in measurements
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f"{_SCROLL.format('Time and memory')}{table}</div>"


def examples_html(examples: Sequence[BeforeAfter]) -> str:
    """One block per example; frames and alternative texts say which results are right."""
    return "".join(_example(example) for example in examples)


def _example(example: BeforeAfter) -> str:
    old, new = example.scores
    kind = "up" if new >= old else "down"
    change = (
        f'average precision {old:.1f} → <span class="{kind}">{new:.1f}</span>'
        f' <small class="{kind}">{new - old:+.1f}</small>'
    )
    strips = _strip("before", example.before) + _strip("after", example.after)
    return (
        f'<div class="example"><h3>{text(example.title)}: {change}</h3><div class="strips">'
        f'<div class="query">{_image(example.picture, "the query", "asked")}<span>query</span></div>'
        f"<div>{strips}</div></div></div>"
    )


def _strip(name: str, results: Sequence[PictureResult]) -> str:
    images = (
        _image(result.picture, f"{name}, place {place}: {_STATES[result.state]}", result.state)
        for place, result in enumerate(results, 1)
    )
    right = sum(result.state == "relevant" for result in results)
    label = f"<span>{name}<small>{right} right</small></span>"
    return f'<div class="strip">{label}{"".join(images)}</div>'


def _image(image: Any, alt: str, kind: str) -> str:
    return picture(image.convert("RGB").resize((_SIDE, _SIDE)), alt, title=alt, kind=kind)
