"""Rounds: expanded queries expanded again, and the weights through all of them."""

from __future__ import annotations

import numpy as np
import pytest

import gqe


@pytest.fixture
def world(random_unit):
    return random_unit(5, 8, seed=1), random_unit(40, 8)


@pytest.mark.parametrize("name", ["aqe", "alpha-g", "dqe", "universal"])
@pytest.mark.parametrize("rounds", [2, 3])
def test_rounds_expand_what_was_expanded(world, name, rounds):
    queries, database = world
    once = gqe.expander(name, k=3 if name != "dqe" else 12).fit(database)
    expected = queries
    for _ in range(rounds):
        expected = once.expand(expected, exclude=[-1, 4, -1, 7, -1])
    again = gqe.expander(name, k=once.stack[0].k, rounds=rounds).fit(database)
    found = again.expand(queries, exclude=[-1, 4, -1, 7, -1])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(
        again.search(queries, 9).ids, once.search(once_less(once, queries, rounds), 9).ids
    )
    weights = again.weights_and_own(queries, exclude=[-1, 4, -1, 7, -1])
    sums = weights.own[:, None] * queries + weights.items @ database
    np.testing.assert_allclose(sums / np.linalg.norm(sums, axis=1, keepdims=True), expected, atol=2e-5)


def once_less(expander, queries, rounds):
    """Queries after all rounds but the last."""
    for _ in range(rounds - 1):
        queries = expander.expand(queries)
    return queries


def test_rounds_of_half_precision_vectors_and_of_none(world):
    queries, database = world
    again = gqe.expander("aqe", k=3, rounds=2).fit(database.astype(np.float16))
    sums = queries + again.weights(queries.astype(np.float16)) @ database
    found = again.expand(queries.astype(np.float16))
    np.testing.assert_allclose(sums / np.linalg.norm(sums, axis=1, keepdims=True), found, atol=2e-3)
    assert again.expand(queries[:0]).shape == (0, 8)
    assert again.weights(queries[:0]).shape == (0, 40)


def test_swapped_database_and_queries_are_warned_of_once(tmp_path, caplog):
    rng = np.random.default_rng(0)
    many, few = rng.normal(size=(700, 4)), rng.normal(size=(33, 4))
    swapped = gqe.expander("aqe", k=3).fit(few)
    for _ in range(2):
        swapped.search(many, 2)
    (record,) = caplog.records
    assert "700 queries for a database of 33 items: were they swapped?" in record.message
    caplog.clear()
    # As it should be, a batch that is somewhat larger, and a few prototypes.
    for database, queries in ((many, few), (few, many[:600]), (few[:10], many)):
        gqe.expander("aqe", k=3).fit(database).search(queries, 2)
    files = {}
    for name, rows in (
        ("my_queries", few[:5]),
        ("other", many[:9]),
        ("gallery", many[:9]),
        ("base", few[:5]),
    ):
        np.save(tmp_path / f"{name}.npy", rows)
        files[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    gqe.expander("aqe", k=3).fit(files["base"]).search(files["other"], 2)
    gqe.expander("aqe", k=3).fit(files["gallery"]).search(files["my_queries"], 2)
    assert not caplog.records
    for database, queries in (("my_queries", "other"), ("base", "gallery")):
        gqe.expander("aqe", k=3).fit(files[database]).expand(files[queries])
    assert len(caplog.records) == 2
