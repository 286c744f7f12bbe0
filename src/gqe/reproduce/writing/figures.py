"""Figures as SVG and PNG, in the style of `gqe.evaluation.figures`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gqe.evaluation.figures import as_svg, finish_k_sweep, line_style, new_figure
from gqe.reproduce.artefact import Drawing, Picture

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

    def draw() -> Drawing:
        figure, axes = new_figure(8.0, 4.6)
        for place, (row, points) in enumerate(curves.items()):
            # There are fewer colours than methods.
            line = {"linestyle": ":"} if place >= _COLOURS else {}
            axes.plot(list(points), list(points.values()), label=row, **line_style(place) | line)
        finish_k_sweep(axes, curves, baseline, "mean mAP")
        return _finished(figure, axes)

    return Picture(name, "mAP over the number of neighbours, one line a method", draw)


def agreement_and_diversity(name: str, points: Mapping[str, tuple[float, float]]) -> Picture:
    """Each method at its Diversity and Agreement.

    Args:
        name: of its files.
        points: {method: (agreement in [0, 1], diversity in nats)}.
    """

    def draw() -> Drawing:
        figure, axes = new_figure(8.0, 4.0)
        for place, (row, (agreement, diversity)) in enumerate(points.items()):
            axes.plot([diversity], [agreement], label=row, **line_style(place) | {"linestyle": ""})
            axes.annotate(row, (diversity, agreement), xytext=(6, 4), textcoords="offset points", fontsize=8)
        axes.margins(x=0.15)
        axes.set_xlabel("Diversity (nats)")
        axes.set_ylabel("Agreement")
        return _finished(figure, axes)

    return Picture(name, "Agreement against Diversity, one point a method", draw)


def _finished(figure: Figure, axes: Axes) -> Drawing:
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    png = io.BytesIO()
    # Without the version of matplotlib, the same numbers give the same bytes.
    figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    return Drawing(as_svg(figure), png.getvalue())
