"""The mAP over the number of neighbours, for every method."""

from __future__ import annotations

from gqe.methods import Method, parse_method, parse_methods
from gqe.methods import method as named
from gqe.reproduce.artefact import Artefact
from gqe.reproduce.measuring import Measurer, Unmeasured
from gqe.reproduce.rows import UNIVERSAL, best_on_validation, counted
from gqe.reproduce.tables import Line, Table
from gqe.reproduce.writing.figures import k_sweep

# For DQE, K is the number of positive examples; its list stays long.
_HAND_CRAFTED = {
    "AQE": "aqe",
    "AQEwD": "aqewd",
    "DQE": "dqe",
    "αQE": "αQE",
    "AQE-G": "aqe-g",
    "αQE-G": "αQE-G",
}
_MODELS = {"LAttQE": "lattqe", "GQE": "gqe", "universal": UNIVERSAL}


def rows(measurer: Measurer) -> int:
    """How many curves will be measured."""
    return len(_HAND_CRAFTED) + len(_MODELS) + 1


def make(measurer: Measurer) -> Artefact:
    """Measure and draw it."""
    suite = measurer.suite
    methods: dict[str, Method] = {}
    curves: dict[str, dict[int, float]] = {}
    missing = []
    for row in (*_HAND_CRAFTED, *_MODELS):
        measurer.start_row(row)
        try:
            method = _method(measurer, row)
            if method is None:
                continue
            fitting = [k for k in suite.sweep if _fits(method, k)]
            curves[row] = {k: _reached(measurer, _with_k(method, k)) for k in fitting}
            methods[row] = method
        except Unmeasured as reason:
            missing.append(f"{row}: {reason}.")
    measurer.start_row("none")
    places = suite.small(suite.main_space)
    baseline = _reached(measurer, parse_method("none"))
    where = ", ".join(place.title for place in places)
    lines = [
        Line(row, _alpha(methods[row]), [points.get(k) for k in suite.sweep], [None] * len(suite.sweep))
        for row, points in curves.items()
    ]
    heads = [f"K {k}" for k in suite.sweep]
    notes = [
        "A dash where a model has no positions for so many neighbours.",
        f"No expansion: {baseline:.1f}.",
        *missing,
    ]
    best = {row: max(points, key=lambda k: points[k]) for row, points in curves.items() if points}
    findings = [
        f"{row}: best at K {k} ({curves[row][k]:.1f}), {curves[row][max(curves[row])]:.1f} at K"
        f" {max(curves[row])}."
        for row, k in best.items()
    ]
    return Artefact(
        "k-sweep",
        "How many neighbours",
        f"Mean mAP over the columns of {where} as the number of neighbours K grows. AQE-G and αQE-G are AQE"
        " and αQE on two levels of the neighbour graph; α was chosen on validation data.",
        [Table("k-sweep", "mAP over K", heads, {"QE": lines}, "", notes)],
        [k_sweep("k-sweep", curves, baseline)],
        findings,
    )


def _method(measurer: Measurer, row: str) -> Method | None:
    """The method of a curve, with the α chosen on validation data if it has one; None without a model."""
    if row in _MODELS:
        name = _MODELS[row]
        folder = name if name == UNIVERSAL else measurer.suite.model(measurer.suite.main_space, name)
        return None if folder is None else named(str(folder))
    text = _HAND_CRAFTED[row]
    if text in measurer.suite.grids:
        grid = parse_methods(measurer.suite.grids[text])
        return best_on_validation(measurer, grid, measurer.suite.main_space)
    return parse_method(text)


def _with_k(method: Method, k: int) -> Method:
    return method.with_settings(**{"positives" if method.name == "dqe" else "k": k})


def _fits(method: Method, k: int) -> bool:
    return bool(k <= method.stack()[0].settings().get("positions", k))


def _alpha(method: Method) -> str:
    return f"α={method.settings['alpha']}" if "alpha" in method.settings else ""


def _reached(measurer: Measurer, method: Method) -> float:
    places = measurer.suite.small(measurer.suite.main_space)
    numbers = [n for place in places for n in counted(measurer.measure(place, method)).values()]
    return sum(numbers) / len(numbers)
