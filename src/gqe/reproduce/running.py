"""The whole run: measure what is missing, then write every file."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gqe.errors import InputError
from gqe.formats.atomic import replacing
from gqe.reproduce.artefact import Artefact
from gqe.reproduce.artefacts import ARTEFACTS
from gqe.reproduce.cells import Store
from gqe.reproduce.measuring import Measurer, Stage
from gqe.reproduce.suite import Suite
from gqe.reproduce.writing.files import csv_text, latex_text
from gqe.reproduce.writing.page import write_page

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
    progress: Progress | None = None,
) -> Report:
    """Measure the artefacts of a suite and write them to a folder.

    A cell that stands in `output/results.json` already is not computed again, so a stopped run goes on where
    it was.

    Args:
        suite: benchmarks and models.
        output: folder for results.json, index.html, tables and figures.
        artefacts: names of `ARTEFACTS`, or "all".
        device: "auto", "cpu", "cuda"...
        progress: told rows begun, all rows, and what is being measured.

    Returns:
        The page and its contents.
    """
    names = chosen(artefacts)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output}: cannot be made: {error.strerror}; choose another --output") from None
    store = Store(output / "results.json")
    kept = len(store)
    measurer = Measurer(suite, store, output / "scratch", device=device, progress=progress)
    measurer.rows = sum(ARTEFACTS[name].rows(measurer) for name in names)
    made = [ARTEFACTS[name].make(measurer) for name in names]
    for artefact in made:
        _write(output, artefact)
    stages = measurer.stages if suite.settings.get("show_cost") else []
    if stages:
        _write_text(output / "stages.csv", _stages_csv(stages))
    page = output / "index.html"
    write_page(page, suite, made, stages)
    return Report(page, made, measurer.computed, kept)


def chosen(artefacts: Sequence[str]) -> list[str]:
    """Names in the order of the page; "all" is every one of them."""
    for name in artefacts:
        if name != "all" and name not in ARTEFACTS:
            raise InputError(f"artefact: {name!r} is unknown; it can be all, {', '.join(ARTEFACTS)}")
    wanted = set(ARTEFACTS) if "all" in artefacts or not artefacts else set(artefacts)
    return [name for name in ARTEFACTS if name in wanted]


def _write(output: Path, artefact: Artefact) -> None:
    for table in artefact.tables:
        _write_text(output / f"{table.name}.csv", csv_text(table))
        _write_text(output / f"{table.name}.tex", latex_text(table))
    for picture in artefact.pictures:
        _write_text(output / f"{picture.name}.svg", picture.svg + "\n")
        with replacing(output / f"{picture.name}.png") as beside:
            beside.write_bytes(picture.png)


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def _stages_csv(stages: Sequence[Stage]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Stage._fields)
    writer.writerows(stages)
    return text.getvalue()
