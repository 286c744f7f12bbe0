"""What the tests of the index share: small databases, and the same thing built from nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

import gqe
from gqe import Expander
from gqe.aggregators import Affinity, Alpha, Attention, Identity, Mean
from gqe.index import Index
from gqe.retrieval import expand_once
from gqe.source import MemorySource
from gqe.statistics import SpaceStatistics

DIM = 6


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def vectors(n: int, seed: int = 0, copies: int = 0) -> np.ndarray:
    """(n, DIM) unit vectors around a few centres, some of them exact copies of others."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(5, DIM))
    made = unit(centres[rng.integers(5, size=n)] + 0.6 * rng.normal(size=(n, DIM)))
    for _ in range(copies if n else 0):
        made[rng.integers(n)] = made[rng.integers(n)]
    return made


def wide_vectors(n: int, seed: int = 0, dim: int = 64) -> np.ndarray:
    """(n, dim) unit vectors around thirty centres."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(30, dim))
    return unit(centres[rng.integers(30, size=n)] + 0.7 * rng.normal(size=(n, dim)))


def tied_vectors(n: int, seed: int = 0) -> np.ndarray:
    """(n, DIM) corners of a cube: most similarities are equal to many others."""
    rng = np.random.default_rng(seed)
    corners = np.random.default_rng(98).choice([-1.0, 1.0], size=(6, DIM))
    return unit(corners[rng.integers(6, size=n)])


def small_affinity(k: int = 4, levels: int = 2) -> list[Affinity]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [Affinity(k, width=8, layers=1, heads=2, base=i > 0) for i in range(levels)]


def stacks() -> dict[str, Expander]:
    """Expanders by name; made anew, since fitting one binds it."""
    return {
        "mean": Expander([Mean(3), Mean(2)]),
        "deep": Expander([Alpha(2), Mean(3), Alpha(4)]),
        "flat": Expander([Alpha(3)]),
        "collapsed": Expander([Identity(), Mean(4)]),
        "affinity": Expander(small_affinity()),
        "two-sided": Expander([Mean(3), Alpha(2)], database_stack=[Alpha(4, temperature=0.5), Mean(2)]),
    }


def small_encoders(dim: int, k: int) -> list[Attention]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [Attention(dim, k, layers=2, heads=2, feedforward=48) for _ in range(2)]


def rebuilt(index: Index, stack: Sequence[object], table: np.ndarray, prefix: str = "level") -> MemorySource:
    """The stack over a database built from nothing, with the index's own backgrounds."""
    source = MemorySource(stack, torch.from_numpy(table), device=torch.device("cpu"))
    manifest = index._snapshot.manifest
    source.statistics = SpaceStatistics(manifest.quantiles or None, manifest.backgrounds.get(prefix, []))
    return source


def stored(index: Index, name: str) -> np.ndarray:
    """A level of all items as a reader of the index sees it, computed where it is out of date."""
    prefix, _, i = name.rpartition("-")
    rows = torch.from_numpy(np.flatnonzero(index._snapshot.alive))
    return index._target.levels.by_prefix()[prefix].rows(int(i), rows).cpu().float().numpy()


def assert_equals_rebuild(index: Index, ids: list, table: np.ndarray) -> None:
    """The index holds these items, with the lists, levels and answers of an index built from nothing."""
    snapshot, expander = index._snapshot, index.expander
    assert index.ids.tolist() == ids
    assert len(index) == len(ids)
    rows = np.flatnonzero(snapshot.alive)
    np.testing.assert_array_equal(snapshot.vectors.index_select(0, torch.from_numpy(rows)).numpy(), table)
    if not len(ids):
        return
    needed = snapshot.manifest.width - 1
    lists = snapshot.graph.take(rows)
    expected = gqe.knn(table, snapshot.manifest.width)
    graph_k = min(max(level.graph_k for level in [*expander.stack, *expander.database_stack]), needed)
    number = np.full(len(snapshot.alive) + 1, -1)
    number[rows] = np.arange(len(rows))
    found = number[lists.ids]
    np.testing.assert_array_equal(found[:, :graph_k], expected.ids[:, :graph_k])
    np.testing.assert_array_equal(lists.similarities[:, :graph_k], expected.similarities[:, :graph_k])
    # What stands behind the neighbours that are needed is right, too, as far as it goes.
    there = found >= 0
    np.testing.assert_array_equal(found[there], expected.ids[there])

    queries = vectors(3, seed=77)
    source = rebuilt(index, expander.stack, table)
    for i in range(1, len(expander.stack)):
        np.testing.assert_allclose(stored(index, f"level-{i}"), source.level(i).numpy(), atol=1e-5)
    options = expander.query_options
    neighbors = gqe.knn(table, options.num_neighbors(source.graph_k), queries=queries)
    expanded = expand_once(source, torch.from_numpy(queries), neighbors, options.contrast).numpy()
    np.testing.assert_allclose(index.expand(queries), expanded, atol=1e-5)
    target = table
    if snapshot.manifest.augmented:
        own = "augmented-1" in snapshot.levels
        prefix = "augmented" if own else "level"
        target = rebuilt(index, expander.database_stack, table, prefix).augment().numpy()
        name = f"{prefix}-{len(expander.database_stack)}"
        np.testing.assert_allclose(stored(index, name), target, atol=1e-5)
    k = min(4, len(ids))
    scores = index.search(queries, k).scores
    np.testing.assert_allclose(scores, -np.sort(-(expanded @ target.T), axis=1)[:, :k], atol=1e-5)
