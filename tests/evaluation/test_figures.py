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
