"""Learned aggregators, and what they know of a database, against Algorithm 2 written literally.

The tolerance is 1e-5 everywhere: float32 here, float64 there.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import gqe
import literal
from gqe import Expander
from gqe.aggregators import Affinity, Alpha, Attention, Jaccard, Mean
from literal_learned import Literal, adjust_for_noise

DIM = 8


def as_unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def world(n, *, copies=0, m=4, make=None):
    """Queries, a database with some rows twice, and ids to exclude; the second query equals an item.

    Of several seeds the first is taken that leaves no order of neighbours to rounding.
    """
    for seed in range(100):
        rng = np.random.default_rng(seed)
        vectors = rng.normal(size=(n + m, DIM)) + 0.3 if make is None else make(rng, n + m)
        queries, database = as_unit(vectors[:m]), as_unit(vectors[m:])
        for _ in range(copies):
            database[rng.integers(n)] = database[rng.integers(n)]
        queries[1] = database[n // 2]
        if literal.clearly_ranked(queries, database):
            return queries, database, [-1, n // 2, 0, n - 1]
    raise AssertionError("no seed gives a clear order")


def trained_looking(aggregator, seed=0):
    """With weights that are not the smooth ones of the start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in aggregator.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return aggregator.eval()


def attention(seed=0, k=5, **settings):
    torch.manual_seed(seed)
    return trained_looking(Attention(DIM, k, layers=2, heads=2, feedforward=12, **settings), seed)


def affinity(seed=0, k=6, **settings):
    torch.manual_seed(seed)
    return trained_looking(Affinity(k, width=16, layers=2, heads=2, **settings), seed)


STACKS = {
    "LAttQE": [attention()],
    "GQE": [attention(), attention(1, k=7)],
    "GQE, three levels": [attention(), attention(1), attention(2, k=3)],
    "pre-norm": [attention(norm_first=True), attention(1, norm_first=True, positions=12)],
    "clamped": [attention(clamp=True), attention(1, norm_first=True, clamp=True)],
    "tempered attention": [attention(temperature=0.3), attention(1, temperature=2.0)],
    "Jaccard": [Jaccard(6, weight=0.8)],
    "Jaccard, two levels": [Jaccard(9), Jaccard(5, temperature=0.5)],
    "Jaccard, three levels": [Jaccard(40), Jaccard(9), Jaccard(3, weight=2.0)],
    "Affinity": [affinity()],
    "Affinity, two levels": [affinity(), affinity(1, k=9, base=True)],
    "Affinity, three levels": [affinity(), affinity(1, base=True), affinity(2, k=40, base=True)],
    "tempered Affinity": [affinity(temperature=0.2), affinity(1, base=True, temperature=1.0)],
    "mixed": [Mean(3), affinity(base=True), attention()],
    "mixed too": [Jaccard(7), Alpha(4), affinity(k=4, base=True)],
    "universal": gqe.expander("universal").stack,
}
WORLDS = {
    "plain": {"n": 40},
    "three duplicates": {"n": 34, "copies": 3},
    "many duplicates": {"n": 40, "copies": 12},
    "fewer than K": {"n": 5},
    "fewer than three": {"n": 2},
    "one item": {"n": 1},
}


def along(queries, database, items, own):
    """The weights (m, n + 1) of items and query, scaled so that they sum up to a unit vector."""
    total = own[:, None] * queries + items @ database
    return np.column_stack([items, own]) / np.linalg.norm(total, axis=1, keepdims=True)


def check(expander, oracle, queries, exclude):
    """The expander, bound to the oracle's database, gives what the oracle gives."""
    database = oracle.database.astype(np.float32)
    expected, items, own = oracle.expand_all(queries, exclude)
    np.testing.assert_allclose(expander.expand(queries, exclude=exclude), expected, atol=1e-5)
    np.testing.assert_allclose(expander.augment(), oracle.levels[-1], atol=1e-5)
    found = expander.weights_and_own(queries, exclude=exclude)
    np.testing.assert_array_equal(found.own, own)
    np.testing.assert_allclose(
        along(queries, database, found.items.toarray(), found.own),
        along(queries, database, items, own),
        atol=1e-5,
    )


@functools.cache
def planted(circumstances):
    return world(**WORLDS[circumstances])


@functools.cache
def oracle_of(name, circumstances):
    return Literal(STACKS[name], planted(circumstances)[1])


@pytest.mark.parametrize("circumstances", WORLDS)
@pytest.mark.parametrize("name", STACKS)
def test_equals_the_literal_algorithm(name, circumstances):
    queries, database, exclude = planted(circumstances)
    expander = Expander(STACKS[name]).fit(database, device="cpu")
    oracle = oracle_of(name, circumstances)
    check(expander, oracle, queries, exclude)
    check(expander, oracle, queries, [-1] * len(queries))


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_missing_neighbours(stack):
    """A graph may know fewer neighbours of some items, or none."""
    queries, database, exclude = world(40)
    graph = gqe.knn(database, 40)
    for row, known in ((3, 0), (11, 2), (12, 7), (13, 8), (20, 20), (39, 31)):
        graph.ids[row, known:], graph.similarities[row, known:] = -1, -np.inf
    lists = [[int(i) for i in row if i >= 0] for row in graph.ids]
    check(
        Expander(stack).fit(database, graph, device="cpu"), Literal(stack, database, lists), queries, exclude
    )


