"""Approximate neighbours reach the recall that was asked for, and say so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gqe
from gqe.neighbors import inverted_file
from gqe.neighbors.candidates import exact_engine

N, D, K = 25_000, 32, 20


@pytest.fixture(scope="module")
def clustered():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, D))[rng.integers(500, size=N)] + rng.normal(size=(N, D))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def exact(clustered):
    return gqe.knn(clustered, K)


def recall_of(graph, exact):
    return np.mean([len(set(a) & set(b)) / K for a, b in zip(graph.ids, exact.ids, strict=True)])


@pytest.mark.parametrize("wanted", [0.7, 0.95])
def test_the_recall_asked_for_is_reached(clustered, exact, wanted):
    graph = gqe.knn(clustered, K, recall=wanted)
    reached = recall_of(graph, exact)
    assert graph.recall >= wanted
    assert reached >= wanted
    assert reached < 1  # it was not the exact search in disguise
    assert graph.recall == pytest.approx(reached, abs=0.05)
    assert exact.recall is None


def test_what_is_found_is_ranked_like_an_exact_answer(clustered):
    graph = gqe.knn(clustered, K, recall=0.6)
    cosines = np.einsum("nkd,nd->nk", clustered[graph.ids], clustered)
    np.testing.assert_allclose(graph.similarities, cosines, atol=1e-6)
    assert (np.diff(graph.similarities, axis=1) <= 0).all()
    assert not (graph.ids == np.arange(N)[:, None]).any()
    assert all(len(set(row)) == K for row in graph.ids[:500].tolist())


def test_the_same_seed_gives_the_same_graph(clustered):
    first, again, other = (gqe.knn(clustered, 5, recall=0.6, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.ids, again.ids)
    np.testing.assert_array_equal(first.similarities, again.similarities)
    assert first.recall == again.recall
    assert (first.ids != other.ids).any()


def test_the_largest_seed(clustered):
    small = torch.from_numpy(clustered[:2000])
    assert inverted_file.build_inverted_file(small, "Flat", 2**31 - 1).ntotal == 2000


def test_a_small_database_and_few_queries_are_searched_exactly(clustered, exact):
    assert gqe.knn(clustered[:1000], 5, recall=0.5).recall is None
    found = gqe.knn(clustered, K, queries=clustered[:50], exclude=np.arange(50), recall=0.5)
    assert found.recall is None
    np.testing.assert_array_equal(found.ids, exact.ids[:50])
    assert gqe.knn(clustered[:1000], 5, recall=1).recall is None


def test_a_recall_of_one_is_the_exact_search(clustered):
    table = torch.from_numpy(clustered)
    assert inverted_file.inverted_file_engine(table, table, K, 1.0, exact_engine(table), 0) is None


def test_half_precision(clustered, exact):
    graph = gqe.knn(clustered.astype(np.float16), K, recall=0.7)
    assert recall_of(graph, exact) > 0.68  # against the neighbours before rounding
