"""Figures as SVG and PNG, in the style of `gqe.evaluation.figures`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gqe.evaluation.figures import as_svg, line_style, new_figure
from gqe.reproduce.artefact import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# How many lines differ by their colour alone.
_COLOURS = 8


def k_sweep(name: str, curves: Mapping[str, Mapping[int, float]], baseline: float) -> Picture:
    """The mAP over K, one line a method, no expansion as a dashed line.

    Args:
        name: of its files.
        curves: {method: {K: mAP in percent}}.
        baseline: mAP without expansion.
    """
    figure, axes = new_figure(8.0, 4.6)
    for place, (row, points) in enumerate(curves.items()):
        # There are fewer colours than methods.
        line = {"linestyle": ":"} if place >= _COLOURS else {}
        axes.plot(list(points), list(points.values()), label=row, **line_style(place) | line)
    axes.axhline(baseline, color="#777777", linestyle="--", linewidth=1.2, label="no expansion")
    ks = sorted({k for points in curves.values() for k in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.set_xlabel("neighbours K")
    axes.set_ylabel("mean mAP")
    return _finished(name, "mAP over the number of neighbours, one line a method", figure, axes)


def agreement_and_diversity(name: str, points: Mapping[str, tuple[float, float]]) -> Picture:
    """Each method at its Diversity and Agreement.

    Args:
        name: of its files.
        points: {method: (agreement in [0, 1], diversity in nats)}.
    """
    figure, axes = new_figure(8.0, 4.0)
    for place, (row, (agreement, diversity)) in enumerate(points.items()):
        axes.plot([diversity], [agreement], label=row, **line_style(place) | {"linestyle": ""})
        axes.annotate(row, (diversity, agreement), xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.margins(x=0.15)
    axes.set_xlabel("Diversity (nats)")
    axes.set_ylabel("Agreement")
    return _finished(name, "Agreement against Diversity, one point a method", figure, axes)


def _finished(name: str, description: str, figure: Figure, axes: Axes) -> Picture:
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    png = io.BytesIO()
    # Without the version of matplotlib, the same numbers give the same bytes.
    figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    return Picture(name, description, as_svg(figure), png.getvalue())
