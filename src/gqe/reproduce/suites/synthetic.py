"""Made-up vectors of the paper's full size, to see time and memory before real data is there."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gqe.datasets.base import Benchmark
from gqe.errors import InputError
from gqe.formats.atomic import replacing
from gqe.model_files import Model, save_model
from gqe.reproduce.suite import Place, Suite
from gqe.reproduce.suites.base import DEPTHS, Sources
from gqe.training.presets import Options, make_stack

# As many pictures and queries as Revisited Oxford has.
PICTURES, QUERIES, CLUSTERS = 4993, 70, 110
K = 44
_BLOCK = 8192
# One setting each: this run is about cost.
GRIDS = {
    "none": "none",
    "AQE": "aqe:k=10",
    "AQEwD": "aqewd:k=8",
    "DQE": "dqe",
    "αQE": "alpha",
    "EGT": "egt",
    "AQE-G": "aqe-g",
    "αQE-G": "alpha-g",
    "DBA + AQE": "dba-aqe:k=10",
    "DBA + AQEwD": "dba-aqewd:k=8",
    "DBA + DQE": "dba-dqe:k=100:positives=10:negatives=10",
    "DBA + αQE": "dba-alpha:k=32",
}


def make(sources: Sources) -> Suite:
    """The suite with `sources.dry_run` distractors; vectors and untrained models are made if missing."""
    if sources.dry_run < 1:
        raise InputError("--dry-run: give the number of distractors, such as 1001001")
    folder = sources.output / "scratch" / f"synthetic-{sources.dry_run}-{sources.dim}-{sources.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    _make_vectors(folder, sources.dry_run, sources.dim, sources.seed)
    small = partial(_load, folder, "planted", PICTURES)
    return Suite(
        name="synthetic",
        title=f"A dry run with {sources.dry_run:,} distractors",
        about=f"Made-up vectors of {sources.dim} dimensions: {PICTURES} in planted clusters, and random"
        " ones as distractors. The models have random weights. The numbers mean nothing; time and memory do.",
        tests=[
            Place("planted", "planted", "synthetic", small),
            Place(
                "planted+distractors",
                "with distractors",
                "synthetic",
                partial(_load, folder, "planted+distractors", PICTURES + sources.dry_run),
                large=True,
            ),
        ],
        validation={"synthetic": Place("planted", "planted", "synthetic", small)},
        models={"synthetic": partial(_model, folder, sources.dim)},
        main_space="synthetic",
        grids=GRIDS,
        tuned_on_test=False,
        settings={"tune_database_side": False, "show_cost": True},
    )


def _make_vectors(folder: Path, distractors: int, dim: int, seed: int) -> None:
    """database.npy (float16, mapped) and queries.npy, block by block so that little is held at a time."""
    rng = np.random.default_rng(seed)
    centres = _unit(rng.standard_normal((CLUSTERS, dim), dtype=np.float32))
    labels = np.arange(PICTURES) % CLUSTERS
    asked = np.arange(QUERIES) % CLUSTERS
    # A cosine of about 0.14 between items of a cluster: a few of a million distractors come as near.
    spread = np.float32(2.5 * dim**-0.5)

    def around(chosen: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        noise = rng.standard_normal((len(chosen), dim), dtype=np.float32) * spread
        return _unit(centres[chosen] + noise).astype(np.float16)

    queries = around(asked)
    if (folder / "database.npy").is_file():
        return
    np.save(folder / "queries.npy", queries)
    with replacing(folder / "database.npy") as beside:
        shape = (PICTURES + distractors, dim)
        table = np.lib.format.open_memmap(beside, mode="w+", dtype=np.float16, shape=shape)
        table[:PICTURES] = around(labels)
        for start in range(PICTURES, len(table), _BLOCK):
            rows = min(_BLOCK, len(table) - start)
            table[start : start + rows] = _unit(rng.standard_normal((rows, dim), dtype=np.float32))
        table.flush()
        del table


def _load(folder: Path, name: str, count: int) -> Benchmark:
    database = np.load(folder / "database.npy", mmap_mode="r")[:count]
    labels = np.arange(PICTURES) % CLUSTERS
    truth = []
    for query in range(QUERIES):
        own = np.flatnonzero(labels == query % CLUSTERS)
        easy, hard, junk = np.array_split(own, 3)
        truth.append({"easy": easy.tolist(), "hard": hard.tolist(), "junk": junk.tolist()})
    names = [str(number) for number in range(count)]
    return Benchmark(name, np.load(folder / "queries.npy"), database, {"gnd": truth, "imlist": names})


def _model(folder: Path, dim: int, name: str) -> Path | None:
    if name == "gqe3":
        return None
    place = folder / "models" / name
    if not (place / "config.json").is_file():
        torch.manual_seed(DEPTHS[name])
        stack = make_stack(Options(preset="paper", levels=DEPTHS[name], k=K), dim)
        save_model(place, Model(stack, name, {}))
    return place


def _unit(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result: np.ndarray[Any, Any] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return result
