"""Diffusion by conjugate gradients against the closed form."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from gqe.errors import InputError
from gqe.neighbors import NeighborGraph, knn
from gqe.rerank import affinity_graph
from gqe.rerank.diffusion import Diffusion, conjugate_gradient
from rerank.diffusion_worlds import (
    CPU,
    GAMMA,
    assert_ranks_by,
    dense_affinity,
    dense_normalised,
    dense_signal,
    diffused,
    random_world,
    reached,
    unit,
    worlds,
)

WORLDS = worlds()
EXACT = {"iterations": 500, "tolerance": 1e-10}


@pytest.mark.parametrize("alpha", [0.5, 0.99])
@pytest.mark.parametrize("name", WORLDS)
def test_equals_the_closed_form(name: str, alpha: float):
    database, graph, queries, first = WORLDS[name]
    weights = dense_affinity(graph, 5)
    expected = diffused(weights, dense_signal(first, len(database), 3), alpha)
    method = Diffusion(k=5, kq=3, alpha=alpha, **EXACT).fit(database, graph, device=CPU)
    assert_ranks_by(method.rerank(queries, first), expected, first)
    assert method.unconverged == 0


@pytest.mark.parametrize("truncation", [1, 2, 7, 15, 1000])
@pytest.mark.parametrize("name", WORLDS)
def test_truncated_equals_the_closed_form_on_the_part_of_each_query(name: str, truncation: int):
    database, graph, queries, first = WORLDS[name]
    weights = dense_affinity(graph, 5)
    expected = np.zeros((len(queries), len(database)))
    for row in range(len(queries)):
        part = [item for item in first.ids[row, :truncation] if item >= 0]
        y = dense_signal(first, len(database), 3)[row : row + 1, part]
        expected[row, part] = diffused(weights[np.ix_(part, part)], y, 0.9)
    method = Diffusion(k=5, kq=3, alpha=0.9, truncation=truncation, **EXACT)
    method.fit(database, graph, device=CPU)
    assert_ranks_by(method.rerank(queries, first), expected, first)


def test_the_papers_twenty_iterations_equal_twenty_plain_ones(caplog: pytest.LogCaptureFixture):
    n = 300
    database, graph, queries, first = random_world(3, n=n, d=4, k=20)
    system = np.eye(n) - 0.99 * dense_normalised(dense_affinity(graph, 20))
    expected, residuals = np.zeros((len(queries), n)), []
    for row, y in enumerate(dense_signal(first, n, 10)):
        x, r, p = np.zeros(n), y.copy(), y.copy()
        for _ in range(20):
            step = (r @ r) / (p @ system @ p)
            x, last, r = x + step * p, r @ r, r - step * system @ p
            p = r + (r @ r) / last * p
        expected[row] = 0.01 * x
        residuals.append(np.linalg.norm(y - system @ x) / np.linalg.norm(y))
    method = Diffusion(k=20).fit(database, graph, device=CPU)
    with caplog.at_level(logging.WARNING):
        ranking = method.rerank(queries, first)
    assert_ranks_by(ranking, expected, first)
    assert min(residuals) > 1e-6
    assert method.unconverged == len(queries)
    assert method.residual == pytest.approx(max(residuals), rel=1e-6)
    assert "5 of 5 queries did not converge to 1e-06 in 20 iterations" in caplog.text


def test_converged_queries_say_nothing(caplog: pytest.LogCaptureFixture):
    database, graph, queries, first = random_world()
    method = Diffusion(k=5, iterations=1).fit(database, graph, device=CPU)
    method.rerank(queries, first)
    assert method.unconverged == len(queries)
    caplog.clear()
    method = Diffusion(k=5, iterations=500).fit(database, graph, device=CPU)
    method.rerank(queries, first)
    assert method.unconverged == 0
    assert 0 < method.residual <= 1e-6
    assert not caplog.records


@pytest.mark.parametrize("truncation", [None, 15])
def test_a_query_does_not_depend_on_the_others(truncation: int | None, monkeypatch: pytest.MonkeyPatch):
    database, graph, queries, first = random_world(5, n=60, m=9)
    method = Diffusion(k=5, truncation=truncation).fit(database, graph, device=CPU)
    together = method.rerank(queries, first)
    monkeypatch.setattr(
        affinity_graph, "blocks", lambda m, *_: (slice(i, min(i + 2, m)) for i in range(0, m, 2))
    )
    apart = method.rerank(queries, first)
    np.testing.assert_array_equal(together.ids, apart.ids)
    np.testing.assert_allclose(together.scores, apart.scores, rtol=1e-6)


def test_finds_the_rest_of_a_curve_before_nearer_strangers():
    along = np.linspace(0, 2.2, 40)
    curve = np.stack([np.cos(along), np.sin(along), np.zeros(40)], axis=1)
    off = np.linspace(0.5, 0.9, 20)  # around the query, but not on its curve
    strangers = np.stack([np.cos(off), np.zeros(20), np.sin(off)], axis=1)
    database = unit(np.vstack([curve, strangers]))
    first = knn(database, 60, queries=database[:1])
    assert first.ids[0, :40].max() >= 40
    method = Diffusion(k=4, kq=2, iterations=500).fit(database, knn(database, 4), device=CPU)
    ranking = method.rerank(database[:1], first)
    assert sorted(ranking.ids[0, :40].tolist()) == list(range(40))
    weights = dense_affinity(knn(database, 4), 4)
    assert reached(weights, dense_signal(first, 60, 2))[0].sum() == 40


def test_systems_stop_one_by_one():
    systems = np.array([[2.0, 1.0], [1.0, 3.0]])
    y = np.array([[1.0, 0.0], [0.0, 0.0]])  # the second signal is empty
    found = conjugate_gradient(lambda x: systems @ x, y, axis=0, iterations=2, tolerance=1e-12)
    np.testing.assert_allclose(found.x, np.linalg.solve(systems, y), atol=1e-12)
    assert found.residuals.shape == (2,)
    assert found.residuals[1] == 0


def test_reach_wants_and_size():
    database, graph, _, _ = random_world(k=5)
    method = Diffusion(k=5, kq=3)
    assert (method.graph_k, method.num_candidates, method.size()) == (5, 3, 0)
    assert Diffusion(kq=3, truncation=100).num_candidates == 100
    edges = int((dense_affinity(graph, 5) > 0).sum())
    assert method.fit(database, graph, device=CPU).size() == edges * 12 + (len(database) + 1) * 4
    assert repr(method).startswith("Diffusion(k=5, kq=3, gamma=3.0, alpha=0.99")
    assert Diffusion(**method.settings()).settings() == method.settings()
    assert Diffusion().gamma == GAMMA


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"k": 0}, "k: "),
        ({"kq": 1.5}, "kq: "),
        ({"gamma": 0}, "gamma: "),
        ({"alpha": 1.0}, "alpha: expected a number above 0 and below 1"),
        ({"alpha": -0.1}, "alpha: "),
        ({"iterations": 0}, "iterations: "),
        ({"tolerance": float("nan")}, "tolerance: "),
        ({"truncation": 0}, "truncation: "),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, float], told: str):
    with pytest.raises(InputError, match=f"^{told}"):
        Diffusion(**settings)


def test_bad_calls_are_refused():
    database, graph, queries, first = random_world(k=5)
    with pytest.raises(InputError, match="call fit first"):
        Diffusion().rerank(queries, first)
    with pytest.raises(InputError, match="graph: it holds 5 neighbours"):
        Diffusion(k=6).fit(database, graph, device=CPU)
    with pytest.raises(InputError, match="graph: it has 40 rows, the database 39"):
        Diffusion(k=5).fit(database[:-1], graph, device=CPU)
    method = Diffusion(k=5).fit(database, graph, device=CPU)
    with pytest.raises(InputError, match="first: it has 5 rows, there are 4 queries"):
        method.rerank(queries[:4], first)
    outside = NeighborGraph(np.array([[40]]), np.ones((1, 1), np.float32))
    with pytest.raises(InputError, match="outside the database"):
        method.rerank(torch.ones(1, 6), outside)
