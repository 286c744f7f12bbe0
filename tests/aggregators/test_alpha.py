"""αQE."""

from __future__ import annotations

import numpy as np
import pytest

import gqe
from gqe.aggregators import Alpha


@pytest.mark.parametrize("alpha", [0.5, 1, 3, 10])
def test_weights_are_powers_of_the_cosine(random_unit, alpha):
    database, queries = random_unit(30, 6), random_unit(5, 6, seed=1)
    expanded = gqe.expander("alpha", k=7, alpha=alpha).fit(database).expand(queries)
    for query, result in zip(queries, expanded, strict=True):
        nearest = np.argsort(-(database @ query))[:7]
        total = query.copy()
        for item in nearest:
            total += max(0, database[item] @ query) ** alpha * database[item]
        np.testing.assert_allclose(result, total / np.linalg.norm(total), atol=1e-6)


def test_alpha_zero_is_aqe_whatever_the_sign_of_the_cosines(random_unit):
    database, queries = random_unit(12, 6), random_unit(5, 6, seed=1)
    assert (queries @ database.T < 0).any()
    mean = gqe.expander("aqe", k=12).fit(database).expand(queries)
    zero = gqe.expander("alpha", k=12, alpha=0).fit(database).expand(queries)
    np.testing.assert_allclose(zero, mean, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.5, 1, 2, 3])
def test_a_negative_cosine_counts_as_nothing(alpha):
    database = np.array([[-1.0, 0.1], [-0.5, -1.0]])
    query = np.array([[1.0, 0.0]])
    expander = gqe.expander("alpha", k=2, alpha=alpha).fit(database)
    np.testing.assert_allclose(expander.expand(query), query, atol=1e-6)
    assert expander.weights(query).nnz == 0


def test_a_query_equal_to_an_item_gives_it_weight_one(random_unit):
    database = random_unit(20, 6)
    weights = gqe.expander("alpha", k=3, alpha=3).fit(database).weights(database[[4]]).toarray()[0]
    assert weights[4] == pytest.approx(1, abs=1e-6)
    assert weights.argmax() == 4


def test_a_large_alpha_listens_to_nobody_but_duplicates(random_unit):
    database, queries = random_unit(20, 6), random_unit(3, 6, seed=1)
    expanded = gqe.expander("alpha", k=5, alpha=1e6).fit(database).expand(queries)
    np.testing.assert_allclose(expanded, queries, atol=1e-6)


def test_repr():
    assert repr(Alpha(6, 1)) == "Alpha(k=6, alpha=1.0)"
