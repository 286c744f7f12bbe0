"""Benchmarks to validate a training on: held-out classes, and harder variants of a benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np

from gqe.datasets.base import Benchmark, TrainingSet
from gqe.errors import InputError


def hold_out(data: TrainingSet, share: float = 0.15, *, seed: int = 0) -> tuple[TrainingSet, Benchmark]:
    """Split off some classes from training, as a benchmark.

    Args:
        data: labelled embeddings.
        share: of the classes that have two or more items, at least two of them.
        seed: decides which.

    Returns:
        What remains to train on, and a benchmark: of each class in it a fifth of the items, at most three,
        are queries.
    """
    labels, rng = np.asarray(data.labels), np.random.default_rng(seed)
    names, sizes = np.unique(labels[labels >= 0], return_counts=True)
    usable = names[sizes > 1]
    count = max(2, round(share * len(usable)))
    if len(usable) < count + 2:
        raise InputError(
            f"{data.name}: {len(usable)} classes of two or more items are too few to train and to validate"
            " on; give a validation file"
        )
    away = np.isin(labels, rng.permutation(usable)[:count])
    rows = rng.permutation(np.flatnonzero(away))
    rows = rows[np.argsort(labels[rows], kind="stable")]
    starts = np.searchsorted(labels[rows], labels[rows])
    sizes_here = np.searchsorted(labels[rows], labels[rows], side="right") - starts
    is_query = np.arange(len(rows)) - starts < np.clip(sizes_here // 5, 1, 3)
    benchmark = Benchmark(
        f"{data.name} held out",
        data.embeddings[rows[is_query]],
        data.embeddings[rows[~is_query]],
        {"query_labels": labels[rows[is_query]], "database_labels": labels[rows[~is_query]]},
        f"{count} classes of {data.name} kept away from training",
    )
    left = TrainingSet(data.name, data.embeddings[~away], labels[~away], data.description)
    return left, benchmark


def limit_relevant(benchmark: Benchmark, most: int, *, seed: int = 0) -> Benchmark:
    """The same with at most so many relevant items per class: there expansion easily does harm."""
    given = _labels(benchmark)
    order = np.random.default_rng(seed).permutation(len(given))
    labels = given[order]
    by_class = np.argsort(labels, kind="stable")
    grouped = labels[by_class]
    place = np.arange(len(grouped)) - np.searchsorted(grouped, grouped)
    kept = np.sort(order[by_class[(place < most) | (grouped < 0)]])
    truth = benchmark.ground_truth | {"database_labels": given[kept]}
    name = f"{benchmark.name}, at most {most} relevant"
    return Benchmark(name, benchmark.queries, benchmark.database[kept], truth)


def limit_classes(benchmark: Benchmark, part: int, parts: int = 10, *, seed: int = 0) -> Benchmark:
    """One part of the classes, whole, among all items without a class: few dense regions, all relevant.

    Args:
        benchmark: with labels; items labelled -1 have no class.
        part: which one, from 0.
        parts: how many.
        seed: decides which class is in which part.
    """
    given, asked = _labels(benchmark), np.asarray(benchmark.ground_truth["query_labels"])
    classes = np.random.default_rng(seed).permutation(np.unique(asked))[part::parts]
    queries = np.isin(asked, classes)
    kept = np.isin(given, classes) | (given < 0)
    truth = benchmark.ground_truth | {"query_labels": asked[queries], "database_labels": given[kept]}
    name = f"{benchmark.name}, {len(classes)} classes among strangers"
    return Benchmark(name, benchmark.queries[queries], benchmark.database[kept], truth)


def change_space(benchmark: Benchmark, dim: int, noise: float, shift: float, *, seed: int = 0) -> Benchmark:
    """The same in another space: randomly projected, with noise and a common direction added."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(benchmark.database.shape[1], dim)).astype(np.float32)
    common = _unit(rng.normal(size=(1, dim)).astype(np.float32)) * shift

    def change(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        y = _unit(x.astype(np.float32) @ matrix)
        return _unit(y + noise * rng.normal(size=y.shape).astype(np.float32) / dim**0.5 + common)

    name = f"{benchmark.name}, {dim}-d, noise {noise}, shift {shift}"
    database = change(benchmark.database)
    return Benchmark(name, change(benchmark.queries), database, benchmark.ground_truth)


def _labels(benchmark: Benchmark) -> np.ndarray[Any, Any]:
    truth = benchmark.ground_truth
    if not isinstance(truth, dict) or "database_labels" not in truth:
        raise InputError(f"{benchmark.name}: only a benchmark with labels can be thinned out")
    return np.asarray(truth["database_labels"])


def _unit(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result: np.ndarray[Any, Any] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return result
