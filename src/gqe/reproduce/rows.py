"""The rows of the tables, and which method stands for a row on a benchmark."""

from __future__ import annotations

from typing import NamedTuple

from gqe.evaluation.tuning import Side
from gqe.methods import Method, model_folder, parse_method, parse_methods
from gqe.methods import method as named
from gqe.model_files import load_model
from gqe.reproduce.cells import Cell
from gqe.reproduce.measuring import Measurer, Unmeasured
from gqe.reproduce.sides import tuned_side
from gqe.reproduce.suite import Place

UNIVERSAL = "universal"


class Row(NamedTuple):
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


class Filled(NamedTuple):
    """A row of numbers.

    Attributes:
        row: which one.
        cells: by the name of the benchmark; None where the method cannot be had there.
        settings: what was chosen.
        missing: why cells are missing that could be had elsewhere.
    """

    row: Row
    cells: dict[str, Cell | None]
    settings: str
    missing: str = ""


def fill(measurer: Measurer, row: Row, places: list[Place], *, on_test: bool = False) -> Filled:
    """Measure a row on the given benchmarks, with settings from validation or from the tests themselves."""
    measurer.start_row(row.title)
    cells: dict[str, Cell | None] = {}
    settings: dict[str, None] = {}
    missing: dict[str, None] = {}
    for place in places:
        cells[place.name] = None
        try:
            choice = choose(measurer, row, place, on_test=on_test)
            if choice is None or (choice.method.then is not None and measurer.streamed(place)):
                continue  # walking over a graph of a million items needs all of it
            cells[place.name] = measurer.measure(place, choice.method, side=choice.side)
        except Unmeasured as reason:
            missing[str(reason)] = None
            continue
        if choice.settings and not row.change:
            settings[choice.settings] = None
    return Filled(row, cells, "; ".join(settings), ", ".join(missing))


def missing_rows(filled: list[Filled]) -> list[str]:
    """Why rows are without numbers, in sentences."""
    sentences = []
    for row in filled:
        if row.missing:
            sentences.append(f"{row.row.title}: {row.missing}.")
        elif row.row.model and not any(row.cells.values()):
            sentences.append(f"{row.row.title}: no such model here.")
    return sentences


def choose(measurer: Measurer, row: Row, place: Place, *, on_test: bool = False) -> Choice | None:
    """The method of a row in the space of a benchmark."""
    if row.grid:
        grid = parse_methods(measurer.suite.grids[row.grid])
        if on_test:
            return Choice(best_on_tests(measurer, grid, place.space))
        return Choice(best_on_validation(measurer, grid, place.space))
    if row.same_k:
        return Choice(parse_method(f"{row.same_k}:k={model_k(measurer, place.space)}"))
    name = _model(measurer, row.model, place.space)
    if name is None:
        return None
    switched = {row.change: 1} if row.change else {}
    method = named(f"dba-{name}" if row.dba else name, **switched)
    tuned = row.dba and not row.change and row.model != UNIVERSAL
    return Choice(method, database_side(measurer, method, place.space) if tuned else None)


def model_k(measurer: Measurer, space: str) -> int:
    """K of the space's GQE, or of the universal model where there is none."""
    name = _model(measurer, "gqe", space) or UNIVERSAL
    return max(level.k for level in named(name).stack())


def best_on_validation(measurer: Measurer, grid: list[Method], space: str) -> Method:
    """The first of those with the highest mAP (Medium) on the validation data of a space."""
    if len(grid) == 1:
        return grid[0]
    place = measurer.suite.validation[space]
    return max(grid, key=lambda method: measurer.measure(place, method).main)


def best_on_tests(measurer: Measurer, grid: list[Method], space: str) -> Method:
    """The one with the highest mean over Medium and Hard of the tests of a space, as the paper tuned."""

    def reached(method: Method) -> float:
        places = measurer.suite.small(space)
        numbers = [n for p in places for n in counted(measurer.measure(p, method)).values()]
        return sum(numbers) / max(len(numbers), 1)

    return max(grid, key=reached) if len(grid) > 1 else grid[0]


def counted(cell: Cell) -> dict[str, float]:
    """The scores that stand in tables: Medium and Hard, or the mAP by labels."""
    return {name: cell.scores[name] for name in protocols(cell)}


def protocols(cell: Cell) -> tuple[str, ...]:
    """Medium and hard, or map."""
    return ("medium", "hard") if "medium" in cell.scores else ("map",)


def database_side(measurer: Measurer, method: Method, space: str) -> Side | None:
    """K and temperatures for augmenting by a model: as stored with it, or chosen on validation data."""
    folder = model_folder(method.name)
    stored = None if folder is None else load_model(folder).about.get("dba")
    if stored:
        return Side(int(stored["k"]), tuple(stored["temperatures"]))
    if not measurer.suite.settings.get("tune_database_side", True):
        return None
    return tuned_side(measurer, measurer.suite.validation[space], method)


def _model(measurer: Measurer, name: str, space: str) -> str | None:
    if name == UNIVERSAL:
        return UNIVERSAL
    folder = measurer.suite.model(space, name)
    return None if folder is None else str(folder)
