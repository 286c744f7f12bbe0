from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gqe.datasets.base import Benchmark
from gqe.evaluation import figures
from gqe.evaluation.ground_truth import as_ground_truth
from gqe.evaluation.report import (
    Example,
    Section,
    Table,
    examples_html,
    figure_html,
    table_html,
    write_report,
)


class Tags(HTMLParser):
    """Counts opening and closing tags and keeps the attributes of pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.pictures: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.pictures.append(dict(attrs))
        elif tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_names_nothing_outside(tmp_path: Path) -> None:
    table = Table(("method", "x", "mAP"), [["a <b>", "", "1.5"], ["c", "", "12.0"]], numbers=(2,))
    svg = figures.k_sweep({"AQE": {1: 50.0, 2: 60.0}}, 40.0, metric="mAP")
    write_report(
        tmp_path / "index.html",
        "A & B",
        "lead",
        [Section("One", "text", table_html(table)), Section("Two", "", figure_html(svg, 'say "mAP"'))],
    )
    page = (tmp_path / "index.html").read_text()
    assert "A &amp; B" in page
    assert "a &lt;b&gt;" in page
    assert 'src="http' not in page
    assert page.count('class="best"') == 1
    assert '<td class="best">12.0</td>' in page


def test_examples_mark_what_is_relevant() -> None:
    data = Benchmark(
        "pictures",
        np.eye(2),
        np.eye(4),
        ([0, 1], [0, 0, 1, 1]),
        picture=lambda kind, index: Image.new("RGB", (8, 8), (index, 0, 0)),
    )
    text = examples_html(
        data, as_ground_truth(data.ground_truth), [Example("it <helped>", 1, [0, 2], [3, 2])]
    )
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    states = [picture["class"] for picture in tags.pictures]
    assert states == ["asked", "other", "relevant", "relevant", "relevant"]
    assert tags.pictures[1]["alt"] == "database 0, not relevant"
    assert "it &lt;helped&gt;" in text


@pytest.mark.parametrize("name", ["AQE", "αQE & <co>"])
def test_figures_name_every_method_and_repeat_exactly(name: str) -> None:
    def draw() -> str:
        return figures.k_sweep({name: {1: 1.0, 4: 2.0}}, 0.5, metric="mAP")

    assert draw() == draw()
    assert name.split(" ")[0] in draw()
    points = figures.agreement_and_diversity({name: (0.9, 1.2)})
    assert points.startswith("<svg")
    assert "Diversity" in points
