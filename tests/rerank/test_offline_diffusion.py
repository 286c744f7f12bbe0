"""Diffusion worked out in advance against truncated inverses."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from gqe.errors import InputError
from gqe.neighbors import NeighborGraph, knn
from gqe.rerank import affinity_graph, diffusion
from gqe.rerank.diffusion import Diffusion, OfflineDiffusion
from rerank.diffusion_worlds import (
    CPU,
    assert_ranks_by,
    dense_affinity,
    dense_normalised,
    dense_signal,
    diffused,
    random_world,
    reached,
    worlds,
)

WORLDS = worlds()
EXACT = {"iterations": 500, "tolerance": 1e-10}


def dense_columns(
    graph: NeighborGraph, wide_graph: NeighborGraph, truncation: int, alpha: float
) -> np.ndarray:
    """(n, n) row i: the column of item i of the inverse, cut from I - alpha S to i and its neighbours."""
    n = len(graph)
    weights = dense_affinity(graph, 5)
    system = np.eye(n) - alpha * dense_normalised(weights)
    columns = np.zeros((n, n))
    for i in range(n):
        part = [i, *(j for j in wide_graph.ids[i, : truncation - 1] if j >= 0)]
        start = np.eye(len(part))[:1]
        solved = (1 - alpha) * start @ np.linalg.inv(system[np.ix_(part, part)])
        columns[i, part] = np.where(reached(weights[np.ix_(part, part)], start), solved, 0.0)[0]
    return columns


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("truncation", [1, 8, 1000])
@pytest.mark.parametrize("name", WORLDS)
def test_equals_truncated_inverses(name: str, truncation: int, wide: bool):
    database, graph, queries, first = WORLDS[name]
    wide_graph = knn(database, max(1, len(database) - 1))
    columns = dense_columns(graph, wide_graph, truncation, 0.9)
    expected = dense_signal(first, len(database), 3) @ columns
    method = OfflineDiffusion(k=5, kq=3, alpha=0.9, truncation=truncation, **EXACT)
    given = wide_graph if wide and wide_graph.k >= graph.k else graph  # with or without a search of its own
    method.fit(database, given, device=CPU)
    assert_ranks_by(method.rerank(queries, first), expected, first)


@pytest.mark.parametrize("name", WORLDS)
def test_without_truncation_it_is_diffusion(name: str):
    database, graph, queries, first = WORLDS[name]
    expected = diffused(dense_affinity(graph, 5), dense_signal(first, len(database), 10), 0.99)
    method = OfflineDiffusion(k=5, **EXACT).fit(database, graph, device=CPU)
    ranking = method.rerank(queries, first)
    assert_ranks_by(ranking, expected, first)
    online = Diffusion(k=5, **EXACT).fit(database, graph, device=CPU).rerank(queries, first)
    np.testing.assert_allclose(ranking.scores, online.scores, rtol=1e-5, atol=1e-7)


def test_blocks_do_not_change_anything(monkeypatch: pytest.MonkeyPatch):
    database, graph, queries, first = random_world(5, n=60, m=9)
    whole = OfflineDiffusion(k=5, truncation=20).fit(database, graph, device=CPU)
    for module in (affinity_graph, diffusion):
        monkeypatch.setattr(module, "blocks", lambda m, *_: (slice(i, min(i + 7, m)) for i in range(0, m, 7)))
    parts = OfflineDiffusion(k=5, truncation=20).fit(database, graph, device=CPU)
    assert parts.size() == whole.size()
    assert (parts.unconverged, parts.residual) == (whole.unconverged, pytest.approx(whole.residual))
    np.testing.assert_array_equal(parts.rerank(queries, first).ids, whole.rerank(queries, first).ids)


def test_memory_is_bounded_by_the_truncation():
    database, graph, _, _ = random_world(1, n=200, k=20)
    method = OfflineDiffusion(k=20, truncation=10).fit(database, graph, device=CPU)
    assert 0 < method.size() <= 200 * 10 * 8 + 201 * 8
    wider = OfflineDiffusion(k=20, truncation=50).fit(database, graph, device=CPU)
    assert method.size() < wider.size()


def test_columns_that_do_not_converge_are_reported(caplog: pytest.LogCaptureFixture):
    database, graph, queries, first = random_world()
    method = OfflineDiffusion(k=5, iterations=2)
    with caplog.at_level(logging.WARNING):
        method.fit(database, graph, device=CPU)
    assert f"{method.unconverged} of 40 columns did not converge" in caplog.text
    assert method.unconverged > 0
    assert method.residual > 1e-6
    method.rerank(queries, first)
    assert method.unconverged > 0  # it is about the columns, not about the last queries


def test_settings():
    method = OfflineDiffusion(k=7, kq=2, truncation=30)
    assert (method.graph_k, method.num_candidates, method.size()) == (7, 2, 0)
    assert OfflineDiffusion(**method.settings()).settings() == method.settings()
    with pytest.raises(InputError, match=r"^truncation: "):
        OfflineDiffusion(truncation=0)
