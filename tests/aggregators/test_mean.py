"""AQE."""

from __future__ import annotations

import numpy as np
import pytest

import gqe
from gqe.aggregators import Mean


@pytest.mark.parametrize("k", [1, 3, 10])
def test_the_mean_of_the_query_and_its_neighbours(random_unit, k):
    database, queries = random_unit(30, 6), random_unit(5, 6, seed=1)
    expanded = gqe.expander("aqe", k=k).fit(database).expand(queries)
    for query, result in zip(queries, expanded, strict=True):
        nearest = np.argsort(-(database @ query))[:k]
        mean = (query + database[nearest].sum(axis=0)) / (k + 1)
        np.testing.assert_allclose(result, mean / np.linalg.norm(mean), atol=1e-6)


def test_all_items_and_more_give_the_mean_of_all(random_unit):
    database, queries = random_unit(5, 6), random_unit(2, 6, seed=1)
    total = queries + database.sum(axis=0)
    expected = total / np.linalg.norm(total, axis=1, keepdims=True)
    np.testing.assert_allclose(gqe.expander("aqe", k=50).fit(database).expand(queries), expected, atol=1e-6)


def test_repr():
    assert repr(Mean(k=10)) == "Mean(k=10)"
    assert repr(Mean(3, temperature=0.5)) == "Mean(k=3, temperature=0.5)"
