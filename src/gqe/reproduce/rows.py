"""The rows of the tables: which method stands for a row on a benchmark, and what it reaches there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gqe.evaluation.tuning import DATABASE_KS, TEMPERATURES, Side, best_side
from gqe.methods import Method, model_folder, parse_method, parse_methods
from gqe.methods import method as make_method
from gqe.model_files import load_model
from gqe.reproduce.cells import Cell
from gqe.reproduce.measuring import Measurer, NotMeasured
from gqe.reproduce.suite import BenchmarkEntry

UNIVERSAL = "universal"


class MethodRow(NamedTuple):
    """A row of a table.

    Attributes:
        title: as printed.
        grid: for a hand-crafted method, the key of its settings in `Suite.grids`.
        model: for a model, "lattqe", "gqe", "gqe3" or "universal".
        change: a switch of the model: "untrained" or "collapsed".
        same_k: a method that takes the K of the model, such as "aqe".
        dba: whether the database is augmented.
    """

    title: str
    grid: str = ""
    model: str = ""
    change: str = ""
    same_k: str = ""
    dba: bool = False


class Choice(NamedTuple):
    """A method with all its settings, and those of a model's database side."""

    method: Method
    side: Side | None = None

    @property
    def settings(self) -> str:
        """For a table."""
        return self.method.summary.removeprefix("+ ") if self.side is None else str(self.side)


class RowResult(NamedTuple):
    """A row of numbers.

    Attributes:
        row: which one.
        cells: by the name of the benchmark; None where the method is not available there.
        settings: what was chosen.
        missing: why cells are missing that are available elsewhere.
    """

    row: MethodRow
    cells: dict[str, Cell | None]
    settings: str
    missing: str = ""


def measure_row(
    measurer: Measurer, row: MethodRow, entries: Sequence[BenchmarkEntry], *, on_test: bool = False
) -> RowResult:
    """Measure a row on benchmarks, with settings from validation data or from the tests themselves."""
    measurer.start_row(row.title)
    cells: dict[str, Cell | None] = {}
    settings: dict[str, None] = {}
    missing: dict[str, None] = {}
    for entry in entries:
        cells[entry.name] = None
        try:
            choice = choose_method(measurer, row, entry.space, on_test=on_test)
            if choice is None or (choice.method.reranking is not None and measurer.is_streamed(entry)):
                continue  # a re-ranker reads the graph of all items
            cells[entry.name] = measurer.measure(entry, choice.method, side=choice.side)
        except NotMeasured as reason:
            missing[str(reason)] = None
            continue
        if choice.settings and not row.change:
            settings[choice.settings] = None
    return RowResult(row, cells, "; ".join(settings), ", ".join(missing))


def missing_row_notes(results: Sequence[RowResult]) -> list[str]:
    """Why rows are without numbers, in sentences."""
    sentences = []
    for result in results:
        if result.missing:
            sentences.append(f"{result.row.title}: {result.missing}.")
        elif result.row.model and not any(result.cells.values()):
            sentences.append(f"{result.row.title}: no such model here.")
    return sentences


def choose_method(measurer: Measurer, row: MethodRow, space: str, *, on_test: bool = False) -> Choice | None:
    """The method of a row in a space; None if its model is missing."""
    if row.grid:
        grid = parse_methods(measurer.suite.grids[row.grid])
        return Choice((best_on_tests if on_test else best_on_validation)(measurer, grid, space))
    method = fixed_method(measurer, row, space)
    if method is None:
        return None
    tuned = row.dba and not row.change and row.model != UNIVERSAL
    return Choice(method, database_side(measurer, method, space) if tuned else None)


def fixed_method(measurer: Measurer, row: MethodRow, space: str) -> Method | None:
    """The method of a row without a grid; None if its model is missing."""
    if row.same_k:
        name = _model_name(measurer, "gqe", space) or UNIVERSAL
        k = max(level.k for level in make_method(name).stack())
        return parse_method(f"{row.same_k}:k={k}")
    found = _model_name(measurer, row.model, space)
    if found is None:
        return None
    return make_method(f"dba-{found}" if row.dba else found, **({row.change: 1} if row.change else {}))


def best_on_validation(measurer: Measurer, grid: Sequence[Method], space: str) -> Method:
    """The first of those with the highest mAP (Medium) on the validation data of a space."""
    if len(grid) == 1:
        return grid[0]
    entry = measurer.suite.validation[space]
    return max(grid, key=lambda method: measurer.measure(entry, method).main)


def best_on_tests(measurer: Measurer, grid: Sequence[Method], space: str) -> Method:
    """The one with the highest mean over Medium and Hard of the tests of a space, as the paper tuned."""
    return max(grid, key=lambda method: mean_on_tests(measurer, method, space)) if len(grid) > 1 else grid[0]


def mean_on_tests(measurer: Measurer, method: Method, space: str) -> float:
    """The mean over Medium and Hard (or mAP by labels) of the small tests of a space."""
    cells = [measurer.measure(entry, method) for entry in measurer.suite.small(space)]
    numbers = [cell.scores[protocol] for cell in cells for protocol in protocols(cell)]
    return sum(numbers) / max(len(numbers), 1)


def protocols(cell: Cell) -> tuple[str, ...]:
    """The scores that stand in tables: medium and hard, or the mAP by labels."""
    return ("medium", "hard") if "medium" in cell.scores else ("map",)


def database_side(measurer: Measurer, method: Method, space: str) -> Side | None:
    """K and temperatures for augmenting by a model: as stored with it, or chosen on validation data."""
    folder = model_folder(method.name)
    stored = None if folder is None else load_model(folder).about.get("dba")
    if stored:
        return Side(int(stored["k"]), tuple(stored["temperatures"]))
    settings, entry = measurer.suite.settings, measurer.suite.validation[space]
    if not settings.get("tune_database_side", True):
        return None
    return best_side(
        method.stack(),
        lambda side: measurer.measure(entry, method, side=side).main,
        ks=settings.get("database_ks", DATABASE_KS),
        temperatures=settings.get("temperatures", TEMPERATURES),
    )


def _model_name(measurer: Measurer, name: str, space: str) -> str | None:
    if name == UNIVERSAL:
        return UNIVERSAL
    folder = measurer.suite.model(space, name)
    return None if folder is None else str(folder)
