from __future__ import annotations

import pytest

from gqe.evaluation import figures


@pytest.mark.parametrize("name", ["AQE", "αQE & <co>"])
def test_figures_name_every_method_and_repeat_exactly(name: str) -> None:
    def draw() -> str:
        return figures.k_sweep({name: {1: 1.0, 4: 2.0}}, 0.5, metric="mAP")

    assert draw() == draw()
    assert name.split(" ")[0] in draw()
    points = figures.agreement_and_diversity({name: (0.9, 1.2)})
    assert points.startswith("<svg")
    assert "Diversity" in points


def test_a_method_has_one_colour_whatever_else_is_shown() -> None:
    assert figures.line_style("gqe", 0)["color"] == figures.line_style("GQE", 5)["color"]
    methods = ("AQE", "AQEwD", "DQE", "αQE", "AQE-G", "αQE-G", "LAttQE", "GQE", "universal")
    assert len({figures.line_style(name, 0)["color"] for name in methods}) == len(methods)
    drawn = figures.k_sweep({"none": {1: 1.0, 4: 2.0}, "GQE": {1: 1.0, 4: 2.0}}, 0.5, metric="mAP")
    assert figures.line_style("GQE", 0)["color"].lower() in drawn
