"""The order of scored and unscored results."""

from __future__ import annotations

import numpy as np

from gqe.neighbors import NeighborGraph
from gqe.rerank.base import ordered


def test_scored_items_come_first_and_the_rest_keeps_its_order():
    first = NeighborGraph(np.array([[4, 7, 2, 9]]), np.array([[0.9, 0.8, 0.7, 0.6]], np.float32))
    result = ordered(np.array([[2, 5, -1]]), np.array([[1.0, 3.0, 9.0]]), first)
    assert result.ids.tolist() == [[5, 2, 4, 7]]
    assert (np.diff(result.scores) < 0).all()
    assert result.scores[0, :2].tolist() == [3.0, 1.0]


def test_ties_go_to_the_lower_id_and_short_lists_end_with_missing():
    first = NeighborGraph(np.array([[8, -1, -1]]), np.array([[0.5, -np.inf, -np.inf]], np.float32))
    result = ordered(np.array([[6, 3]]), np.array([[1.0, 1.0]]), first)
    assert result.ids.tolist() == [[3, 6, 8]]
    nothing = ordered(np.full((1, 2), -1), np.zeros((1, 2)), first)
    assert nothing.ids.tolist() == [[8, -1, -1]]
    assert nothing.scores[0, 0] == np.float32(0.5)
