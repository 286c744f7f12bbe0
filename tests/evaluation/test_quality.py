"""Agreement and Diversity against a plain loop over the weights."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from gqe.errors import InputError
from gqe.evaluation import LabelGroundTruth, RevisitedGroundTruth, agreement_diversity

NAN = math.nan


def one_query(weights, relevant, junk=()) -> tuple[float, float, float]:
    """Give agreement, diversity and the negative share of one query, item by item."""
    kept = [i for i in range(len(weights)) if i not in junk]
    mass = sum(abs(weights[i]) for i in kept)
    negative = sum(-weights[i] for i in kept if weights[i] < 0) / mass if mass else NAN
    total = sum(max(weights[i], 0) for i in kept)
    if not relevant or total == 0:
        return NAN, NAN, negative
    same = [weights[i] for i in kept if i in relevant and weights[i] > 0]
    entropy = -sum(w / sum(same) * math.log(w / sum(same)) for w in same)
    return sum(same) / total, entropy, negative


WEIGHTS = hnp.arrays(
    np.float64,
    (3, 8),
    elements=st.one_of(st.just(0.0), st.floats(-1, 4).map(lambda weight: round(weight, 3))),
)


@given(WEIGHTS, hnp.arrays(np.int64, 8, elements=st.integers(-1, 2)))
def test_matches_the_loop_with_labels(weights, database_labels):
    query_labels = [0, 1, 5]
    quality = agreement_diversity(sparse.csr_matrix(weights), (query_labels, database_labels))
    for query, label in enumerate(query_labels):
        relevant = set(np.flatnonzero(database_labels == label))
        expected = one_query(weights[query], relevant)
        found = (quality.agreement[query], quality.diversity[query], quality.negative[query])
        assert found == pytest.approx(expected, nan_ok=True, abs=1e-12)


@given(WEIGHTS)
def test_matches_the_loop_with_revisited_junk(weights):
    truth = RevisitedGroundTruth([[0], [], []], [[3, 4], [1], []], [[2, 7], [], [5]], n=8)
    quality = agreement_diversity(weights, truth)
    for query in range(3):
        easy, hard, junk = (set(ids.tolist()) for ids in truth.groups(query))
        expected = one_query(weights[query], easy | hard, junk)
        found = (quality.agreement[query], quality.diversity[query], quality.negative[query])
        assert found == pytest.approx(expected, nan_ok=True, abs=1e-12)


@given(WEIGHTS, st.floats(0.01, 100))
def test_scale_and_database_order_do_not_matter(weights, scale):
    labels = np.array([0, 0, 1, 1, 0, -1, 0, 1])
    order = np.random.default_rng(0).permutation(8)
    first = agreement_diversity(weights, ([0, 1, 0], labels))
    other = agreement_diversity(weights[:, order] * scale, ([0, 1, 0], labels[order]))
    np.testing.assert_allclose(first.agreement, other.agreement, atol=1e-12)
    np.testing.assert_allclose(first.diversity, other.diversity, atol=1e-9)


def test_equal_weights_have_the_logarithm_of_their_number():
    quality = agreement_diversity([[1.0] * 6], ([0], [0, 0, 0, 0, 1, 1]))
    assert quality.mean_agreement == pytest.approx(4 / 6)
    assert quality.mean_diversity == pytest.approx(math.log(4))


def test_edge_queries():
    weights = np.array(
        [
            [1.0, 0.0, 3.0, 0.0],  # no relevant item in the database
            [0.0, 0.0, 0.0, 0.0],  # no weight
            [-1.0, -2.0, 0.0, 0.0],  # only negative weight
            [0.0, 0.0, 2.0, 2.0],  # relevant items exist but get no weight
            [3.0, 0.0, 0.0, -1.0],  # one relevant item
        ]
    )
    quality = agreement_diversity(weights, ([9, 0, 0, 0, 0], [0, 0, 1, -1]))
    np.testing.assert_array_equal(quality.agreement, [NAN, NAN, NAN, 0, 1])
    np.testing.assert_array_equal(quality.diversity, [NAN, NAN, NAN, 0, 0])
    np.testing.assert_array_equal(quality.negative, [0, NAN, 1, 0, 0.25])
    assert quality.queries == 2
    assert quality.mean_agreement == 0.5
    assert quality.to_dict() == {"agreement": 0.5, "diversity": 0.0, "negative": 0.3125, "queries": 2}


def test_nothing_to_average_is_none_in_json():
    quality = agreement_diversity(sparse.csr_array((2, 3)), LabelGroundTruth([0, 1], [0, 0, 1]))
    assert math.isnan(quality.mean_agreement)
    expected = {"agreement": None, "diversity": None, "negative": None, "queries": 0}
    assert json.loads(json.dumps(quality.to_dict(), allow_nan=False)) == expected
    assert "over 0 queries" in str(quality)
    assert agreement_diversity(np.zeros((0, 3)), []).queries == 0


def test_stored_zeros_and_entries_stored_twice_change_nothing():
    # Item 0 is stored twice (1 + 1), item 1 is a stored zero; relevance has a stored False, a doubled True.
    stored = sparse.csr_matrix(([1.0, 1.0, 0.0, 2.0], [0, 0, 1, 2], [0, 4]), shape=(1, 4))
    relevant = sparse.coo_matrix(([1, 1, 0], ([0, 0, 0], [0, 0, 2])), shape=(1, 4))
    quality = agreement_diversity(stored, relevant)
    assert quality.mean_agreement == 0.5
    assert quality.mean_diversity == 0.0
    signed = sparse.csr_matrix(([3.0, -1.0, 2.0], [0, 0, 1], [0, 3]), shape=(1, 2))
    assert agreement_diversity(signed, np.array([[True, False]])).mean_agreement == 0.5
    assert stored.nnz == 4, "the caller's matrix must stay as it was"


def test_relevance_may_be_dense():
    quality = agreement_diversity(np.eye(2), np.array([[True, False], [True, True]]))
    np.testing.assert_array_equal(quality.agreement, [1, 1])


@pytest.mark.parametrize(
    ("weights", "relevant", "message"),
    [
        ([[1.0, NAN]], ([0], [0, 0]), "weights: nan in row 0"),
        ([[0.0, 0.0], [0.0, math.inf]], ([0, 0], [0, 0]), "weights: inf in row 1"),
        ([1.0, 2.0], ([0], [0, 0]), "one row per query"),
        ([["a"]], ([0], [0]), "give numbers"),
        ([[1.0, 2.0]], np.ones((1, 3), bool), r"relevant: shape \(1, 3\)"),
        ([[1.0, 2.0]], np.array([["a", "b"]]), "relevant: expected true and false"),
        ([[1.0, 2.0]], ([0, 0], [0, 0]), "2 queries and 2 items"),
        ([[1.0, 2.0]], [{"easy": [5], "hard": [], "junk": []}], "has no item 5"),
    ],
)
def test_bad_input_is_refused(weights, relevant, message):
    with pytest.raises(InputError, match=message):
        agreement_diversity(weights, relevant)