@pytest.mark.parametrize("name", ["GQE", "Jaccard, two levels", "Affinity, three levels", "universal"])
@pytest.mark.parametrize("circumstances", ["many duplicates", "fewer than K"])
def test_an_index_equals_the_literal_algorithm(name, circumstances, tmp_path):
    stack = STACKS[name]
    queries, database, exclude = planted(circumstances)
    index = gqe.Index.build(database, Expander(stack), tmp_path / "index", dba=True, device="cpu")
    oracle = oracle_of(name, circumstances)
    expected, items, own = oracle.expand_all(queries, exclude)
    np.testing.assert_allclose(index.expand(queries, exclude=exclude), expected, atol=1e-5)
    found = index.weights(queries, exclude=exclude).toarray()
    np.testing.assert_allclose(
        along(queries, database, found, own), along(queries, database, items, own), atol=1e-5
    )
    k = min(10, len(database) - 1)
    for dba, table in ((False, oracle.database), (True, oracle.levels[-1])):
        scores = index.search(queries, k, exclude=exclude, dba=dba).scores
        products = expected @ table.T
        for row, left_out in enumerate(exclude):
            products[row, left_out if left_out >= 0 else []] = -np.inf
        np.testing.assert_allclose(scores, -np.sort(-products, axis=1)[:, :k], atol=1e-5)


def test_the_shipped_model_with_its_negatives(tmp_path):
    """In a database of more than 64 items, what lies beyond the neighbours is subtracted."""

    def classes(rng, n):
        return rng.normal(size=(10, DIM))[rng.integers(10, size=n)] + 0.5 * rng.normal(size=(n, DIM))

    queries, database, exclude = world(80, copies=4, make=classes)
    expander = gqe.expander("universal").fit(database, device="cpu")
    contrast = expander.query_options.contrast
    oracle = Literal(expander.stack, database)
    plain, _, _ = oracle.expand_all(queries, exclude)
    expected = np.array(
        [
            oracle.subtract_negatives(query, row, contrast, e)
            for query, row, e in zip(queries, plain, exclude, strict=True)
        ]
    )
    assert np.abs(expected - plain).max() > 0.01
    np.testing.assert_allclose(expander.expand(queries, exclude=exclude), expected, atol=1e-5)
    np.testing.assert_allclose(expander.augment(), oracle.levels[-1], atol=1e-5)
    index = gqe.Index.build(database, "universal", tmp_path / "index", device="cpu")
    np.testing.assert_allclose(index.expand(queries, exclude=exclude), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["Jaccard, two levels", "Affinity, two levels"])
def test_outliers_do_not_enter_the_background(name):
    """270 items in classes beside 60 that resemble nothing; the oracle reads the same neighbour lists."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(15, 32)) + 0.5
    related = centres[rng.integers(15, size=274)] + 0.4 * rng.normal(size=(274, 32))
    unrelated = rng.normal(size=(60, 32))
    queries, database = as_unit(related[:4]), as_unit(np.concatenate([related[4:], unrelated]))
    stack, graph = STACKS[name], gqe.knn(database, 40)
    oracle = Literal(stack, database, graph.ids.tolist())
    assert 256 <= len(oracle.chosen) < 290
    check(Expander(stack).fit(database, graph, device="cpu"), oracle, queries, [-1] * 4)


@pytest.mark.parametrize("name", ["Jaccard, two levels", "Affinity, two levels", "universal"])
def test_noise_narrows_the_background(name):
    def noisy(rng, n):
        classes = rng.normal(size=(8, 64))[rng.integers(8, size=n)]
        return classes + 0.7 * rng.normal(size=(n, 64))

    queries, database, exclude = world(60, make=noisy)
    stack = STACKS[name]
    oracle = Literal(stack, database)
    narrower = adjust_for_noise(oracle.backgrounds[:1], oracle.quantiles)[0, 1]
    assert narrower < 0.8 * oracle.backgrounds[0][1]
    check(Expander(stack).fit(database, device="cpu"), oracle, queries, exclude)


@pytest.mark.parametrize("name", ["LAttQE", "pre-norm", "GQE, three levels"])
def test_both_oracles_agree(name):
    """The sets of Algorithm 2 and its levels of all items say the same."""
    queries, database, exclude = world(20, copies=2)
    oracle = Literal(STACKS[name], database)
    expected, _, _ = oracle.expand_all(queries, exclude)

    def aggregated(aggregator, node, neighbors):
        i = next(i for i, level in enumerate(STACKS[name]) if level is aggregator)
        ids = [int(np.abs(oracle.levels[i] - row).sum(axis=1).argmin()) for row in neighbors]
        return oracle.aggregate(i, node, node, ids)[0]

    for query, omit, row in zip(queries, exclude, expected, strict=True):
        found = literal.algorithm_2(query, database, STACKS[name], omit, agg=aggregated)
        np.testing.assert_allclose(found, row, atol=1e-12)
