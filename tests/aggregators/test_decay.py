"""AQEwD."""

from __future__ import annotations

import numpy as np
import pytest

import gqe
from gqe.aggregators import Decay


@pytest.mark.parametrize("k", [1, 2, 8])
def test_weights_fall_with_the_rank(random_unit, k):
    database, queries = random_unit(30, 6), random_unit(5, 6, seed=1)
    expanded = gqe.expander("aqewd", k=k).fit(database).expand(queries)
    for query, result in zip(queries, expanded, strict=True):
        nearest = np.argsort(-(database @ query))[:k]
        total = query.copy()
        for i, item in enumerate(nearest, start=1):
            total += (k - i) / k * database[item]
        np.testing.assert_allclose(result, total / np.linalg.norm(total), atol=1e-6)


def test_a_single_neighbour_has_weight_zero(random_unit):
    queries = random_unit(3, 6, seed=1)
    expander = gqe.expander("aqewd", k=1).fit(random_unit(9, 6))
    np.testing.assert_allclose(expander.expand(queries), queries, atol=1e-6)
    assert expander.weights(queries).nnz == 0


def test_k_counts_even_where_there_are_fewer_items(random_unit):
    queries, database = random_unit(1, 6, seed=1), random_unit(2, 6)
    weights = gqe.expander("aqewd", k=8).fit(database).weights(queries).toarray()[0]
    assert sorted(weights.tolist()) == pytest.approx([6 / 8, 7 / 8])


def test_repr():
    assert repr(Decay(8)) == "Decay(k=8)"
