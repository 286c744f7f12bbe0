"""A grid tried by two Ray nodes gives the choice that one process makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from gqe import cli
from gqe.aggregators import Attention
from gqe.cluster.session import connect
from gqe.cluster.tuning import tune_database_side_on_cluster, tune_on_cluster
from gqe.datasets.base import Benchmark
from gqe.errors import InputError
from gqe.evaluation import tuning
from gqe.evaluation.benchmark import Bench
from gqe.methods import parse_method
from gqe.model_files import Model, save_model

DIM = 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with connect("local", workers=2):
        yield


@pytest.fixture(scope="module")
def benchmark() -> Benchmark:
    rng = np.random.default_rng(5)
    centres, labels = rng.normal(size=(8, DIM)), np.repeat(np.arange(8), 6)
    database = centres[labels] + 0.9 * rng.normal(size=(48, DIM))
    queries = centres + 0.9 * rng.normal(size=(8, DIM))
    # A picture cannot be sent, and nobody asks for one.
    return Benchmark("small", queries, database, (np.arange(8), labels), picture=open)


@pytest.mark.parametrize("text", ["dba-alpha", "aqe:k=4+egt"])
def test_the_same_choice(cluster: None, benchmark: Benchmark, text: str) -> None:
    method, told = parse_method(text), list[int]()
    ours = tune_on_cluster(benchmark, method, progress=lambda done, total, name: told.append(done))
    theirs = tuning.tune(Bench(benchmark, device="cpu"), method)
    assert told == list(range(1, len(theirs) + 1))
    assert [str(outcome.method) for outcome in ours] == [str(outcome.method) for outcome in theirs]
    reached = [[o.evaluation.main for o in outcomes] for outcomes in (ours, theirs)]
    np.testing.assert_allclose(*reached, atol=1e-9)


def test_the_same_database_side_of_a_model(
    cluster: None, benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "TEMPERATURES", (None, 0.2))
    monkeypatch.setattr(tuning, "DATABASE_KS", (2, 4))
    torch.manual_seed(0)
    stack = [Attention(DIM, 4, layers=1, heads=2, feedforward=8) for _ in range(2)]
    save_model(tmp_path / "model", Model(list(stack), "little", {}))
    method = parse_method(str(tmp_path / "model"))
    ours = tune_database_side_on_cluster(benchmark, method)
    theirs = tuning.tune_database_side(Bench(benchmark, device="cpu"), method)
    assert (ours.k, ours.temperatures) == (theirs.k, theirs.temperatures)
    assert [(row["k"], row["temperatures"]) for row in ours.tried] == [
        (row["k"], row["temperatures"]) for row in theirs.tried
    ]
    np.testing.assert_allclose(*([row["map"] for row in side.tried] for side in (ours, theirs)), atol=1e-6)


def test_bad_input_is_one_line(cluster: None, benchmark: Benchmark) -> None:
    with pytest.raises(InputError, match="is a trained model"):
        tune_on_cluster(benchmark, parse_method("universal"))
    with pytest.raises(InputError, match="joined another cluster"):
        tune_on_cluster(benchmark, parse_method("aqe"), cluster="127.0.0.1:1")


def test_the_command_chooses_the_same(
    cluster: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    centres, labels = rng.normal(size=(5, 8)), np.repeat(np.arange(5), 6)
    np.savez(
        tmp_path / "val.npz",
        queries=centres + rng.normal(size=(5, 8)),
        query_labels=np.arange(5),
        database=centres[labels] + rng.normal(size=(30, 8)),
        database_labels=labels,
    )
    told = []
    for more in ([], ["--cluster", "auto"]):
        command = ["gqe", "tune", "aqe", "--val", str(tmp_path / "val.npz"), "--json", *more]
        monkeypatch.setattr("sys.argv", command)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
