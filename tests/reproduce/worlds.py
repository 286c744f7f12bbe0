"""Tiny suites of planted clusters; run as a script it makes a report, to be killed on the way."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

from gqe.aggregators import Attention
from gqe.datasets.base import Benchmark
from gqe.model_files import Model, save_model
from gqe.reproduce import BenchmarkEntry, Suite

DIM, CLASSES = 16, 6
GRIDS = {
    "none": "none",
    "AQE": "aqe:k=2/4",
    "AQEwD": "aqewd:k=3",
    "DQE": "dqe:k=20:positives=3:negatives=3",
    "αQE": "alpha:k=4:alpha=1/3",
    "EGT": "egt:k=5",
    "AQE-G": "aqe-g:k=2",
    "αQE-G": "alpha-g:k=3:alpha=1/3",
    "DBA + AQE": "dba-aqe:k=2/4",
    "DBA + AQEwD": "dba-aqewd:k=3",
    "DBA + DQE": "dba-dqe:k=20:positives=3:negatives=3",
    "DBA + αQE": "dba-alpha:k=4:alpha=3",
}


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def planted(name: str, seed: int, *, n: int = 60, distractors: int = 0) -> Benchmark:
    """Clusters with easy, hard and junk items, and perhaps distractors behind them."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, DIM))
    labels = np.arange(n) % CLASSES
    database = unit(centres[labels] + 0.9 * rng.normal(size=(n, DIM)))
    queries = unit(centres + 0.9 * rng.normal(size=(CLASSES, DIM)))
    truth = []
    for query in range(CLASSES):
        easy, hard, junk = np.array_split(np.flatnonzero(labels == query), 3)
        truth.append({"easy": easy.tolist(), "hard": hard.tolist(), "junk": junk.tolist()})
    names = [str(row) for row in range(n)]
    if distractors:
        database = np.concatenate([database, unit(rng.normal(size=(distractors, DIM)))])
    return Benchmark(name, queries, database, {"gnd": truth, "imlist": names})


def save_models(folder: Path, seed: int = 0) -> Path:
    for name, levels in (("lattqe", 1), ("gqe", 2), ("gqe3", 3)):
        torch.manual_seed(seed + levels)
        stack = [Attention(DIM, 6, heads=2, feedforward=16, layers=1, positions=8) for _ in range(levels)]
        save_model(folder / name, Model(stack, name, {}))
    return folder


def tiny(models: Path, *, seed: int = 0, paper: str = "same", large: bool = True) -> Suite:
    """Named as the paper's benchmarks, so that its numbers stand beside."""
    tests = []
    for at, (name, title) in enumerate((("roxford5k", "ROxf"), ("rparis6k", "RPar"))):
        tests.append(BenchmarkEntry(name, title, "tiny", partial(planted, name, seed + at)))
        if large:
            load = partial(planted, f"{name}+r1m", seed + at, distractors=40)
            tests.append(BenchmarkEntry(f"{name}+r1m", f"{title}+R1M", "tiny", load, large=True))

    def model(name: str) -> Path | None:
        return models / name if (models / name / "config.json").is_file() else None

    return Suite(
        name="tiny",
        title="Tiny",
        about="Planted clusters.",
        tests=tests,
        validation={"tiny": BenchmarkEntry("val", "val", "tiny", partial(planted, "val", seed + 50))},
        models={"tiny": model},
        main_space="tiny",
        paper=paper,
        grids=GRIDS,
        sweep=(4, 16),
        settings={"database_ks": (2, 4), "temperatures": (None, 0.2)},
    )


if __name__ == "__main__":
    from gqe.reproduce import reproduce

    reproduce(tiny(Path(sys.argv[1])), Path(sys.argv[2]), device="cpu")
