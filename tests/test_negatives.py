"""Contrast: what an expanded query loses of its surroundings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gqe
from gqe.model_files import load_model
from gqe.query_options import NEGATIVE_RANKS

FIRST, LAST = NEGATIVE_RANKS


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def clouds(size, spread, *, classes, dim=8):
    """(size, dim) unit vectors around some centres, a class after the other, and 5 queries near the first."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, dim))
    of = np.arange(size) * classes // max(size, 1)
    database = unit(centres[of] + spread * rng.normal(size=(size, dim)))
    return unit(centres[:5] + spread * rng.normal(size=(min(classes, 5), dim))), database


def naive(queries, expanded, database, contrast, exclude=None):
    """One query at a time, by hand."""
    result = []
    for i, (query, new) in enumerate(zip(queries, expanded, strict=True)):
        order = np.argsort(-(database @ query), kind="stable")
        if exclude is not None:
            order = order[order != exclude[i]]
        near, around = database[order[:8]], database[order[FIRST:LAST]]
        told = new
        if len(around):
            within = np.mean([a @ b for i, a in enumerate(near) for b in near[:i]])
            gap = (within - np.mean(near @ around.T)) / (1 - within)
            told = new - contrast * np.clip((gap - 0.3) / 0.3, 0, 1) * around.mean(axis=0)
        result.append(told / np.linalg.norm(told))
    return np.array(result)


@pytest.mark.parametrize("name", ["aqe", "alpha-g", "dqe", "universal"])
@pytest.mark.parametrize("size", [30, FIRST, 90, 400])
@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_the_mean_of_the_surroundings_is_taken_away(name, size, spread):
    queries, database = clouds(size, spread, classes=10)
    exclude = [-1, 4, -1, 7, -1]
    plain = gqe.expander(name, k=12, contrast=0).fit(database)
    told = gqe.expander(name, k=12, contrast=0.3).fit(database)
    expected = naive(queries, plain.expand(queries, exclude=exclude), database, 0.3, exclude)
    np.testing.assert_allclose(told.expand(queries, exclude=exclude), expected, atol=1e-5)
    moved = np.abs(expected - plain.expand(queries, exclude=exclude)).max()
    assert (moved > 0.01) == (size > FIRST)
    np.testing.assert_array_equal(told.augment(), plain.augment())  # the database keeps its surroundings
    weights = told.weights_and_own(queries, exclude=exclude)
    sums = weights.own[:, None] * queries + weights.items @ database
    np.testing.assert_allclose(sums / np.linalg.norm(sums, axis=1, keepdims=True), expected, atol=2e-5)


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 300), st.integers(1, 4))
def test_what_comes_out_has_unit_length(contrast, size, seed):
    rng = np.random.default_rng(seed)
    database, queries = rng.normal(size=(size, 3)), rng.normal(size=(2, 3))
    expanded = gqe.expander("aqe", k=2, contrast=contrast).fit(database.astype(np.float32)).expand(queries)
    np.testing.assert_allclose(np.linalg.norm(expanded, axis=1), 1, atol=1e-5)


def test_equal_surroundings_change_nothing():
    database = np.tile(np.float32([[1, 0, 0]]), (LAST + 10, 1))
    query = np.float32([[1, 0, 0]])
    expanded = gqe.expander("aqe", k=3, contrast=0.9).fit(database).expand(query)
    np.testing.assert_allclose(expanded, query, atol=1e-6)


def test_a_class_of_hundreds_is_not_its_own_surroundings():
    queries, database = clouds(2000, 0.8, classes=4, dim=32)
    plain, told = (gqe.expander("aqe", k=8, contrast=c).fit(database).expand(queries) for c in (0, 0.5))
    np.testing.assert_allclose(told, plain, atol=0.02)


def test_of_several_rounds_the_last_takes_away():
    queries, database = clouds(250, 0.4, classes=10)
    once = gqe.expander("aqe", k=3).fit(database)
    first = once.expand(queries)
    expected = naive(first, once.expand(first), database, 0.4)
    again = gqe.expander("aqe", k=3, contrast=0.4, rounds=2).fit(database)
    np.testing.assert_allclose(again.expand(queries), expected, atol=1e-5)
    sums = queries + again.weights(queries) @ database
    np.testing.assert_allclose(sums / np.linalg.norm(sums, axis=1, keepdims=True), expected, atol=2e-5)


def test_a_model_keeps_it(tmp_path):
    queries, database = clouds(200, 0.4, classes=10)
    made = gqe.expander("universal", contrast=0.25).fit(database)
    made.save_pretrained(tmp_path / "model")
    assert load_model(tmp_path / "model").query_options.contrast == 0.25
    assert "contrast 0.25" in (tmp_path / "model" / "README.md").read_text()
    loaded = gqe.Expander.from_pretrained(tmp_path / "model")
    assert loaded.query_options.contrast == 0.25
    np.testing.assert_allclose(loaded.fit(database).expand(queries), made.expand(queries), atol=1e-6)
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace('"contrast": 0.25', '"contrast": 7'))
    with pytest.raises(gqe.InputError, match=r"config\.json: contrast: expected a number of at least 0"):
        load_model(tmp_path / "model")


def test_the_shipped_model_has_some():
    assert gqe.expander("universal").query_options.contrast == 0.4
    assert gqe.expander("universal", contrast=0).query_options.contrast == 0
    assert gqe.expander("universal", untrained=1).query_options.contrast == 0.4
    assert gqe.expander("aqe").query_options.contrast == 0
