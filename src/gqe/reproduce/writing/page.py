"""The page: all artefacts, self-contained."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from gqe.evaluation.report import Section, figure_html, write_report
from gqe.evaluation.report import Table as PlainTable
from gqe.evaluation.report import table_html as plain_table_html
from gqe.reproduce.artefact import Artefact
from gqe.reproduce.measuring import Stage
from gqe.reproduce.paper_numbers import CITATION
from gqe.reproduce.suite import Suite
from gqe.reproduce.tables import Table, shown
from gqe.reproduce.writing.files import bests, differences

_AGAINST = {
    "same": f"Small: what the paper prints, and ours less the paper's ({CITATION}).",
    "reference": f"Small: what the paper prints for other descriptors; a reference only ({CITATION}).",
}


def write_page(
    path: str | os.PathLike[str], suite: Suite, artefacts: Sequence[Artefact], stages: Sequence[Stage] = ()
) -> None:
    """Write the page of a suite, perhaps with the cost of every measurement."""
    style = files("gqe.reproduce.writing").joinpath("page.css").read_text(encoding="utf-8")
    about = [Section("What was measured", suite.about, f"<style>{style}</style>{_notes(suite.notes)}")]
    sections = [Section(a.title, a.text, _body(a)) for a in artefacts]
    if stages:
        sections.append(
            Section("Time and memory", "Of every measurement; memory with mapped files.", _cost(stages))
        )
    lead = (
        "The tables and figures of the paper, measured anew. Every setting was chosen on validation data;"
        " where a table says otherwise, its title says so. mAP in percent."
    )
    write_report(path, suite.title, lead, about + sections)


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
            cells = [f"<td>{escape(line.title)}</td><td>{escape(line.settings)}</td>"]
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


def _body(artefact: Artefact) -> str:
    items = "".join(f'<li class="{_kind(text)}">{escape(text)}</li>' for text in artefact.findings)
    findings = f'<ul class="findings">{items}</ul>' if items else ""
    pictures = "".join(
        figure_html(picture.svg, picture.description) + _links(picture.name, "svg", "png")
        for picture in artefact.pictures
    )
    return findings + pictures + "".join(table_html(table) for table in artefact.tables)


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
    rows = [[s.place, s.method, f"{s.seconds:.1f}", f"{s.peak_bytes / 2**30:.2f}"] for s in stages]
    return plain_table_html(PlainTable(["benchmark", "method", "seconds", "peak GiB"], rows, ()))
