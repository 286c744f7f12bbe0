"""Eigenvectors and conjugate gradients together against the formulas of the paper."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from gqe.errors import InputError
from gqe.rerank.diffusion import Diffusion
from gqe.rerank.spectral import HybridDiffusion, Spectral
from rerank.diffusion_worlds import (
    CPU,
    assert_ranks_by,
    dense_affinity,
    dense_normalised,
    dense_signal,
    diffused,
    random_world,
    worlds,
)

WORLDS = worlds()
EXACT = {"iterations": 500, "tolerance": 1e-10}


@pytest.mark.parametrize("rank", [1, 6, 100])
@pytest.mark.parametrize("name", WORLDS)
def test_any_rank_equals_the_closed_form(name: str, rank: int):
    database, graph, queries, first = WORLDS[name]
    expected = diffused(dense_affinity(graph, 5), dense_signal(first, len(database), 3), 0.99)
    method = HybridDiffusion(k=5, kq=3, rank=rank, **EXACT).fit(database, graph, device=CPU)
    assert_ranks_by(method.rerank(queries, first), expected, first)
    assert method.unconverged == 0


@pytest.mark.parametrize("rank", [1, 7, 30])
def test_equals_the_papers_split_of_the_graph(rank: int):
    """Both terms of the paper: U (h(Lambda) - h(0)) U^T y + h(S - U Lambda U^T) y."""
    n, alpha = 120, 0.95
    database, graph, queries, first = random_world(6, n=n, d=4, k=8)
    matrix, y = dense_normalised(dense_affinity(graph, 8)), dense_signal(first, n, 10)
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    rest = matrix - vectors @ np.diag(values) @ vectors.T
    gain = (1 - alpha) / (1 - alpha * values) - (1 - alpha)
    smooth = y @ vectors @ np.diag(gain) @ vectors.T
    expected = smooth + (1 - alpha) * y @ np.linalg.inv(np.eye(n) - alpha * rest)
    assert expected.min() > 0
    method = HybridDiffusion(k=8, alpha=alpha, rank=rank, **EXACT).fit(database, graph, device=CPU)
    assert_ranks_by(method.rerank(queries, first), expected, first)


def test_rank_buys_iterations_with_memory():
    n = 300
    database, graph, queries, first = random_world(3, n=n, d=4, k=20)
    exact = diffused(dense_affinity(graph, 20), dense_signal(first, n, 10), 0.99)

    def error(method: Diffusion | HybridDiffusion | Spectral) -> tuple[float, int]:
        ranking = method.fit(database, graph, device=CPU).rerank(queries, first)
        rows = np.arange(len(queries))[:, None]
        return float(np.abs(ranking.scores - exact[rows, ranking.ids]).max()), method.size()

    plain, plain_size = error(Diffusion(k=20, iterations=5))
    small, small_size = error(HybridDiffusion(k=20, iterations=5, rank=5))
    large, large_size = error(HybridDiffusion(k=20, iterations=5, rank=40))
    alone, _ = error(Spectral(k=20, rank=40))
    assert plain > 2 * small > 4 * large
    assert alone > 5 * large
    assert plain_size < small_size < large_size


def test_queries_that_do_not_converge_are_reported(caplog: pytest.LogCaptureFixture):
    database, graph, queries, first = random_world(3, n=300, d=4, k=20)
    method = HybridDiffusion(k=20, iterations=2, rank=5).fit(database, graph, device=CPU)
    with caplog.at_level(logging.WARNING):
        method.rerank(queries, first)
    assert method.unconverged == len(queries)
    assert "hybrid-diffusion: 5 of 5 queries did not converge" in caplog.text
    caplog.clear()
    method = HybridDiffusion(k=20, iterations=2, rank=300).fit(database, graph, device=CPU)
    method.rerank(queries, first)  # nothing is left to solve
    assert method.unconverged == 0
    assert method.residual <= 1e-6
    assert not caplog.records


def test_settings():
    method = HybridDiffusion(k=7, kq=2, rank=30)
    assert (method.graph_k, method.num_candidates, method.size()) == (7, 2, 0)
    assert HybridDiffusion(**method.settings()).settings() == method.settings()
    with pytest.raises(InputError, match=r"^rank: "):
        HybridDiffusion(rank=0)
