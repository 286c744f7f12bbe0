"""Positions of items: counted from sorted values, against the plain stable argsort."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gqe.errors import InputError
from gqe.evaluation import LabelGroundTruth, RevisitedGroundTruth
from gqe.evaluation.protocol import RankPositions


def any_truth(queries: int, n: int | None) -> RevisitedGroundTruth:
    return RevisitedGroundTruth([[]] * queries, [[]] * queries, [[]] * queries, n=n)


# Few distinct values, so that ties are common; infinities rank like any number.
SCORE_VALUES = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 0.25, 0.5, 3.0, np.inf])


@given(st.data(), st.sampled_from([np.float16, np.float32, np.float64]))
def test_positions_by_score_equal_the_stable_descending_sort(data, dtype):
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(0, 12)))
    scores = data.draw(hnp.arrays(dtype, shape, elements=SCORE_VALUES))
    ranking = RankPositions(scores, any_truth(*shape))
    for query in range(shape[0]):
        order = sorted(range(shape[1]), key=lambda item: (-scores[query, item], item))
        items = np.array(data.draw(st.permutations(range(shape[1]))), dtype=np.int64)[: shape[1] // 2 + 1]
        assert ranking.positions(query, items).tolist() == [order.index(item) for item in items]


@given(st.data(), st.sampled_from([np.int8, np.int64, np.uint16, np.uint64]))
def test_positions_by_id_are_indices_in_the_row(data, dtype):
    row = data.draw(st.lists(st.integers(0, 15), unique=True, max_size=12))
    items = data.draw(st.lists(st.integers(0, 15), unique=True))
    ranking = RankPositions(
        np.array([row], dtype=dtype), any_truth(1, data.draw(st.sampled_from([16, None])))
    )
    expected = [row.index(item) if item in row else -1 for item in items]
    assert ranking.positions(0, np.array(items, dtype=np.int64)).tolist() == expected


def test_minus_one_is_no_item_wherever_it_stands():
    ranking = RankPositions(np.array([[-1, 4, -1, 2, -1]]), any_truth(1, 5))
    assert ranking.positions(0, np.array([2, 4, 3])).tolist() == [1, 0, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_are_read(dtype):
    scores = torch.tensor([[0.5, 2.0, 1.0]], dtype=dtype, requires_grad=True)
    assert RankPositions(scores, any_truth(1, 3)).positions(0, np.arange(3)).tolist() == [2, 0, 1]
    ids = torch.tensor([[1, 2, 0]])
    assert RankPositions(ids, any_truth(1, 3)).positions(0, np.arange(3)).tolist() == [2, 0, 1]


def test_scores_are_neither_copied_nor_changed():
    scores = np.random.default_rng(0).random((2, 50))
    before = scores.copy()
    ranking = RankPositions(scores, any_truth(2, 50))
    ranking.positions(1, np.arange(50))
    assert np.shares_memory(ranking.rows, scores)
    np.testing.assert_array_equal(scores, before)


def test_nan_is_refused_by_row_and_column():
    scores = np.zeros((3, 4))
    scores[1, 2] = np.nan
    with pytest.raises(InputError, match="scores: NaN in row 1, column 2"):
        RankPositions(scores, any_truth(3, 4)).positions(1, np.array([0]))


@pytest.mark.parametrize(
    ("row", "n", "message"),
    [
        ([0, 3, 0], 5, "row 0 names item 0 twice"),
        ([0, 5], 5, "row 0 names item 5; ids are below 5"),
        ([0, -2], 5, "row 0 names item -2"),
        ([7, -2], None, "row 0 names item -2; ids are 0 or more"),
    ],
)
def test_bad_ids_are_refused(row, n, message):
    with pytest.raises(InputError, match=message):
        RankPositions(np.array([row]), any_truth(1, n)).positions(0, np.array([0]))


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_a_transposed_array_is_recognised(dtype):
    with pytest.raises(InputError, match=r"looks transposed.*\.T"):
        RankPositions(np.zeros((20, 3), dtype=dtype), any_truth(3, 20))
    with pytest.raises(InputError, match="looks transposed"):
        RankPositions(np.zeros((20, 3), dtype=dtype), any_truth(3, None))


def test_wrong_shapes_are_refused():
    with pytest.raises(InputError, match="4 rows for 3 queries; give one row per query"):
        RankPositions(np.zeros((4, 20)), any_truth(3, 20))
    with pytest.raises(InputError, match="two dimensions"):
        RankPositions(np.zeros(20), any_truth(1, 20))
    with pytest.raises(InputError, match="rows of equal length"):
        RankPositions([[1, 2], [3]], any_truth(2, 20))
    with pytest.raises(InputError, match="10 columns for a database of 20 items"):
        RankPositions(np.zeros((3, 10)), any_truth(3, 20))


def test_extra_columns_are_taken_for_distractors_only_when_said():
    scores = np.zeros((3, 25))
    with pytest.raises(InputError, match=r"with_distractors\(5\)"):
        RankPositions(scores, any_truth(3, 20))
    RankPositions(scores, any_truth(3, 20).with_distractors(5))
    with pytest.raises(InputError, match=r"^(?!.*distractors)"):
        RankPositions(scores, LabelGroundTruth(np.zeros(3, int), np.zeros(20, int)))


def test_scores_too_narrow_for_an_open_ground_truth_are_refused():
    truth = RevisitedGroundTruth([[9]], [[]], [[]])
    with pytest.raises(InputError, match="ground truth of query 0 names item 9"):
        RankPositions(np.zeros((1, 5)), truth).positions(0, np.array([9]))


@pytest.mark.parametrize("value", [np.zeros((1, 2), bool), [["a", "b"]], np.zeros((1, 2), complex), None])
def test_other_types_are_refused(value):
    with pytest.raises(InputError, match="scores_or_ranking: dtype"):
        RankPositions(value, any_truth(1, 2))
