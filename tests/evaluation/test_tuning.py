from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gqe import InputError
from gqe.aggregators import Alpha, Attention, Svm
from gqe.aggregators.base import TUNING_K
from gqe.datasets.base import Benchmark
from gqe.evaluation import tuning
from gqe.evaluation.benchmark import Bench
from gqe.methods import parse_method
from gqe.model_files import Model, load_model, save_model
from gqe.rerank import RERANKERS


@pytest.fixture
def bench() -> Bench:
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(8, 12))
    labels = np.repeat(np.arange(8), 6)
    database = centres[labels] + 0.9 * rng.normal(size=(48, 12))
    return Bench(
        Benchmark("small", centres + 0.9 * rng.normal(size=(8, 12)), database, (np.arange(8), labels))
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    stack = [Attention(dim=12, k=6, layers=1, heads=2, feedforward=16) for _ in range(2)]
    save_model(tmp_path / "model", Model(list(stack), "little", {"note": "kept"}))
    return tmp_path / "model"


def test_the_best_of_the_grid_comes_first(bench: Bench) -> None:
    outcomes = tuning.tune(bench, parse_method("alpha"))
    assert len(outcomes) == len(TUNING_K) * len(Alpha.tuning_grid["alpha"])
    scores = [outcome.evaluation.main for outcome in outcomes]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == max(
        bench.run(method).evaluation.main for method in tuning.grid(parse_method("alpha"))
    )


def test_the_best_contrast_is_that_of_the_highest_mean(model: Path) -> None:
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(20, 12))
    labels = np.repeat(np.arange(20), 15)
    database = centres[labels] + 0.9 * rng.normal(size=(300, 12)) + 1
    queries = centres + 0.9 * rng.normal(size=(20, 12)) + 1
    halves = [
        Bench(Benchmark("half", queries[part], database, (np.arange(20)[part], labels)))
        for part in (slice(10), slice(10, 20))
    ]
    best, reached = tuning.best_contrast(halves, load_model(model).stack)
    expected = {
        contrast: np.mean(
            [
                b.run(parse_method(f"{side}{model}:contrast={contrast}")).evaluation.main
                for b in halves
                for side in ("", "dba-")
            ]
        )
        for contrast in tuning.CONTRASTS
    }
    assert reached == pytest.approx(expected)
    assert best == max(expected, key=expected.__getitem__)
    assert best > 0  # all share a direction that tells nothing


def test_settings_that_are_not_tuned_stay(bench: Bench) -> None:
    assert {m.settings["levels"] for m in tuning.grid(parse_method("aqe-g:levels=3"))} == {3}
    assert all(m.dba for m in tuning.grid(parse_method("dba-aqe")))
    assert {m.settings["k"] for m in tuning.grid(parse_method("dqe"))} == set(Svm.tuning_grid["k"])


def test_the_database_side_is_at_least_as_good_as_before(bench: Bench, model: Path, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "TEMPERATURES", (None, 0.1, 1.0))
    monkeypatch.setattr(tuning, "DATABASE_KS", (2, 4))
    method = parse_method(f"dba-{model}")
    before = bench.run(method).evaluation.main
    side = tuning.tune_database_side(bench, parse_method(str(model)))
    assert side.map >= before
    assert {"k": 6, "temperatures": [None, None], "map": before} in side.tried
    # Stored with the model, it is what dba- uses from then on.
    saved = load_model(model)
    dba = {"k": side.k, "temperatures": side.temperatures}
    save_model(model, saved._replace(about=saved.about | {"dba": dba}))
    method = parse_method(f"dba-{model}")
    assert bench.run(method).evaluation.main == pytest.approx(side.map)
    assert [level.k for level in method.stack()] == [6, 6]
    assert [level.k for level in method.database_stack(method.stack())] == [side.k] * 2
    # Asked for settings of one's own, the tuned ones stand back.
    own = parse_method(f"dba-{model}:k=3")
    assert [level.k for level in own.database_stack(own.stack())] == [3, 3]


def test_no_k_is_tried_that_the_model_has_no_positions_for() -> None:
    stack = [Attention(8, k, layers=1, heads=2, feedforward=8) for k in (6, 4)]
    asked: list[tuning.Side] = []

    def reached(side: tuning.Side) -> float:
        asked.append(side)
        return -abs(side.k - 3) + (side.temperatures[1] == 0.5)

    best = tuning.best_side(stack, reached, ks=(2, 3, 4, 5, 48), temperatures=(None, 0.5))
    assert best == tuning.Side(3, (None, 0.5))
    assert {side.k for side in asked} == {2, 3, 4}


def test_the_grid_is_for_hand_crafted_methods(model: Path) -> None:
    with pytest.raises(InputError, match="trained model"):
        tuning.grid(parse_method(str(model)))


def test_of_a_re_ranker_its_own_settings_are_tried(bench: Bench) -> None:
    tried = tuning.grid(parse_method("dba-aqe:k=3+reciprocal"))
    values = RERANKERS["reciprocal"].tuning_grid
    assert len({str(method) for method in tried}) == len(tried) == np.prod([len(v) for v in values.values()])
    assert all(method.dba and method.settings["k"] == 3 for method in tried)
    outcomes = tuning.tune(bench, parse_method("aqe:k=3+superglobal"))
    assert outcomes[0].evaluation.main >= bench.run(parse_method("aqe:k=3+superglobal")).evaluation.main


@pytest.mark.parametrize("name", RERANKERS)
def test_all_that_is_tried_makes_sense(name: str) -> None:
    for method in tuning.grid(parse_method(name)):
        assert method.reranking is not None
        method.reranking.make()
