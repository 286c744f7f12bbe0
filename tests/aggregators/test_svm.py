"""DQE."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

import gqe
from gqe.aggregators import Svm


def lists(random_unit, k, n=60, m=4, d=10):
    database, queries = random_unit(n, d), random_unit(m, d, seed=1)
    return database, queries, np.argsort(-(queries @ database.T), axis=1)[:, :k]


@pytest.mark.parametrize("c", [0.1, 1.0, 100.0])
def test_the_separator_of_the_top_against_the_end_of_the_list(random_unit, c):
    from sklearn.svm import SVC  # takes seconds to load

    database, queries, ranked = lists(random_unit, k=30)
    expanded = gqe.expander("dqe", k=30, positives=6, negatives=8, c=c).fit(database).expand(queries)
    for query, ids, result in zip(queries, ranked, expanded, strict=True):
        examples = np.concatenate([query[None], database[ids[:6]], database[ids[-8:]]]).astype(np.float64)
        labels = np.array([1] * 7 + [-1] * 8)
        separator = SVC(C=c, kernel="linear", tol=1e-10).fit(examples, labels).coef_[0]
        np.testing.assert_allclose(result, separator / np.linalg.norm(separator), atol=1e-5)


def test_it_is_the_minimum_of_the_svm_objective(random_unit):
    # Not libsvm against libsvm: the primal, |w|^2 / 2 + C sum of hinge losses, is no lower anywhere near.
    database, queries, ranked = lists(random_unit, k=12, m=1, d=4)
    aggregator = Svm(12, positives=3, negatives=4, c=2.0)
    examples = np.concatenate([queries[:1], database[ranked[0, :3]], database[ranked[0, -4:]]]).astype(
        np.float64
    )
    labels = np.array([1] * 4 + [-1] * 4)
    items, own = gqe.Expander([aggregator]).fit(database).weights_and_own(queries)
    direction = own[0] * queries[0] + items.toarray()[0] @ database

    def objective(parameters):
        w, b = parameters[:-1], parameters[-1]
        return w @ w / 2 + 2.0 * np.maximum(0, 1 - labels * (examples @ w + b)).sum()

    def at_best_bias(scale):
        # For a given w the objective is straight lines in b, which meet where a margin is 1.
        w = scale * direction
        return min(objective(np.r_[w, b]) for b in labels - examples @ w)

    # Weights are scaled so that the node has 1; the objective knows how long w is.
    scale = minimize_scalar(at_best_bias, bounds=(0, 10), method="bounded", options={"xatol": 1e-9}).x
    start = np.r_[scale * direction, 0.0]
    options = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 9999}
    found = [
        minimize(objective, start, method="Powell", options={"ftol": 1e-12}).fun,
        minimize(objective, start, method="Nelder-Mead", options=options).fun,
        minimize(objective, np.zeros(5), method="Powell", options={"ftol": 1e-12}).fun,
    ]
    assert at_best_bias(scale) <= min(found) + 1e-6
    aside = np.array([0.01, -0.01, 0.01, 0.01])
    assert at_best_bias(scale) < min(objective(np.r_[start[:-1] + aside, b]) for b in np.linspace(-3, 3, 601))


def test_weights_are_positive_at_the_top_negative_at_the_end_and_zero_between(random_unit):
    database, queries, ranked = lists(random_unit, k=30)
    items, own = gqe.expander("dqe", k=30, positives=6, negatives=8).fit(database).weights_and_own(queries)
    weights = np.take_along_axis(items.toarray(), ranked, axis=1)
    assert (weights[:, :6] >= 0).all()
    assert (weights[:, 6:22] == 0).all()
    assert (weights[:, 22:] <= 0).all()
    assert (weights < 0).any(axis=1).all()
    assert set(own.tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize(("n", "k"), [(0, 10), (1, 10), (4, 10), (60, 4)])
def test_a_list_too_short_for_negatives_is_the_mean(random_unit, n, k):
    database, queries = random_unit(n, 10), random_unit(3, 10, seed=1)
    expanded = gqe.expander("dqe", k=k, positives=4, negatives=3).fit(database).expand(queries)
    mean = gqe.expander("aqe", k=k).fit(database).expand(queries)
    np.testing.assert_allclose(expanded, mean, atol=1e-6)


def test_a_list_with_room_for_fewer_negatives_uses_those(random_unit):
    database, queries, _ = lists(random_unit, k=5)
    expander = gqe.expander("dqe", k=5, positives=4, negatives=20).fit(database)
    assert ((expander.weights(queries).toarray() < 0).sum(axis=1) == 1).all()


def test_identical_positives_and_negatives_leave_the_query(random_unit):
    # No separator exists: the weights cancel each other exactly.
    database = np.repeat(random_unit(1, 10), 30, axis=0)
    expanded = gqe.expander("dqe", k=30, positives=4, negatives=5).fit(database).expand(database[:2])
    np.testing.assert_allclose(expanded, database[:2], atol=1e-6)


def test_repr_and_settings():
    assert repr(Svm(30, 5, 6, 2)) == "Svm(k=30, positives=5, negatives=6, c=2.0)"
    with pytest.raises(gqe.InputError, match="c: expected a finite number above 0, got -1"):
        Svm(c=-1)
