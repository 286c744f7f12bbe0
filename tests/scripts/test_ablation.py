"""Rules are switched off for a while, cells are those of the library, and a stopped run continues."""

from __future__ import annotations

from pathlib import Path

import ablation
import numpy as np
import pytest

from gqe import statistics
from gqe.datasets import Benchmark
from gqe.evaluation.benchmark import Bench
from gqe.methods import parse_method


@pytest.fixture
def space() -> Benchmark:
    rng = np.random.default_rng(0)
    centres, labels = rng.normal(size=(20, 16)), np.repeat(np.arange(20), 16)
    vectors = centres[labels] + 0.8 * rng.normal(size=(len(labels), 16))
    truth = {"query_labels": labels[::16], "database_labels": np.delete(labels, np.s_[::16])}
    return Benchmark("points", vectors[::16], np.delete(vectors, np.s_[::16], axis=0), truth)


def test_constants_are_replaced_and_put_back() -> None:
    before = statistics._SEPARATED
    with ablation.Rule({"statistics._SEPARATED": 7.0}).applied():
        assert statistics._SEPARATED == 7.0
    assert before == statistics._SEPARATED


@pytest.mark.parametrize("title", ablation.RULES)
def test_every_rule_names_constants_and_parameters_that_exist(title: str) -> None:
    rule = ablation.RULES[title]
    with rule.applied():
        assert rule.stack()


@pytest.mark.parametrize(
    ("title", "method"),
    [
        ("no expansion", "none"),
        (ablation.SHIPPED, "universal"),
        ("contrast 0", "universal:contrast=0"),
        ("`weight` 1", "jaccard:weight=1"),
    ],
)
def test_a_cell_is_what_the_library_reaches(space: Benchmark, title: str, method: str) -> None:
    bench = Bench(space, device="cpu")
    expected = [bench.run(parse_method(side + method)).evaluation.main for side in ("", "dba-")]
    assert ablation._Space(space).judge(ablation.RULES[title]) == pytest.approx(expected, abs=1e-3)


def test_known_cells_are_not_measured_again(
    space: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {title: ablation.RULES[title] for title in ("no expansion", ablation.SHIPPED)}
    monkeypatch.setattr(ablation, "RULES", rules)
    monkeypatch.setattr(ablation, "open_space", lambda name, folder: space)
    first = ablation.measure("points", tmp_path, tmp_path / "points.json")
    monkeypatch.setattr(ablation, "open_space", None)
    assert ablation.measure("points", tmp_path, tmp_path / "points.json") == first


def test_tables_tell_which_rules_are_idle_and_which_harm() -> None:
    cells = {title: [50.0, 60.0] for title in ablation.RULES}
    cells["contrast 0"] = [50.5, 60.5]
    cells["contrast 0.6"] = [49.0, 62.0]
    lines = ablation.report({"signs": cells, "text-val": cells})
    assert "| contrast 0 | +0.50 | +0.50 | +0.50 |" in lines
    idle, harmful = [line for line in lines if line.startswith(("Within", "Better"))][:2]
    assert "contrast 0.2" in idle
    assert "contrast 0.6" not in idle
    assert harmful == "Better on the mean, nowhere worse by more than 0.3: contrast 0."
