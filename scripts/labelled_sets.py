"""Labelled embeddings: read from any file, written as a training file and two benchmarks of other classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gqe.datasets import is_benchmark_file, load_npz, load_training

Array = np.ndarray[Any, Any]
_TRAIN, _VAL = 0.6, 0.75
_FEWEST = 3


def read_set(path: str | Path) -> tuple[Array, Array]:
    """Embeddings and labels of a training file, or of a benchmark's queries and database; or of `town`."""
    if str(path) == "town" or not is_benchmark_file(path):
        data = load_training(str(path))
        return np.asarray(data.embeddings), np.asarray(data.labels)
    benchmark = load_npz(path)
    truth = benchmark.ground_truth
    labels = np.concatenate([truth["query_labels"], truth["database_labels"]])
    return np.concatenate([benchmark.queries, benchmark.database]), labels


def write_sets(folder: Path, embeddings: Array, labels: Array, *, seed: int = 0) -> dict[str, int]:
    """Write train.npz, val.npz and test.npz: 60, 15 and 25 % of the classes.

    In a benchmark half of the classes are searched for, each with one query and a number of items of its own
    (from two to all it has); the others are strangers, labelled -1.

    Args:
        folder: for the files.
        embeddings: (n, d) of unit length.
        labels: (n,) classes of at least three items each.
        seed: decides which classes go where.

    Returns:
        The number of rows of each file.
    """
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.unique(labels))
    train, val, test = np.split(classes, [int(_TRAIN * len(classes)), int(_VAL * len(classes))])
    folder.mkdir(parents=True, exist_ok=True)
    half = embeddings.astype(np.float16)
    rows = np.flatnonzero(np.isin(labels, train))
    np.savez(folder / "train.npz", embeddings=half[rows], labels=labels[rows])
    written = {"train": len(rows)}
    for name, part in {"val": val, "test": test}.items():
        asked, kept, strange = _benchmark(labels, part, rng)
        database = np.concatenate([kept, strange])
        np.savez(
            folder / f"{name}.npz",
            queries=half[asked],
            query_labels=labels[asked],
            database=half[database],
            database_labels=np.concatenate([labels[kept], np.full(len(strange), -1)]),
        )
        written[name] = len(asked) + len(database)
    return written


def _benchmark(labels: Array, classes: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Rows of queries, of their classes, and of strangers."""
    searched, others = np.array_split(classes, 2)
    asked, kept = [], []
    for label in searched:
        members = rng.permutation(np.flatnonzero(labels == label))
        count = int(np.exp(rng.uniform(np.log(_FEWEST), np.log(len(members) + 1))))
        asked.append(members[:1])
        kept.append(members[1:count])
    return np.concatenate(asked), np.concatenate(kept), np.flatnonzero(np.isin(labels, others))
