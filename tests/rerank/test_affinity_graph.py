"""The graph of mutual neighbours and its parts."""

from __future__ import annotations

import numpy as np
import pytest

from gqe.errors import InputError
from gqe.neighbors import NeighborGraph
from gqe.rerank.affinity_graph import (
    affinity,
    cut_subgraphs,
    neighbor_matrix,
    normalize_by_degree,
    rank_scores,
)
from rerank.diffusion_worlds import (
    GAMMA,
    dense_affinity,
    dense_normalised,
    dense_signal,
    random_world,
    worlds,
)

WORLDS = worlds()


@pytest.mark.parametrize("name", WORLDS)
def test_matrices_equal_plain_loops(name: str):
    graph, first = WORLDS[name].graph, WORLDS[name].first
    weights = affinity(graph, k=4, gamma=GAMMA)
    expected = dense_affinity(graph, 4)
    np.testing.assert_allclose(weights.toarray(), expected, atol=1e-12)
    np.testing.assert_allclose(normalize_by_degree(weights).toarray(), dense_normalised(expected), atol=1e-12)
    signal = neighbor_matrix(first, len(graph), k=3, gamma=GAMMA)
    np.testing.assert_allclose(signal.toarray(), dense_signal(first, len(graph), 3), atol=1e-12)


def test_the_smaller_of_two_measurements_counts_and_one_way_links_do_not():
    ids = np.array([[1, 2], [0, -1], [1, -1]])
    similarities = np.array([[0.5, 0.9], [0.4, -np.inf], [0.3, -np.inf]], np.float32)
    weights = affinity(NeighborGraph(ids, similarities), k=2, gamma=1.0).toarray()
    np.testing.assert_allclose(weights, [[0, 0.4, 0], [0.4, 0, 0], [0, 0, 0]], rtol=1e-6)


def test_a_narrow_graph_is_refused():
    with pytest.raises(InputError, match="graph: it holds 5 neighbours an item, 6 are needed"):
        affinity(random_world(k=5).graph, k=6, gamma=GAMMA)


def test_parts_of_a_matrix_stand_on_the_diagonal():
    weights = affinity(random_world().graph, k=5, gamma=GAMMA)
    dense = weights.toarray()
    ids = np.array([[3, 1, 4, 20, 5], [9, -1, 2, 6, -1]])
    cut = cut_subgraphs(weights, ids).toarray()
    expected = np.zeros((10, 10))
    for part in range(2):
        for a in range(5):
            for b in range(5):
                if ids[part, a] >= 0 and ids[part, b] >= 0:
                    expected[5 * part + a, 5 * part + b] = dense[ids[part, a], ids[part, b]]
    assert expected.any()
    np.testing.assert_array_equal(cut, expected)


def test_a_short_ranking_is_the_start_of_the_full_one_with_ties_by_id():
    scores = np.array([[0.5, 0.2, 0.5, 0.0, -0.1, 0.2, 0.5, 0.2]])
    ids, cosines = np.array([[4, 3, 1, 0, 2, 5, 6, 7]]), np.linspace(0.9, 0.1, 8, dtype=np.float32)[None]
    full = rank_scores(scores, NeighborGraph(ids, cosines))
    assert full.ids.tolist() == [[0, 2, 6, 1, 5, 7, 4, 3]]
    for width in range(1, 8):
        short = rank_scores(scores, NeighborGraph(ids[:, :width], cosines[:, :width]))
        assert short.ids.tolist() == full.ids[:, :width].tolist()
