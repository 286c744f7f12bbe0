"""The figures of the paper, and queries that GQE repaired as pictures."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gqe.datasets.base import Benchmark
from gqe.evaluation.benchmark import Bench, MethodResult
from gqe.evaluation.figures import as_svg, finish_k_sweep, legend_below, line_style, new_figure
from gqe.evaluation.ground_truth import GroundTruth
from gqe.methods import Method, parse_method, parse_methods
from gqe.reproduce.artefact import (
    Artefact,
    BeforeAfter,
    Chart,
    Drawing,
    PictureResult,
    ResultTable,
    TableRow,
)
from gqe.reproduce.measuring import Measurer, NotMeasured
from gqe.reproduce.rows import (
    UNIVERSAL,
    MethodRow,
    best_on_validation,
    choose_method,
    fixed_method,
    mean_on_tests,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MODELS = [
    MethodRow("LAttQE", model="lattqe"),
    MethodRow("GQE", model="gqe"),
    MethodRow("universal", model=UNIVERSAL),
]
# For DQE, K is the number of positive examples; its list stays long.
_SWEEP_METHODS = {
    "AQE": "aqe",
    "AQEwD": "aqewd",
    "DQE": "dqe",
    "αQE": "αQE",
    "AQE-G": "aqe-g",
    "αQE-G": "αQE-G",
}
K_SWEEP = [*(MethodRow(title, grid=method) for title, method in _SWEEP_METHODS.items()), *_MODELS]
AGREEMENT_DIVERSITY = [
    *(MethodRow(name, grid=name) for name in ("AQE", "AQEwD", "αQE", "AQE-G", "αQE-G")),
    *_MODELS,
]
# How many repaired queries are shown, and how many results of each.
_REPAIRED, _RESULTS = 5, 8


def k_sweep(measurer: Measurer) -> Artefact:
    """The mAP over the number of neighbours, for every method."""
    suite = measurer.suite
    space = suite.main_space
    methods: dict[str, Method] = {}
    curves: dict[str, dict[int, float]] = {}
    missing = []
    for row in K_SWEEP:
        measurer.start_row(row.title)
        try:
            method = _sweep_method(measurer, row)
            if method is None:
                continue
            positions = method.stack()[0].settings().get("positions")
            setting = "positives" if method.name == "dqe" else "k"
            curves[row.title] = {
                k: mean_on_tests(measurer, method.with_settings(**{setting: k}), space)
                for k in suite.sweep
                if positions is None or k <= positions
            }
            methods[row.title] = method
        except NotMeasured as reason:
            missing.append(f"{row.title}: {reason}.")
    measurer.start_row("none")
    baseline = mean_on_tests(measurer, parse_method("none"), space)
    rows = []
    for title, points in curves.items():
        alpha = methods[title].settings.get("alpha")
        values = [points.get(k) for k in suite.sweep]
        rows.append(TableRow(title, "" if alpha is None else f"α={alpha}", values, [None] * len(values)))
    notes = [
        "A dash where a model has no positions for so many neighbours.",
        f"No expansion: {baseline:.1f}.",
        *missing,
    ]
    findings = []
    for title, points in curves.items():
        if points:
            best, last = max(points, key=lambda k: points[k]), max(points)
            findings.append(
                f"{title}: best at K {best} ({points[best]:.1f}), {points[last]:.1f} at K {last}."
            )
    where = ", ".join(entry.title for entry in suite.small(space))
    return Artefact(
        "k-sweep",
        "How many neighbours",
        f"Mean mAP over the columns of {where} as the number of neighbours K grows. AQE-G and αQE-G are AQE"
        " and αQE on two levels of the neighbour graph; α was chosen on validation data.",
        [ResultTable("k-sweep", "mAP over K", [f"K {k}" for k in suite.sweep], {"QE": rows}, "", notes)],
        [_k_sweep_chart(curves, baseline)],
        findings,
    )


def _sweep_method(measurer: Measurer, row: MethodRow) -> Method | None:
    """The method of a curve, with the α chosen on validation data if it has one; None without a model."""
    space, grids = measurer.suite.main_space, measurer.suite.grids
    if row.model:
        return fixed_method(measurer, row, space)
    if row.grid in grids:
        return best_on_validation(measurer, parse_methods(grids[row.grid]), space)
    return parse_method(row.grid)


def _k_sweep_chart(curves: Mapping[str, Mapping[int, float]], baseline: float) -> Chart:
    def draw() -> Drawing:
        figure, axes = new_figure(4.5, 4.4)
        for place, (row, points) in enumerate(curves.items()):
            axes.plot(list(points), list(points.values()), label=row, **line_style(row, place))
        finish_k_sweep(axes, curves, baseline, "mean mAP")
        return _drawing(figure)

    return Chart("k-sweep", "mAP over the number of neighbours, one line per method", draw)


def agreement_diversity(measurer: Measurer) -> Artefact:
    """How the expansions of Table 1 spread their weights, on the first benchmark."""
    entry = measurer.suite.small(measurer.suite.main_space)[0]
    points: dict[str, tuple[float, float]] = {}
    rows, notes = [], []
    for row in AGREEMENT_DIVERSITY:
        measurer.start_row(row.title)
        try:
            choice = choose_method(measurer, row, entry.space)
            if choice is None:
                continue
            cell = measurer.measure(entry, choice.method, quality=True)
        except NotMeasured as reason:
            notes.append(f"{row.title}: {reason}.")
            continue
        if cell.agreement is not None and cell.diversity is not None:
            points[row.title] = (cell.agreement, cell.diversity)
            values: list[float | None] = [100 * cell.agreement, cell.diversity, cell.main]
            rows.append(TableRow(row.title, choice.settings, values, [None] * 3))
    findings = ["Not decided: GQE and LAttQE are not both here."]
    if "GQE" in points and "LAttQE" in points:
        verdict = "Holds" if points["GQE"][1] > points["LAttQE"][1] else "Does not hold"
        findings = [f"{verdict}: GQE spreads its weight more widely than LAttQE."]
        for i, name in enumerate(("Agreement", "Diversity")):
            order = sorted(points, key=lambda title: -points[title][i])
            findings.append(f"{name}, highest first: {', '.join(order)}.")
    name, title = "agreement-diversity", "Agreement and Diversity"
    heads = ["Agreement (%)", "Diversity (nats)", "mAP"]
    return Artefact(
        name,
        "How the weights are spread",
        f"On {entry.title}: Agreement is the share of an expansion's weight that lies on relevant items,"
        " Diversity the entropy of that part. Settings are those of Table 1.",
        [ResultTable(name, title, heads, {"QE": rows}, notes=notes)],
        [_agreement_diversity_chart(points)],
        findings,
    )


def _agreement_diversity_chart(points: Mapping[str, tuple[float, float]]) -> Chart:
    def draw() -> Drawing:
        figure, axes = new_figure(4.5, 4.2)
        for place, (row, (agreement, diversity)) in enumerate(points.items()):
            style = line_style(row, place) | {"linestyle": "", "markersize": 9}
            axes.plot([diversity], [agreement], label=row, **style)
        axes.set_xlabel("Diversity (nats)")
        axes.set_ylabel("Agreement")
        return _drawing(figure)

    return Chart("agreement-diversity", "Agreement against Diversity, one point per method", draw)


def _drawing(figure: Figure) -> Drawing:
    legend_below(figure)
    png = io.BytesIO()
    # Without the version of matplotlib, the same numbers give the same bytes.
    figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    return Drawing(as_svg(figure), png.getvalue())


def improved_queries(measurer: Measurer) -> Artefact:
    """Search once more with the universal model; only for a suite whose first benchmark has pictures."""
    entry = measurer.suite.tests[0]
    measurer.start_row("pictures")
    bench = measurer.bench(entry)
    assert isinstance(bench, Bench)  # a suite with pictures is small
    examples, findings = _improved_queries(measurer.data(entry), bench, parse_method(UNIVERSAL))
    return Artefact(
        "repaired",
        "Queries before and after expansion",
        f"The {_REPAIRED} queries of {entry.title} that gained most, and the one that lost most, each with"
        f" its first {_RESULTS} results, before and after expansion by universal. Green frames show the same"
        " landmark, red ones something else; dotted ones show so little of it that they do not count."
        " Average precision in percent.",
        findings=findings,
        examples=examples,
    )


def _improved_queries(data: Benchmark, bench: Bench, method: Method) -> tuple[list[BeforeAfter], list[str]]:
    """The queries of the largest gains and of the largest loss, and how many there were of each."""
    none = parse_method("none")
    old, new = _average_precision(bench.run(none)), _average_precision(bench.run(method))
    gain = np.nan_to_num(new - old)
    order = np.argsort(-gain, kind="stable")
    chosen = [int(query) for query in order[:_REPAIRED] if gain[query] > 0]
    if gain[order[-1]] < 0:
        chosen.append(int(order[-1]))
    before, after = bench.first(none, _RESULTS), bench.first(method, _RESULTS)
    examples = [
        BeforeAfter(
            f"Query {query}",
            _picture(data, "query", query),
            (float(old[query]), float(new[query])),
            _picture_results(data, bench.truth, query, before[query]),
            _picture_results(data, bench.truth, query, after[query]),
        )
        for query in chosen
    ]
    better, worse = int((gain > 0.05).sum()), int((gain < -0.05).sum())
    return examples, [f"Of all {len(gain)} queries {better} are better after expansion and {worse} worse."]


def _picture_results(
    data: Benchmark, truth: GroundTruth, query: int, ids: np.ndarray[Any, Any]
) -> list[PictureResult]:
    n = len(data.database)
    states = dict.fromkeys(truth.ignored(n)[[query]].indices.tolist(), "ignored")
    states |= dict.fromkeys(truth.relevance(n)[[query]].indices.tolist(), "relevant")
    items = [int(item) for item in ids if item >= 0]
    return [PictureResult(_picture(data, "database", item), states.get(item, "other")) for item in items]


def _picture(data: Benchmark, kind: str, index: int) -> Any:
    assert data.picture is not None
    return data.picture(kind, index)


def _average_precision(outcome: MethodResult) -> np.ndarray[Any, Any]:
    per_query = outcome.evaluation.per_query
    return per_query["medium"] if isinstance(per_query, dict) else per_query
