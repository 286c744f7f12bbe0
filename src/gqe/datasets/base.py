"""What a data set is: queries and a database to judge by, or labelled embeddings to train on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats import read_arrays

_BENCHMARK_KEYS = ("queries", "query_labels", "database", "database_labels")


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Queries, a database, and what is relevant.

    Attributes:
        name: how it is called in tables.
        queries: (m, d) embeddings.
        database: (n, d) embeddings; no query is in it.
        ground_truth: whatever `gqe.evaluate` takes: the official {"gnd": ...} layout, or labels.
        description: a sentence about it.
        picture: gives the picture of an item as a PIL image: picture("query" or "database", index).
    """

    name: str
    queries: np.ndarray[Any, Any]
    database: np.ndarray[Any, Any]
    ground_truth: Any
    description: str = ""
    picture: Callable[[str, int], Any] | None = None

    def __repr__(self) -> str:
        """The name and sizes: the ground truth alone may be tens of thousands of characters."""
        return f"Benchmark({self.name!r}, queries={self.queries.shape}, database={self.database.shape})"


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Labelled embeddings: (n, d) float32 and (n,) int64, label -1 is a distractor."""

    name: str
    embeddings: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    description: str = ""

    def __repr__(self) -> str:
        """The name, the size, and how many classes there are."""
        classes = len(np.unique(self.labels[self.labels >= 0]))
        return f"TrainingSet({self.name!r}, embeddings={self.embeddings.shape}, classes={classes})"


def load_npz(path: str | os.PathLike[str]) -> Benchmark:
    """Read a label benchmark: an .npz file with queries, query_labels, database and database_labels."""
    arrays = read_arrays(path)
    missing = [key for key in _BENCHMARK_KEYS if key not in arrays]
    if missing:
        raise InputError(
            f"{os.fspath(path)}: no {' and no '.join(missing)}; "
            f"a benchmark file holds {', '.join(_BENCHMARK_KEYS)}"
        )
    labels = {"query_labels": arrays["query_labels"], "database_labels": arrays["database_labels"]}
    return Benchmark(
        name=Path(path).stem,
        queries=arrays["queries"],
        database=arrays["database"],
        ground_truth=labels,
        description=f"label benchmark {os.fspath(path)}",
    )
