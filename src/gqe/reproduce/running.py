"""The whole run: measure what is missing, then write every file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gqe.errors import InputError
from gqe.formats.atomic import atomic_path
from gqe.reproduce import artefact_figures as figures
from gqe.reproduce import artefact_tables as tables
from gqe.reproduce.artefact import Artefact, Drawing
from gqe.reproduce.cells import CellStore
from gqe.reproduce.estimating import estimate_cost
from gqe.reproduce.measuring import Measurer, StreamingOptions
from gqe.reproduce.suite import Suite
from gqe.reproduce.writing import csv_text, latex_text, measurements_csv, write_page

log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
# In the order of the page.
ARTEFACTS: dict[str, Callable[[Measurer], Artefact]] = {
    "overview": tables.overview,
    "repaired": figures.improved_queries,
    "table1": tables.table1,
    "k-sweep": figures.k_sweep,
    "agreement-diversity": figures.agreement_diversity,
    "table2": tables.table2,
    "depth": tables.depth,
}
# It comes only with a suite that has pictures.
_PICTURES = "repaired"


class Report(NamedTuple):
    """Results of a run: the page, the artefacts, how many cells were computed and how many were there."""

    page: Path
    artefacts: list[Artefact]
    computed: int
    kept: int

    @property
    def findings(self) -> list[str]:
        """What the numbers say, in sentences."""
        return [f"{artefact.name}: {text}" for artefact in self.artefacts for text in artefact.findings]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the page, findings, and all tables."""
        tables = {
            table.name: {
                "columns": table.columns,
                "rows": [
                    {"section": section, "method": row.title, "settings": row.settings}
                    | {"values": row.values, "paper": row.paper}
                    for section, rows in table.sections.items()
                    for row in rows
                ],
            }
            for artefact in self.artefacts
            for table in artefact.tables
        }
        counts = {"computed": self.computed, "kept": self.kept}
        return {"report": str(self.page), "findings": self.findings, "tables": tables} | counts


def reproduce(
    suite: Suite,
    output: Path,
    artefacts: Sequence[str] = ("all",),
    *,
    device: str | torch.device = "auto",
    options: StreamingOptions | None = None,
    progress: Progress | None = None,
    print_line: Callable[[str], None] | None = None,
) -> Report:
    """Measure the artefacts of a suite and write them to a folder, the page anew after each of them.

    A cell that is in `output/results.json` already is not computed again, so a stopped run continues where it
    was. Without matplotlib the figures are left out; the same call draws them where it is installed.

    Args:
        suite: benchmarks and models.
        output: folder for results.json, index.html, tables and figures.
        artefacts: names of `ARTEFACTS`, or "all".
        device: "auto", "cpu", "cuda"...
        options: how to measure streamed databases, and rows to leave out.
        progress: called with rows begun, all rows, and what is being measured.
        print_line: called with a few lines: how long a streamed database will take, and what the page has.

    Returns:
        The page and its contents.
    """
    names = artefact_names(artefacts, suite)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output}: cannot be made: {error.strerror}; choose another --output") from None
    store = CellStore(output / "results.json")
    kept = len(store)
    measurer = Measurer(suite, store, output / "scratch", device=device, options=options, progress=progress)
    measurer.rows = sum(_count_rows(name, suite) for name in names)
    if print_line is not None and "table1" in names:
        for line in estimate_cost(measurer, tables.TABLE1_DBA):
            print_line(line)
    page = output / "index.html"
    suite = replace(suite, notes=[*suite.notes, *measurer.options.notes])
    results: list[Artefact] = []
    drawings: dict[str, Drawing] = {}
    for place, name in enumerate(names, 1):
        artefact = ARTEFACTS[name](measurer)
        results.append(artefact)
        drawn = _draw(artefact)
        _write_files(output, artefact, drawn)
        drawings |= drawn
        measurements = measurer.measurements if suite.settings.get("show_cost") else []
        write_page(page, suite, results, drawings, measurements, pending=names[place:])
        if print_line is not None:
            print_line(f"{page}: {artefact.title} ({place} of {len(names)} parts)")
    if measurements:
        _write(output / "stages.csv", measurements_csv(measurements))
    if any(chart.name not in drawings for artefact in results for chart in artefact.charts):
        log.warning(
            "figures are not drawn: matplotlib is not installed (pip install 'gqe[report]'); the same command"
            " draws them where it is, without measuring again"
        )
    return Report(page, results, measurer.computed, kept)


def _write_files(output: Path, artefact: Artefact, drawings: Mapping[str, Drawing]) -> None:
    for table in artefact.tables:
        _write(output / f"{table.name}.csv", csv_text(table))
        _write(output / f"{table.name}.tex", latex_text(table))
    for name, drawing in drawings.items():
        _write(output / f"{name}.svg", drawing.svg + "\n")
        _write(output / f"{name}.png", drawing.png)


def _write(path: Path, content: str | bytes) -> None:
    with atomic_path(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def artefact_names(artefacts: Sequence[str], suite: Suite) -> list[str]:
    """Names in the order of the page; "all" is every one of them, pictures where the suite has some."""
    for name in artefacts:
        if name != "all" and name not in ARTEFACTS:
            raise InputError(f"artefact: {name!r} is unknown; it can be all, {', '.join(ARTEFACTS)}")
    if _PICTURES in artefacts and not suite.pictures:
        raise InputError(f"artefact: {_PICTURES!r} needs pictures, and the suite {suite.name} has none")
    wanted = set(artefacts)
    if "all" in artefacts or not artefacts:
        wanted = {name for name in ARTEFACTS if name != _PICTURES or suite.pictures}
    return [name for name in ARTEFACTS if name in wanted]


def _count_rows(artefact: str, suite: Suite) -> int:
    """How many rows an artefact begins to measure."""
    return {
        "overview": len(tables.OVERVIEW) + 4,
        "table1": len(tables.TABLE1_QE + tables.TABLE1_DBA)
        + (len(tables.TUNED_ON_TEST) if suite.tuned_on_test else 0),
        "repaired": 1,
        "table2": len(tables.TABLE2),
        "k-sweep": len(figures.K_SWEEP) + 1,
        "agreement-diversity": len(figures.AGREEMENT_DIVERSITY),
        "depth": len(tables.DEPTH_QE + tables.DEPTH_DBA),
    }[artefact]


def _draw(artefact: Artefact) -> dict[str, Drawing]:
    """The figures of an artefact; none where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        return {}
    return {chart.name: chart.draw() for chart in artefact.charts}
