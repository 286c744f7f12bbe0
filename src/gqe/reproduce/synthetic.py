"""Made-up vectors of the paper's full size, to see time and memory before real data is there."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gqe.datasets.base import Benchmark
from gqe.errors import InputError
from gqe.formats.atomic import atomic_path
from gqe.model_files import Model, save_model
from gqe.reproduce.suite import DEPTHS, BenchmarkEntry, Sources, Suite
from gqe.training.presets import PresetOptions, make_stack

# As many pictures and queries as Revisited Oxford has.
PICTURES, QUERIES, CLUSTERS = 4993, 70, 110
K = 44
_BLOCK = 8192
# Views of a thing, things of a group, and how far they lie from its middle; see `SyntheticWorld`.
_INNER, _VIEWS, _THINGS = 256, 20, 50
_THING, _VIEW, _NOISE = 0.7, 0.9, 0.5
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
    "DBA + DQE": "dba-dqe:k=40:positives=10:negatives=10",
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
        about=f"Made-up vectors of {sources.dim} dimensions, in groups as those of pictures are:"
        f" {PICTURES} of things that are searched for, and distractors of other things. The models have"
        " random weights. The numbers mean nothing; time and memory do.",
        tests=[
            BenchmarkEntry("planted", "planted", "synthetic", small),
            BenchmarkEntry(
                "planted+distractors",
                "with distractors",
                "synthetic",
                partial(_load, folder, "planted+distractors", PICTURES + sources.dry_run),
                large=True,
            ),
        ],
        validation={"synthetic": BenchmarkEntry("planted", "planted", "synthetic", small)},
        models={"synthetic": partial(_model, folder, sources.dim)},
        main_space="synthetic",
        grids=GRIDS,
        tuned_on_test=False,
        settings={"tune_database_side": False, "show_cost": True},
    )


def _make_vectors(folder: Path, distractors: int, dim: int, seed: int) -> None:
    """database.npy (float16, mapped) and queries.npy, block by block so that little is held at a time."""
    if (folder / "database.npy").is_file():
        return
    world = SyntheticWorld(distractors, dim, seed)
    np.save(folder / "queries.npy", world.vectors(np.arange(QUERIES) % CLUSTERS, 0))
    with atomic_path(folder / "database.npy") as beside:
        shape = (PICTURES + distractors, dim)
        table = np.lib.format.open_memmap(beside, mode="w+", dtype=np.float16, shape=shape)

        def fill(block: int) -> None:
            part = slice(block * _BLOCK, (block + 1) * _BLOCK)
            table[part] = world.vectors(world.things[part], block + 1)

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # NumPy draws without the lock of Python
            list(pool.map(fill, range(-(-len(table) // _BLOCK))))
        table.flush()


class SyntheticWorld:
    """Vectors that lie as descriptors of pictures do: things in groups, along few directions, and noise.

    A vector is a group, a thing of the group and a view of the thing, each a point in a space of few
    dimensions of falling spread, and a little of everything else.

    Args:
        distractors: how many.
        dim: of the vectors.
        seed: the same one gives the same vectors, whatever the size of a block.
    """

    def __init__(self, distractors: int, dim: int, seed: int) -> None:
        self._seed, self._dim = seed, dim
        rng = np.random.default_rng(seed)
        inner = min(_INNER, dim)
        count = CLUSTERS + max(1, distractors // _VIEWS)
        spread = np.arange(1, inner + 1, dtype=np.float32) ** -0.5
        self._spread = spread / np.linalg.norm(spread)
        groups = rng.standard_normal((max(1, count // _THINGS), inner), dtype=np.float32)
        things = rng.standard_normal((count, inner), dtype=np.float32)
        self._centres = (groups[rng.integers(len(groups), size=count)] + _THING * things) * self._spread
        directions = rng.standard_normal((dim, inner), dtype=np.float32)
        self._directions = np.linalg.qr(directions)[0].T.astype(np.float32)
        planted = np.arange(PICTURES) % CLUSTERS
        others = CLUSTERS + rng.integers(count - CLUSTERS, size=distractors)
        self.things = np.concatenate([planted, others])

    def vectors(self, things: np.ndarray[Any, Any], block: int) -> np.ndarray[Any, Any]:
        """(n, dim) float16, a new view of each thing (n,); the block's number makes them differ."""
        rng = np.random.default_rng([self._seed, block])
        views = rng.standard_normal((len(things), len(self._spread)), dtype=np.float32)
        inner = (self._centres[things] + _VIEW * views * self._spread) @ self._directions
        noise = rng.standard_normal((len(things), self._dim), dtype=np.float32)
        vectors: np.ndarray[Any, Any] = inner + _NOISE * self._dim**-0.5 * noise
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float16)


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
        stack = make_stack(PresetOptions(preset="paper", levels=DEPTHS[name], k=K), dim)
        save_model(place, Model(stack, name, {}))
    return place
