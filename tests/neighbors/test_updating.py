"""Updated lists are the beginnings of those that a search would find; ties by rising number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gqe
from gqe.aggregators import Affinity, Alpha, Mean
from gqe.neighbors import updating
from gqe.neighbors.updating import ItemChanges, NeighborLists, first_changes, update_lists
from gqe.staleness import reads_outdated, statistics_outdated, valid_levels


def corners(n: int, rng: np.random.Generator) -> np.ndarray:
    """(n, 4) unit vectors, many of them equal."""
    return (rng.choice([-1.0, 1.0], size=(n, 4)) / 2).astype(np.float32)


@given(st.integers(1, 30), st.integers(0, 8), st.integers(0, 8), st.integers(1, 8), st.integers(0, 2**16))
@settings(max_examples=60)
def test_lists_stay_the_beginning_of_the_true_ones(n, removals, additions, width, seed) -> None:
    """Numbers of new items lie between the others: an item may get another vector and keep its number."""
    rng = np.random.default_rng(seed)
    table = corners(n + additions, rng)
    removed, new = np.zeros(len(table), dtype=bool), np.zeros(len(table), dtype=bool)
    removed[rng.permutation(len(table))[:removals]] = True
    new[rng.permutation(len(table))[:additions]] = True
    before, after = ~new | removed, new | ~removed  # those with both marks changed their vectors
    after_table = table.copy()
    after_table[removed & new] = corners(int((removed & new).sum()), rng)
    same = before & ~removed & ~new
    lists = lists_of(table, before, width)
    changes = ItemChanges(removed, np.flatnonzero(new), torch.from_numpy(after_table[new]), int(same.sum()))
    if not same.any():
        return
    start = NeighborLists(lists.ids[same], lists.similarities[same])
    expected = lists_of(after_table, after, width)
    min_neighbors = min(2, int(after.sum()) - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updating, "_SCORE_BYTES", 4 * 3 * int(same.sum()))
        done = update_lists(start, torch.from_numpy(table[same]), changes, min_neighbors)
    sound = ~done.incomplete
    ids, true = done.lists.ids[sound], expected.ids[same][sound]
    there = ids >= 0
    np.testing.assert_array_equal(ids[there], true[there])
    np.testing.assert_array_equal(
        done.lists.similarities[sound][there], expected.similarities[same][sound][there]
    )
    assert (there.sum(axis=1) >= min(min_neighbors, width)).all()
    first = first_changes(start.ids, done.lists.ids, removed)
    np.testing.assert_array_equal(done.changed_at, first)


def lists_of(table: np.ndarray, items: np.ndarray, width: int) -> NeighborLists:
    """Lists of all rows, with neighbours only among some items."""
    numbers = np.flatnonzero(items)
    ids = np.full((len(table), width), -1)
    similarities = np.full((len(table), width), -np.inf, dtype=np.float32)
    if len(numbers):
        found = gqe.knn(table[items], width)
        ids[numbers] = np.where(found.ids >= 0, numbers[found.ids], -1)
        similarities[numbers] = found.similarities
    return NeighborLists(ids, similarities)


def test_a_tie_with_the_last_known_neighbour_goes_by_number() -> None:
    vectors = torch.tensor([[1.0, 0.0]])
    lists = NeighborLists(np.array([[3, 5]]), np.array([[0.8, 0.6]], dtype=np.float32))
    tied = torch.tensor([[0.6, 0.8], [0.6, 0.8]])
    changes = ItemChanges(np.zeros(9, dtype=bool), np.array([4, 7]), tied, 20)
    done = update_lists(lists, vectors, changes, 2)
    assert done.lists.ids.tolist() == [[3, 4]]  # others as near as item 5 may come before item 7
    assert done.changed_at.tolist() == [1]


def test_the_last_neighbour_bounds_what_is_known_even_where_it_is_removed() -> None:
    lists = NeighborLists(np.array([[3, 5]]), np.array([[0.8, 0.6]], dtype=np.float32))
    removed = np.zeros(9, dtype=bool)
    removed[5] = True
    nearer = torch.tensor([[0.7, 0.51**0.5]])
    done = update_lists(lists, torch.tensor([[1.0, 0.0]]), ItemChanges(removed, np.array([8]), nearer, 20), 2)
    assert done.lists.ids.tolist() == [[3, 8]]
    assert done.incomplete.tolist() == [False]
    far = torch.tensor([[0.5, 0.75**0.5]])
    done = update_lists(lists, torch.tensor([[1.0, 0.0]]), ItemChanges(removed, np.array([8]), far, 20), 2)
    assert done.incomplete.tolist() == [True]


def test_levels_follow_the_places_that_their_aggregators_read() -> None:
    stack = [Alpha(2), Mean(4)]
    assert valid_levels(stack, np.array([0, 1, 2, 3, 4])).tolist() == [0, 0, 1, 1, 2]
    context = [Affinity(4, width=8, layers=1, heads=2)] * 2
    assert valid_levels(context, np.array([0, 31, 32])).tolist() == [-1, -1, 2]
    outdated = np.array([False, True, False])
    neighbors = np.array([[0, 2, 1], [1, -1, -1], [0, -1, -1]])
    assert reads_outdated(Alpha(2), neighbors, outdated).tolist() == [False, True, False]
    assert reads_outdated(Mean(3), neighbors, outdated).tolist() == [True, True, False]


def test_statistics_are_outdated_when_the_number_of_items_doubled_or_halved() -> None:
    assert [statistics_outdated(now, 10) for now in (0, 5, 6, 10, 19, 20)] == [
        True, True, False, False, False, True,
    ]  # fmt: skip
    assert not statistics_outdated(0, 0)
