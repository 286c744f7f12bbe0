"""No expansion, AQE, AQEwD and αQE against plain arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

import gqe
from gqe import Expander
from gqe.aggregators import Alpha, Decay, Identity, Mean


def test_the_node_stays(random_unit):
    database, queries = random_unit(20, 6), random_unit(4, 6, seed=1)
    expander = Expander([Identity()]).fit(database)
    np.testing.assert_allclose(expander.expand(queries), queries, atol=1e-6)
    np.testing.assert_allclose(expander.augment(), database, atol=1e-6)
    assert expander.weights(queries).nnz == 0


def test_a_skipped_level_changes_nothing(random_unit):
    database, queries = random_unit(20, 6), random_unit(4, 6, seed=1)
    plain = gqe.expander("aqe", k=3).fit(database).expand(queries)
    for stack in ([Identity(), Mean(3)], [Mean(3), Identity()], [Identity(), Identity(), Mean(3)]):
        np.testing.assert_allclose(Expander(stack).fit(database).expand(queries), plain, atol=1e-6)


def test_it_asks_for_one_neighbour_by_default():
    assert repr(Identity()) == "Identity(k=1)"
    with pytest.raises(gqe.InputError, match="k: "):
        Identity(0)


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


def test_repr_of_mean():
    assert repr(Mean(k=10)) == "Mean(k=10)"
    assert repr(Mean(3, temperature=0.5)) == "Mean(k=3, temperature=0.5)"


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


def test_repr_of_decay():
    assert repr(Decay(8)) == "Decay(k=8)"


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


def test_repr_of_alpha():
    assert repr(Alpha(6, 1)) == "Alpha(k=6, alpha=1.0)"
