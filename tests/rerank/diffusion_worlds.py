"""Small databases with every oddity, and diffusion written out as dense matrices and plain loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from gqe.neighbors import NeighborGraph, knn
from gqe.results import SearchResult

CPU = torch.device("cpu")
GAMMA = 3.0


class World(NamedTuple):
    database: torch.Tensor
    graph: NeighborGraph
    queries: torch.Tensor
    first: NeighborGraph


def unit(vectors: np.ndarray) -> torch.Tensor:
    vectors = np.asarray(vectors, dtype=np.float64)
    return torch.from_numpy((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32))


def world(database: torch.Tensor, queries: torch.Tensor, *, k: int = 5, width: int | None = None) -> World:
    """A database with the graph of its k neighbours, and `width` first results (default: all) of queries."""
    width = max(1, len(database)) if width is None else width
    return World(database, knn(database, k), queries, knn(database, width, queries=queries))


def random_world(seed: int = 0, n: int = 40, d: int = 6, m: int = 5, **options: int) -> World:
    rng = np.random.default_rng(seed)
    return world(unit(rng.normal(size=(n, d))), unit(rng.normal(size=(m, d))), **options)


def worlds() -> dict[str, World]:
    rng = np.random.default_rng(7)
    positive = np.abs(rng.normal(size=(24, 3)))
    nowhere = np.zeros_like(positive)
    two_islands = np.block([[positive, nowhere], [nowhere, positive]])
    lonely = np.vstack([positive, [[-1, -1, -1], [-1, -1.1, -1.2], [9, -5, -5]]])
    grid = np.array([[x, y] for x in range(1, 5) for y in range(1, 5)] * 2)  # doubles, and equal directions
    near = np.abs(rng.normal(size=(4, 3)))
    few = unit(near)
    return {
        "random": random_world(),
        "islands": world(unit(two_islands), unit(np.hstack([near, 0.3 * near[::-1]]))),
        "lonely items": world(unit(lonely), unit(np.vstack([near, [[-1, -1, -1]], [[9, -5, -5]]]))),
        "ties": world(unit(grid), unit([[1, 1], [2, 1], [1, 5]]), k=7),
        "k beyond the database": world(unit(positive[:5]), few, k=20),
        "one item": world(unit(positive[:1]), few),
        "no item": world(unit(positive)[:0], few, width=4),
        "no query": world(unit(positive), few[:0]),
        "short first results": world(unit(positive), few, width=2),
        "missing first results": world(unit(positive[:3]), few, width=9),
    }


def dense_affinity(graph: NeighborGraph, k: int) -> np.ndarray:
    """W: max(cosine, 0)^gamma between items that are among the k neighbours of each other."""
    n = len(graph)
    weights = np.zeros((n, n))
    for i in range(n):
        for j, cosine in zip(graph.ids[i, :k], graph.similarities[i, :k], strict=True):
            if j >= 0 and i in graph.ids[j, :k]:
                weights[i, j] = max(float(cosine), 0.0) ** GAMMA
    return np.minimum(weights, weights.T)


def dense_normalised(weights: np.ndarray) -> np.ndarray:
    """S_ij = W_ij / sqrt(d_i d_j), and 0 where an item has no neighbour."""
    degrees = weights.sum(axis=1)
    result = np.zeros_like(weights)
    for i in range(len(weights)):
        for j in range(len(weights)):
            if weights[i, j] > 0:
                result[i, j] = weights[i, j] / np.sqrt(degrees[i] * degrees[j])
    return result


def dense_signal(first: NeighborGraph, n: int, kq: int) -> np.ndarray:
    """Y (m, n): max(cosine, 0)^gamma at the kq first results."""
    y = np.zeros((len(first), n))
    for row in range(len(first)):
        for item, cosine in zip(first.ids[row, :kq], first.similarities[row, :kq], strict=True):
            if item >= 0:
                y[row, item] = max(float(cosine), 0.0) ** GAMMA
    return y


def reached(weights: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(m, n) which items a walk along the graph reaches from where the signal is."""
    found = y > 0
    for _ in range(len(weights)):
        found = found | (found @ (weights > 0))
    return found


def diffused(weights: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    """F (m, n): the closed form (1 - alpha) (I - alpha S)^-1 y, exactly 0 where nothing arrives."""
    inverse = np.linalg.inv(np.eye(len(weights)) - alpha * dense_normalised(weights))
    return np.where(reached(weights, y), (1 - alpha) * y @ inverse, 0.0)


def assert_ranks_by(ranking: SearchResult, scores: np.ndarray, first: NeighborGraph) -> None:
    """The ranking is that of the expected scores (m, n); near ties may stand in either order."""
    width = first.k
    assert ranking.ids.shape == ranking.scores.shape == first.ids.shape
    assert ranking.ids.dtype == np.int64
    assert ranking.scores.dtype == np.float32
    for row in range(len(first)):
        ids, found = ranking.ids[row], ranking.scores[row]
        best = np.sort(scores[row][scores[row] > 0])[::-1][:width]
        np.testing.assert_allclose(found[: len(best)], best, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(scores[row][ids[: len(best)]], best, rtol=1e-5, atol=1e-7)
        behind = [item for item in first.ids[row] if item >= 0 and not scores[row][item] > 0]
        behind = (behind + [-1] * width)[: width - len(best)]
        assert ids[len(best) :].tolist() == behind
        present = ids[ids >= 0]
        assert len(set(present.tolist())) == len(present)
        assert (np.diff(found[: len(present)]) <= 0).all()
