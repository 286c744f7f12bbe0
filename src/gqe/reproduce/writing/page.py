"""The page: all artefacts, self-contained."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from gqe.page import write_page as write_html
from gqe.reproduce.artefact import Artefact, Drawing, Picture
from gqe.reproduce.measuring import Stage
from gqe.reproduce.paper_numbers import CITATION
from gqe.reproduce.suite import Suite
from gqe.reproduce.tables import Table, shown
from gqe.reproduce.writing.examples import examples_html
from gqe.reproduce.writing.files import bests, differences

_AGAINST = {
    "same": f"Small: what the paper prints, and ours less the paper's ({CITATION}).",
    "reference": f"Small: what the paper prints for other descriptors; a reference only ({CITATION}).",
}
_LEAD = (
    "The tables and figures of the paper, measured anew. Every setting was chosen on validation data;"
    " where a table says otherwise, its title says so. mAP in percent."
)


def write_page(
    path: str | os.PathLike[str],
    suite: Suite,
    artefacts: Sequence[Artefact],
    drawings: Mapping[str, Drawing],
    stages: Sequence[Stage] = (),
) -> None:
    """Write the page of a suite.

    Args:
        path: the page.
        suite: what was measured.
        artefacts: in order.
        drawings: figures by name; those that could not be drawn are missing.
        stages: the cost of every measurement, if it is to be shown.
    """
    head = f'<h1>{escape(suite.title)}</h1><p class="lead">{escape(_LEAD)}</p>'
    parts = [_section("about", "What was measured", suite.about, _notes(suite.notes))]
    parts += [_section(a.name, a.title, a.text, _body(a, drawings)) for a in artefacts]
    if stages:
        told = "Of every measurement; memory with mapped files."
        parts.append(_section("cost", "Time and memory", told, _cost(stages)))
    style = files("gqe.reproduce.writing").joinpath("page.css").read_text(encoding="utf-8")
    write_html(path, suite.title, style, head + "".join(parts))


def _section(name: str, title: str, text: str, body: str) -> str:
    return f'<section id="{escape(name)}"><h2>{escape(title)}</h2><p>{escape(text)}</p>{body}</section>'


def table_html(table: Table) -> str:
    """The table with the paper's numbers and the differences below ours."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("method", "settings", *table.columns))
    body = []
    for section, lines in table.sections.items():
        if len(table.sections) > 1:
            span = len(table.columns) + 2
            body.append(f'<tr><th class="section" colspan="{span}">{escape(section)}</th></tr>')
        best = bests(lines)
        for line in lines:
            settings = escape(line.settings)  # below the name where there is no room for a column
            below = f'<small class="narrow">{settings}</small>' if settings else ""
            cells = [f"<td>{escape(line.title)}{below}</td><td>{settings}</td>"]
            for ours, most, theirs, difference in zip(
                line.values, best, line.paper, differences(line), strict=True
            ):
                kind = ' class="best"' if ours is not None and ours == most else ""
                small = _small(theirs, difference if table.beside == "same" else None)
                cells.append(f"<td{kind}>{shown(ours)}{small}</td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
    told = [*([_AGAINST[table.beside]] if table.beside else []), *table.notes]
    return (
        f'<h3>{escape(table.title)}</h3><div class="scroll"><table class="paper">'
        f"<thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>{_notes(told)}{_links(table.name, 'csv', 'tex')}"
    )


def _small(theirs: float | None, difference: float | None) -> str:
    if theirs is None:
        return ""
    if difference is None:
        return f"<small>{shown(theirs)}</small>"
    kind = "up" if difference >= 0 else "down"
    return f'<small>{shown(theirs)} <span class="{kind}">{difference:+.1f}</span></small>'


def _body(artefact: Artefact, drawings: Mapping[str, Drawing]) -> str:
    items = "".join(f'<li class="{_kind(text)}">{escape(text)}</li>' for text in artefact.findings)
    findings = f'<ul class="findings">{items}</ul>' if items else ""
    pictures = "".join(_figure(picture, drawings.get(picture.name)) for picture in artefact.pictures)
    tables = "".join(table_html(table) for table in artefact.tables)
    return findings + pictures + tables + examples_html(artefact.examples)


def _figure(picture: Picture, drawing: Drawing | None) -> str:
    if drawing is None:
        told = f"{picture.description}: not drawn, since matplotlib is not installed."
        return _notes([f"{told} The same command draws it where it is, without measuring again."])
    named = escape(picture.description, quote=True)
    figure = f'<div class="figure" role="img" aria-label="{named}">{drawing.svg}</div>'
    return figure + _links(picture.name, "svg", "png")


def _kind(finding: str) -> str:
    if finding.startswith("Holds"):
        return "holds"
    return "fails" if finding.startswith("Does not hold") else "plain"


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def _links(name: str, *endings: str) -> str:
    links = "".join(f'<a href="{escape(name)}.{e}">{escape(name)}.{e}</a>' for e in endings)
    return f'<p class="files">{links}</p>'


def _cost(stages: Sequence[Stage]) -> str:
    heads = "".join(f"<th>{name}</th>" for name in ("benchmark", "method", "seconds", "peak GiB"))
    rows = "".join(
        f"<tr><td>{escape(s.place)}</td><td>{escape(s.method)}</td><td>{s.seconds:.1f}</td>"
        f"<td>{s.peak_bytes / 2**30:.2f}</td></tr>"
        for s in stages
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="scroll">{table}</div>'
