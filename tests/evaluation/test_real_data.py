"""`evaluate` on real embeddings, where the plain search is known to stand."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from gqe.evaluation import evaluate

BENCHMARKS = Path(__file__).resolve().parents[3] / "shared" / "benchmarks"


def benchmark_file(name: str) -> Path:
    path = BENCHMARKS / name
    if not path.exists():
        pytest.skip(f"real data is absent: {path}")
    return path


def test_revisited_oxford_without_expansion():
    gnd = pickle.loads(benchmark_file("roxford5k/gnd_roxford5k.pkl").read_bytes())
    raw = np.fromfile(benchmark_file("roxford5k/oxford_features.fvecs"), dtype=np.float32)
    rows = raw.reshape(-1, int(raw[:1].view(np.int32)[0]) + 1)[:, 1:]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    row_of = {name: i for i, name in enumerate(sorted(gnd["imlist"] + gnd["qimlist"]))}
    database = rows[[row_of[name] for name in gnd["imlist"]]]
    queries = rows[[row_of[name] for name in gnd["qimlist"]]]
    scores = queries @ database.T

    result = evaluate(scores, gnd)
    assert result.map == pytest.approx({"easy": 28.9, "medium": 21.1, "hard": 4.6}, abs=0.05)
    assert result.queries == {"easy": 68, "medium": 70, "hard": 70}
    assert evaluate(np.argsort(-scores, axis=1, kind="stable"), gnd).to_dict() == result.to_dict()
    rng = np.random.default_rng(0)
    assert evaluate(rng.random(scores.shape), gnd).main < 3


@pytest.mark.parametrize(("name", "expected"), [("image/val.npz", 62.2), ("text/val.npz", 85.5)])
def test_labelled_benchmarks_without_expansion(name, expected):
    with np.load(benchmark_file(name)) as file:
        queries, database = file["queries"].astype(np.float32), file["database"].astype(np.float32)
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        database /= np.linalg.norm(database, axis=1, keepdims=True)
        assert evaluate(queries @ database.T, file).map == pytest.approx(expected, abs=0.1)
