"""Metrics of one query against plain loops over the ranking."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gqe.errors import InputError
from gqe.evaluation import average_precision, average_precision_at, precision_at, recall_at

# A ranking as a list of hits and misses, and how many positives it misses altogether.
RANKINGS = st.tuples(st.lists(st.booleans(), max_size=30), st.integers(0, 4))


def ranks_of(hits: list[bool]) -> list[int]:
    return [rank for rank, hit in enumerate(hits) if hit]


@given(RANKINGS)
def test_average_precision_is_the_area_under_the_precision_recall_curve(ranking):
    hits, missing = ranking
    n_positives = sum(hits) + missing
    if n_positives == 0:
        assert math.isnan(average_precision([], 0))
        return
    # The curve walked item by item: trapezoids between neighbouring points, starting at precision 1.
    area, recall, precision, found = 0.0, 0.0, 1.0, 0
    for seen, hit in enumerate(hits, start=1):
        found += hit
        new_recall, new_precision = found / n_positives, found / seen
        area += (new_recall - recall) * (precision + new_precision) / 2
        recall, precision = new_recall, new_precision
    assert average_precision(ranks_of(hits), n_positives) == pytest.approx(area)


@given(RANKINGS, st.integers(1, 40))
def test_lists_cut_at_k_match_loops(ranking, k):
    hits, missing = ranking
    n_positives = sum(hits) + missing
    ranks = ranks_of(hits)
    last = max(ranks, default=-1) + 1
    cut = min(last, k)
    assert precision_at(ranks, k) == (sum(hits[:cut]) / cut if cut else 0.0)
    assert recall_at(ranks, k) == float(any(hits[:k]))
    if n_positives:
        total = sum(sum(hits[: rank + 1]) / (rank + 1) for rank in ranks if rank < k)
        assert average_precision_at(ranks, n_positives, k) == pytest.approx(total / min(n_positives, k))
    else:
        assert math.isnan(average_precision_at(ranks, 0, k))


@given(st.permutations([0, 2, 3, 7, 11]))
def test_the_order_of_the_ranks_does_not_matter(ranks):
    ordered = sorted(ranks)
    assert average_precision(ranks, 6) == average_precision(ordered, 6)
    assert precision_at(ranks, 5) == precision_at(ordered, 5)
    assert average_precision_at(ranks, 6, 5) == average_precision_at(ordered, 6, 5)
    assert recall_at(ranks, 1) == 1.0


@pytest.mark.parametrize("ranks", [[-1], [3, 3], [0.5], [[0, 1]], ["a"]])
def test_impossible_ranks_are_refused(ranks):
    with pytest.raises(InputError, match="ranks"):
        average_precision(ranks, 4)


def test_more_ranks_than_positives_are_refused():
    with pytest.raises(InputError, match="n_positives: 1, but 2"):
        average_precision([0, 1], 1)


@pytest.mark.parametrize("k", [0, -1, 2.5, "5", True])
def test_k_must_be_a_list_length(k):
    with pytest.raises(InputError, match=r"^k: "):
        precision_at([0], k)
