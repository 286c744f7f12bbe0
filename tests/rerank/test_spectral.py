"""SearchResult by eigenvectors against dense eigendecompositions."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from gqe.errors import InputError
from gqe.rerank import spectral
from gqe.rerank.affinity_graph import affinity, normalize_by_degree
from gqe.rerank.spectral import Spectral, Spectrum
from rerank.diffusion_worlds import (
    CPU,
    World,
    assert_ranks_by,
    dense_affinity,
    dense_normalised,
    dense_signal,
    diffused,
    random_world,
    reached,
    unit,
    world,
    worlds,
)

WORLDS = worlds()


def components(weights: np.ndarray) -> list[list[int]]:
    closed = reached(weights, np.eye(len(weights)))
    return [np.flatnonzero(row).tolist() for i, row in enumerate(closed) if not row[:i].any()]


def dense_spectral(weights: np.ndarray, y: np.ndarray, alpha: float, rank: int) -> tuple[np.ndarray, float]:
    """U h(Lambda) U^T y with the leading pairs of all components, the rank - 1 next, and the gap behind."""
    n = len(weights)
    leading, others = [], []
    for part in components(weights):
        values, vectors = np.linalg.eigh(dense_normalised(weights[np.ix_(part, part)]))
        for place, (value, vector) in enumerate(zip(values[::-1], vectors.T[::-1], strict=True)):
            whole = np.zeros(n)
            whole[part] = vector
            (others if place else leading).append((value, whole))
    others.sort(key=lambda pair: -pair[0])
    free = rank - 1
    gap = others[free - 1][0] - others[free][0] if 0 < free < len(others) else 1.0
    scores = np.zeros_like(y)
    for value, vector in leading + others[:free]:
        scores += (1 - alpha) / (1 - alpha * value) * np.outer(y @ vector, vector)
    return np.where(reached(weights, y), scores, 0.0), gap


def assert_low_rank(data: World, k: int, rank: int) -> None:
    weights = dense_affinity(data.graph, k)
    expected, gap = dense_spectral(weights, dense_signal(data.first, len(weights), 3), 0.99, rank)
    assert gap > 1e-6  # else the cut falls among equal eigenvalues, where no choice is the right one
    method = Spectral(k=k, kq=3, rank=rank, tolerance=1e-8).fit(data.database, data.graph, device=CPU)
    scores = np.zeros_like(expected)
    ranking = method.rerank(data.queries, data.first)
    for row in range(len(expected)):
        positive = ranking.ids[row][: (expected[row] > 1e-6).sum()]
        scores[row, positive] = ranking.scores[row, : len(positive)]
    np.testing.assert_allclose(scores, np.where(expected > 1e-6, expected, 0), atol=1e-5 * expected.max())


@pytest.mark.parametrize("alpha", [0.5, 0.99])
@pytest.mark.parametrize("name", WORLDS)
def test_with_all_eigenpairs_it_is_diffusion(name: str, alpha: float):
    database, graph, queries, first = WORLDS[name]
    signal = dense_signal(first, len(database), 3)
    expected = diffused(dense_affinity(graph, 5), signal, alpha)
    method = Spectral(k=5, kq=3, alpha=alpha, rank=max(1, len(database))).fit(database, graph, device=CPU)
    assert_ranks_by(method.rerank(queries, first), expected, first)


@pytest.mark.parametrize("rank", [1, 3, 17])
@pytest.mark.parametrize("name", ["random", "islands", "lonely items", "k beyond the database", "one item"])
def test_low_rank_equals_dense_eigenvectors(name: str, rank: int):
    assert_low_rank(WORLDS[name], 5, rank)


@pytest.mark.parametrize("rank", [3, 40])
def test_large_components_equal_dense_eigenvectors(rank: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spectral, "_SMALL", 30)  # the sparse solver, and dense blocks beside the sparse table
    rng = np.random.default_rng(2)
    left, right, few = (np.abs(rng.normal(size=(many, 4))) for many in (120, 90, 10))
    islands = np.zeros((220, 12))
    islands[:120, :4], islands[120:210, 4:8], islands[210:, 8:] = left, right, few
    asked = np.hstack([np.abs(rng.normal(size=(4, 4))), np.abs(rng.normal(size=(4, 4))), np.zeros((4, 4))])
    assert_low_rank(world(unit(islands[rng.permutation(220)]), unit(asked), k=8), 8, rank)


def test_the_leading_vector_of_every_component_is_kept():
    database, graph, queries, first = WORLDS["lonely items"]
    weights = dense_affinity(graph, 5)
    count = len(components(weights))
    assert count > 1
    matrix = normalize_by_degree(affinity(graph, k=5, gamma=3.0))
    assert Spectrum(matrix, 1, 1e-8, CPU).rank == count
    assert Spectrum(matrix, 3, 1e-8, CPU).rank == count + 2
    ranking = Spectral(k=5, kq=1, rank=1).fit(database, graph, device=CPU).rerank(queries, first)
    for row in range(len(queries)):  # so what is in the component of the first result comes first
        near = np.flatnonzero(reached(weights, dense_signal(first, len(database), 1))[row])
        assert set(ranking.ids[row, : len(near)].tolist()) == set(near.tolist())


def test_vectors_are_orthonormal_and_eigenvectors():
    matrix = normalize_by_degree(affinity(random_world(4, n=700, d=5, k=10).graph, k=10, gamma=3.0))
    found = Spectrum(matrix, 25, 1e-8, CPU)
    vectors = np.zeros((700, found.rank))
    values = [found.small_values]
    vectors[:, : len(found.small_values)] = found.small.toarray()
    for members, own_values, own in found.large:
        done = sum(map(len, values))
        vectors[members, done : done + len(own_values)] = own.numpy()
        values.append(own_values)
    assert len(found.large) == 1
    assert found.rank == sum(map(len, values)) >= 25
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(found.rank), atol=1e-5)
    np.testing.assert_allclose(matrix @ vectors, vectors * np.concatenate(values), atol=1e-5)


def test_a_larger_rank_comes_nearer_to_diffusion():
    database, graph, queries, first = random_world(6, n=150, d=4, k=8)
    exact = diffused(dense_affinity(graph, 8), dense_signal(first, 150, 10), 0.99)
    signal = csr_array(dense_signal(first, 150, 10))
    matrix = normalize_by_degree(affinity(graph, k=8, gamma=3.0))
    errors = [
        np.abs(Spectrum(matrix, rank, 1e-8, CPU).filter(signal, spectral.transfer(0.99)) - exact).max()
        for rank in (5, 20, 60, 150)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 10 * errors[2]
    assert errors[3] < 1e-6
    small, large = (Spectral(k=8, rank=rank).fit(database, graph, device=CPU) for rank in (20, 60))
    assert small.size() < large.size() <= 150 * 60 * 8 + 151 * 4 + 60 * 8
    assert small.rerank(queries, first).ids.shape == first.ids.shape


def test_eigenpairs_that_do_not_converge_are_reported(caplog: pytest.LogCaptureFixture):
    n = 20000  # a chain: its largest eigenvalues lie closer together than anything
    with caplog.at_level(logging.WARNING):
        values, vectors = spectral._eigenpairs(chain(n), 10, 1e-8, CPU, rounds=1)
    assert len(values) < 10
    assert vectors.shape == (n, len(values))
    assert f"{len(values)} of 10 eigenpairs converged on a component of 20000 items" in caplog.text


def test_eigenpairs_that_lie_close_together():
    n, matrix = 1200, chain(1200)
    values, vectors = spectral._eigenpairs(matrix, 10, 1e-8, CPU)
    np.testing.assert_allclose(values, np.cos(np.pi * np.arange(10) / (n - 1)), atol=1e-9)
    np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-7)


def chain(n: int) -> csr_array:
    """S (n, n) of items that are linked to the one before and the one behind."""
    rows, ones = np.arange(n - 1), np.ones(n - 1)
    links = (np.r_[rows, rows + 1], np.r_[rows + 1, rows])
    return normalize_by_degree(csr_array((np.tile(ones, 2), links), shape=(n, n)))


def test_the_same_every_time():
    database, graph, queries, first = random_world(4, n=700, d=5, k=10)
    one, two = (Spectral(k=10, rank=30).fit(database, graph, device=CPU) for _ in range(2))
    np.testing.assert_array_equal(one.rerank(queries, first).scores, two.rerank(queries, first).scores)


def test_a_coarse_tolerance_hardly_changes_the_scores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spectral, "_SMALL", 30)
    database, graph, queries, first = random_world(4, n=700, d=5, k=10)
    exact, coarse = (
        Spectral(k=10, rank=30, tolerance=tolerance).fit(database, graph, device=CPU).rerank(queries, first)
        for tolerance in (1e-8, 1e-3)
    )
    np.testing.assert_allclose(coarse.scores, exact.scores, atol=0.02 * exact.scores.max())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_is_the_same():
    database, graph, queries, first = random_world(4, n=700, d=5, k=10)
    here = Spectral(k=10, rank=30).fit(database, graph, device=CPU).rerank(queries, first)
    there = Spectral(k=10, rank=30).fit(database, graph, device=torch.device("cuda")).rerank(queries, first)
    np.testing.assert_allclose(np.sort(here.scores), np.sort(there.scores), atol=1e-5)


def test_settings():
    method = Spectral(k=7, kq=2, rank=30)
    assert (method.graph_k, method.num_candidates, method.size()) == (7, 2, 0)
    assert Spectral(**method.settings()).settings() == method.settings()
    with pytest.raises(InputError, match=r"^rank: "):
        Spectral(rank=0)
