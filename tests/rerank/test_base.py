"""The order of scored and unscored results."""

from __future__ import annotations

import numpy as np
import pytest

import gqe
from gqe.neighbors import NeighborGraph
from gqe.rerank.base import order_results
from gqe.results import SearchResult, remove_excluded


def test_scored_items_come_first_and_the_rest_keeps_its_order():
    first = NeighborGraph(np.array([[4, 7, 2, 9]]), np.array([[0.9, 0.8, 0.7, 0.6]], np.float32))
    result = order_results(np.array([[2, 5, -1]]), np.array([[1.0, 3.0, 9.0]]), first)
    assert result.ids.tolist() == [[5, 2, 4, 7]]
    assert (np.diff(result.scores) < 0).all()
    assert result.scores[0, :2].tolist() == [3.0, 1.0]


def test_ties_go_to_the_lower_id_and_short_lists_end_with_missing():
    first = NeighborGraph(np.array([[8, -1, -1]]), np.array([[0.5, -np.inf, -np.inf]], np.float32))
    result = order_results(np.array([[6, 3]]), np.array([[1.0, 1.0]]), first)
    assert result.ids.tolist() == [[3, 6, 8]]
    nothing = order_results(np.full((1, 2), -1), np.zeros((1, 2)), first)
    assert nothing.ids.tolist() == [[8, -1, -1]]
    assert nothing.scores[0, 0] == np.float32(0.5)


def test_an_excluded_item_is_taken_out_and_the_rest_moves_up():
    ranking = SearchResult(np.array([[3, 2, 1], [3, 2, 1]], np.float32), np.array([[5, 6, 7], [5, 6, -1]]))
    result = remove_excluded(ranking, np.array([6, -1]), 2)
    assert result.ids.tolist() == [[5, 7], [5, 6]]
    assert result.scores.tolist() == [[3, 1], [3, 2]]
    assert remove_excluded(ranking, None, 1).ids.tolist() == [[5], [5]]


@pytest.mark.parametrize("name", ["egt:t=-1", "diffusion:k=5:kq=2", "reciprocal", "superglobal:k=3"])
def test_no_query_finds_what_it_excludes(name, random_unit):
    database = random_unit(30, 8)
    from gqe.methods import parse_method
    from gqe.models import from_method

    expander = from_method(parse_method(name)).fit(database)
    found = expander.search(database, 5, exclude=np.arange(30))
    assert not (found.ids == np.arange(30)[:, None]).any()
    assert (found.ids >= 0).all()
    assert gqe.expander(name.split(":")[0]).fit(database).search(database[:2], 30).ids.shape == (2, 30)
