"""One measured cell, and the file that stores all of them: what is there is never measured again."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

from gqe.errors import InputError
from gqe.formats.atomic import atomic_path

FORMAT = "gqe-reproduce"
VERSION = 1


class Cell(NamedTuple):
    """What one method reached on one benchmark.

    Attributes:
        scores: mAP in percent by protocol: easy, medium and hard, or "map" alone for labels; nan where no
            query counts.
        agreement: mean Agreement if it was measured.
        diversity: mean Diversity if it was measured.
        seconds: how long the whole measurement took, in stopped runs, too.
        peak_bytes: most memory the process held meanwhile; 0 where it is not known.
    """

    scores: dict[str, float]
    agreement: float | None = None
    diversity: float | None = None
    seconds: float = 0.0
    peak_bytes: int = 0

    @property
    def main(self) -> float:
        """The one number to choose by: Medium, or the mAP by labels."""
        return self.scores["medium" if "medium" in self.scores else "map"]


class CellStore:
    """Cells by key, in one JSON file that is replaced as a whole after each of them.

    Args:
        path: the file, written with the first cell.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._cells: dict[str, dict[str, Any]] = {}
        if self.path.is_file():
            self._cells = _read(self.path)
        self._lines = {key: f"{_json(key)}: {_json(cell)}" for key, cell in self._cells.items()}

    def get(self, key: str) -> Cell | None:
        """The cell of a key, or None if it was not measured yet."""
        if key not in self._cells:
            return None
        try:
            stored = self._cells[key]
            scores = stored["scores"].items()
            numbers = {name: math.nan if value is None else float(value) for name, value in scores}
            return Cell(**stored | {"scores": numbers})
        except (TypeError, KeyError, ValueError, AttributeError):
            raise InputError(
                f"{self.path}: the cell {key!r} is damaged; remove the file to measure anew"
            ) from None

    def put(self, key: str, cell: Cell) -> None:
        """Store a cell; it is on the disk when this returns."""
        scores = {name: None if math.isnan(value) else value for name, value in cell.scores.items()}
        self._cells[key] = cell._replace(scores={})._asdict() | {"scores": scores}
        # One line per cell, which stays readable and is written far faster than an indented whole.
        self._lines[key] = f"{_json(key)}: {_json(self._cells[key])}"
        lines = ",\n".join(self._lines.values())
        head = f'{{"format": {_json(FORMAT)}, "version": {VERSION}, "cells": {{'
        with atomic_path(self.path) as beside:
            beside.write_text(f"{head}\n{lines}\n}}}}\n", encoding="utf-8")

    def __len__(self) -> int:
        return len(self._cells)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"{path}: not readable as JSON ({error}); remove it to measure anew") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path}: not the results of gqe reproduce; choose another --output")
    if content.get("version") != VERSION or not isinstance(content.get("cells"), dict):
        raise InputError(f"{path}: version {content.get('version')}, this package reads {VERSION}; remove it")
    return dict(content["cells"])
