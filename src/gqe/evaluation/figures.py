"""Figures of a comparison, as SVG text that stands inside a page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gqe.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# One colour and marker per method in every figure: Okabe and Ito's palette for colour-blind readers and two
# more.
_STYLES = {
    "AQE": ("#0072B2", "o"),
    "AQEwD": ("#56B4E9", "s"),
    "DQE": ("#8C6D31", "X"),
    "αQE": ("#009E73", "^"),
    "AQE-G": ("#4B3F9E", "P"),
    "αQE-G": ("#7A8B00", "v"),
    "LAttQE": ("#E69F00", "D"),
    "GQE": ("#D55E00", "h"),
    "universal": ("#CC79A7", "*"),
}
_KNOWN = {name.lower(): style for name, style in _STYLES.items()}


def k_sweep(curves: Mapping[str, Mapping[int, float]], baseline: float, *, metric: str) -> str:
    """MAP over the number of neighbours K, one line per method, no expansion as a dashed line.

    Args:
        curves: {method: {K: mAP in percent}}.
        baseline: mAP without expansion.
        metric: what the vertical axis shows.
    """
    figure, axes = new_figure(4.5, 4.4)
    for place, (name, points) in enumerate(curves.items()):
        axes.plot(list(points), list(points.values()), label=name, **line_style(name, place))
    finish_k_sweep(axes, curves, baseline, metric)
    legend_below(figure)
    return as_svg(figure)


def finish_k_sweep(
    axes: Axes, curves: Mapping[str, Mapping[int, float]], baseline: float, metric: str
) -> None:
    """The line of no expansion and the axes of a sweep over K."""
    axes.axhline(baseline, color="#777777", linestyle="--", linewidth=1.2, label="no expansion")
    ks = sorted({k for points in curves.values() for k in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.set_xlabel("neighbours K")
    axes.set_ylabel(metric)


def agreement_and_diversity(points: Mapping[str, tuple[float, float]]) -> str:
    """Each method at its Agreement (share of weight on relevant items) and Diversity (entropy of it).

    Args:
        points: {method: (agreement in [0, 1], diversity in nats)}.
    """
    figure, axes = new_figure(4.5, 4.2)
    for place, (name, (agreement, diversity)) in enumerate(points.items()):
        axes.plot([diversity], [agreement], label=name, **line_style(name, place) | {"linestyle": ""})
    axes.set_xlabel("Diversity (nats)")
    axes.set_ylabel("Agreement")
    legend_below(figure)
    return as_svg(figure)


def quality_and_cost(points: Mapping[str, tuple[float, float]], best: Sequence[str]) -> str:
    """MAP against milliseconds per query (log scale), one point per method; the frontier is numbered.

    Args:
        points: {method: (milliseconds, mAP in percent)}; one colour for each expansion (before a "+").
        best: the methods on the frontier, fastest first.
    """
    figure, axes = new_figure(7.2, 4.6)
    expansions = list(dict.fromkeys(name.partition("+")[0] for name in points))
    for place, expansion in enumerate(expansions):
        own = [point for name, point in points.items() if name.partition("+")[0] == expansion]
        style = line_style(expansion, place) | {"linestyle": "", "label": expansion}
        axes.plot([cost for cost, _ in own], [value for _, value in own], **style)
    axes.step(*zip(*(points[name] for name in best), strict=True), where="post", color="#999999", linewidth=1)
    for number, name in enumerate(best, 1):
        # Names beside the points would lie on each other, so the legend has them.
        beside = (0, 6 if number % 2 else -13)
        axes.annotate(
            str(number), points[name], xytext=beside, textcoords="offset points", ha="center", fontsize=8
        )
        axes.plot([], [], linestyle="", label=f"{number}  {name}")
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds a query")
    axes.set_ylabel("mAP")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return as_svg(figure)


def line_style(method: str, place: int) -> dict[str, Any]:
    """Colour and marker of a method: its own in every figure, or by its place in a list if it has none.

    Example:
        >>> line_style("gqe", 3)["color"]
        '#D55E00'
    """
    others = list(_STYLES.values())
    colour, marker = _KNOWN.get(method.lower(), others[place % len(others)])
    return {"color": colour, "marker": marker, "markersize": 5.5, "linewidth": 1.8}


def legend_below(figure: Figure) -> None:
    """A legend in three columns below the axes, where a phone has room for it."""
    figure.legend(frameon=False, fontsize=10, loc="outside lower center", ncols=3)


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure of a size in inches, and its axes."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("report: matplotlib is not installed; pip install 'gqe[report]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    return figure, axes


def as_svg(figure: Figure) -> str:
    """The same numbers give the same text."""
    import matplotlib

    buffer = io.StringIO()
    # Text stays text (searchable, small), and a fixed salt makes the same figure the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gqe", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
