"""The whole run: measure what is missing, then write every file."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gqe.errors import InputError
from gqe.formats.atomic import replacing
from gqe.reproduce.artefact import Artefact, Drawing
from gqe.reproduce.artefacts import ARTEFACTS, PICTURES, table1
from gqe.reproduce.cells import Store
from gqe.reproduce.estimating import estimated
from gqe.reproduce.measuring import Measurer, Stage, StreamingOptions
from gqe.reproduce.suite import Suite
from gqe.reproduce.writing.files import csv_text, latex_text
from gqe.reproduce.writing.page import write_page

log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]


class Report(NamedTuple):
    """What a run gave: the page, the artefacts, how many cells were computed and how many were there."""

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
                    {"section": section, "method": line.title, "settings": line.settings}
                    | {"values": line.values, "paper": line.paper}
                    for section, lines in table.sections.items()
                    for line in lines
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
    manner: StreamingOptions | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> Report:
    """Measure the artefacts of a suite and write them to a folder.

    A cell that stands in `output/results.json` already is not computed again, so a stopped run goes on where
    it was. Without matplotlib the figures are left out; the same call draws them where it is installed.

    Args:
        suite: benchmarks and models.
        output: folder for results.json, index.html, tables and figures.
        artefacts: names of `ARTEFACTS`, or "all".
        device: "auto", "cpu", "cuda"...
        manner: how to measure streamed databases, and rows to leave out.
        progress: told rows begun, all rows, and what is being measured.
        tell: told in a few lines, before it begins, how long a streamed database will take.

    Returns:
        The page and its contents.
    """
    names = chosen(artefacts, suite)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output}: cannot be made: {error.strerror}; choose another --output") from None
    store = Store(output / "results.json")
    kept = len(store)
    measurer = Measurer(suite, store, output / "scratch", device=device, manner=manner, progress=progress)
    measurer.rows = sum(ARTEFACTS[name].rows(measurer) for name in names)
    if tell is not None and "table1" in names:
        for line in estimated(measurer, table1.DBA):
            tell(line)
    made = [ARTEFACTS[name].make(measurer) for name in names]
    drawings = _drawings(made)
    for artefact in made:
        _write(output, artefact, drawings)
    stages = measurer.stages if suite.settings.get("show_cost") else []
    if stages:
        _write_text(output / "stages.csv", _stages_csv(stages))
    page = output / "index.html"
    noted = replace(suite, notes=[*suite.notes, *measurer.manner.notes])
    write_page(page, noted, made, drawings, stages)
    return Report(page, made, measurer.computed, kept)


def chosen(artefacts: Sequence[str], suite: Suite) -> list[str]:
    """Names in the order of the page; "all" is every one of them, pictures where the suite has some."""
    for name in artefacts:
        if name != "all" and name not in ARTEFACTS:
            raise InputError(f"artefact: {name!r} is unknown; it can be all, {', '.join(ARTEFACTS)}")
    if PICTURES in artefacts and not suite.pictures:
        raise InputError(f"artefact: {PICTURES!r} needs pictures, and the suite {suite.name} has none")
    wanted = set(artefacts)
    if "all" in artefacts or not artefacts:
        wanted = {name for name in ARTEFACTS if name != PICTURES or suite.pictures}
    return [name for name in ARTEFACTS if name in wanted]


def _drawings(artefacts: Sequence[Artefact]) -> dict[str, Drawing]:
    pictures = [picture for artefact in artefacts for picture in artefact.pictures]
    if pictures and find_spec("matplotlib") is None:
        log.warning(
            "figures are not drawn: matplotlib is not installed (pip install 'gqe[report]'); the same command"
            " draws them where it is, without measuring again"
        )
        return {}
    return {picture.name: picture.draw() for picture in pictures}


def _write(output: Path, artefact: Artefact, drawings: dict[str, Drawing]) -> None:
    for table in artefact.tables:
        _write_text(output / f"{table.name}.csv", csv_text(table))
        _write_text(output / f"{table.name}.tex", latex_text(table))
    for name in [picture.name for picture in artefact.pictures if picture.name in drawings]:
        _write_text(output / f"{name}.svg", drawings[name].svg + "\n")
        with replacing(output / f"{name}.png") as beside:
            beside.write_bytes(drawings[name].png)


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def _stages_csv(stages: Sequence[Stage]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Stage._fields)
    writer.writerows(stages)
    return text.getvalue()
