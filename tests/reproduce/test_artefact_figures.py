"""Pictures of repaired queries: which are shown, and how they are framed."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gqe import InputError
from gqe.evaluation.benchmark import Bench
from gqe.methods import parse_method
from gqe.reproduce import reproduce
from gqe.reproduce.artefact import BeforeAfter, PictureResult
from gqe.reproduce.writing import examples_html
from reproduce.worlds import save_models, tiny


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


def test_frames_and_words_tell_right_from_wrong() -> None:
    image = Image.new("RGB", (8, 8))
    before = [
        PictureResult(image, "other"),
        PictureResult(image, "relevant"),
        PictureResult(image, "ignored"),
    ]
    text = examples_html(
        [BeforeAfter("Query <3>", image, (12.5, 60.0), before, [PictureResult(image, "relevant")])]
    )
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert [p["class"] for p in tags.pictures] == ["asked", "other", "relevant", "ignored", "relevant"]
    assert tags.pictures[1]["alt"] == "before, place 1: wrong"
    assert "Query &lt;3&gt;: average precision 12.5 → " in text
    assert ">60.0</span>" in text
    assert "+47.5" in text
    assert text.count("1 right") == 2


def test_the_largest_gains_are_shown_and_the_largest_loss(tmp_path: Path) -> None:
    models = save_models(tmp_path / "models")
    suite = tiny(models, large=False)
    place = suite.tests[0]
    data = replace(place.load(), picture=lambda kind, index: Image.new("RGB", (4, 4), (index, 0, 0)))
    suite.tests[0] = replace(place, load=lambda: data)
    report = reproduce(replace(suite, pictures=True), tmp_path / "out", ["repaired"], device="cpu")
    shown = report.artefacts[0].examples
    bench = Bench(data, device="cpu")
    old = bench.run(parse_method("none")).evaluation.per_query["medium"]
    new = bench.run(parse_method("universal")).evaluation.per_query["medium"]
    gains = [after - before for before, after in (example.scores for example in shown)]
    assert gains[0] == pytest.approx(float(np.max(new - old)), abs=1e-9)
    assert all(gain > 0 for gain in gains[:-1])
    for example in shown:
        query = example.picture.getpixel((0, 0))[0]
        assert example.scores == (pytest.approx(old[query]), pytest.approx(new[query]))
        first = bench.first(parse_method("none"), 8)[query]
        assert [r.picture.getpixel((0, 0))[0] for r in example.before] == first.tolist()
        entry = data.ground_truth["gnd"][query]
        states = dict.fromkeys(entry["easy"] + entry["hard"], "relevant") | dict.fromkeys(
            entry["junk"], "ignored"
        )
        assert [r.state for r in example.before] == [states.get(i, "other") for i in first.tolist()]
    page = Tags()
    page.feed((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))
    assert page.open == []
    assert len(page.pictures) == len(shown) * (1 + 8 + 8)


def test_a_suite_without_pictures(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'repaired' needs pictures, and the suite tiny has none"):
        reproduce(tiny(tmp_path), tmp_path / "out", ["repaired"], device="cpu")
