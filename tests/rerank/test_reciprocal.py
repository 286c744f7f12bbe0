"""k-reciprocal encoding against the formulas of the paper, written out with sets and dense vectors."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gqe
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph
from gqe.rerank import reciprocal
from gqe.rerank.reciprocal import Reciprocal

CPU = torch.device("cpu")


class Literal:
    """The method as the module describes it, one item at a time."""

    def __init__(self, database: np.ndarray, graph: NeighborGraph, k1: int, k2: int, lam: float) -> None:
        self.database, self.graph = database.astype(np.float64), graph
        self.k1, self.k2, self.lam = k1, k2, lam
        self.raw = [self.encoded(self.database[i], self.sets(i, k1)) for i in range(len(database))]
        self.expanded = [self.average_rows([i, *self.near(i, k2 - 1)]) for i in range(len(database))]

    def near(self, i: int, k: int) -> list[int]:
        return [int(j) for j in self.graph.ids[i, :k] if j >= 0]

    def sets(self, i: int, k: int) -> set[int]:
        """R(i, k)."""
        return {i} | {j for j in self.near(i, k) if i in self.near(j, k)}

    def encoded(self, vector: np.ndarray, base: set[int]) -> np.ndarray:
        """V of a vector from its R(., k1)."""
        extended = set(base)
        for g in base:
            smaller = self.sets(g, self.k1 // 2)
            if len(base & smaller) >= 2 / 3 * len(smaller) - 1e-9:
                extended |= smaller
        encoded = np.zeros(len(self.database))
        for g in extended:
            encoded[g] = math.exp(-(1 - vector @ self.database[g]))
        return encoded / encoded.sum() if extended else encoded

    def average_rows(self, items: list[int]) -> np.ndarray:
        return np.mean([self.raw[i] for i in items], axis=0)

    def scores(self, query: np.ndarray, ids: np.ndarray, similarities: np.ndarray) -> list[float]:
        query = query.astype(np.float64)
        listed = [(int(i), s) for i, s in zip(ids, similarities, strict=True) if i >= 0]
        base = set()
        for g, similarity in listed[: self.k1]:
            neighbors = self.graph.similarities[g, : self.k1]
            nearer = sum(1 for other in neighbors if other > similarity)
            if nearer < self.k1:
                base.add(g)
        own = self.encoded(query, base)
        own = np.mean([own, *(self.raw[g] for g, _ in listed[: self.k2 - 1])], axis=0)
        result = []
        for g, similarity in listed:
            both = np.minimum(own, self.expanded[g]).sum() / np.maximum(own, self.expanded[g]).sum()
            result.append(1 - ((1 - self.lam) * (1 - both) + self.lam * (1 - similarity)))
        return result


def check(database, queries, graph, first, *, k1, k2, lam):
    """The scores of every item equal the literal ones, and the order follows from them."""
    method = Reciprocal(k1=k1, k2=k2, lam=lam).fit(torch.from_numpy(database), graph, device=CPU)
    result = method.rerank(torch.from_numpy(queries), first)
    expected = Literal(database, graph, k1, k2, lam)
    for row in range(len(queries)):
        listed = [int(i) for i in first.ids[row] if i >= 0]
        wanted = dict(
            zip(listed, expected.scores(queries[row], first.ids[row], first.similarities[row]), strict=True)
        )
        there = result.ids[row] >= 0
        assert sorted(result.ids[row][there].tolist()) == sorted(listed)
        assert result.scores[row][there] == pytest.approx(
            [wanted[i] for i in result.ids[row][there]], abs=1e-5
        )
        assert (np.diff(result.scores[row][there]) <= 0).all()


def shortened(lists: NeighborGraph, rng: np.random.Generator) -> NeighborGraph:
    """Cut lists at random places, some to nothing: items become isolated, the graph falls apart."""
    cut = np.arange(lists.k) >= rng.integers(0, lists.k + 1, size=(len(lists), 1))
    ids, similarities = lists.ids.copy(), lists.similarities.copy()
    ids[cut], similarities[cut] = -1, -np.inf
    return NeighborGraph(ids, similarities)


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 16),
    k1=st.integers(1, 20),
    k2=st.integers(1, 8),
    lam=st.sampled_from([0.0, 0.3, 1.0]),
    cut=st.booleans(),
    tied=st.booleans(),
)
def test_equals_the_formulas(seed, n, k1, k2, lam, cut, tied):
    rng = np.random.default_rng(seed)
    database, queries = rng.normal(size=(n, 3)), rng.normal(size=(3, 3))
    if tied:  # few directions: many duplicates and equal similarities
        database, queries = np.sign(database), np.sign(queries)
    database = (database / np.linalg.norm(database, axis=1, keepdims=True)).astype(np.float32)
    queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
    graph = gqe.knn(database, max(k1, k2 - 1))
    first = gqe.knn(database, int(rng.integers(1, 24)), queries=queries)
    if cut:
        graph, first = shortened(graph, rng), shortened(first, rng)
    check(database, queries, graph, first, k1=k1, k2=k2, lam=lam)


def test_equals_the_formulas_in_clusters(random_unit):
    rng = np.random.default_rng(0)
    centres = random_unit(6, 8)
    database = centres[rng.integers(6, size=150)] + 0.3 * rng.normal(size=(150, 8))
    queries = centres[rng.integers(6, size=10)] + 0.3 * rng.normal(size=(10, 8))
    database = (database / np.linalg.norm(database, axis=1, keepdims=True)).astype(np.float32)
    queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
    graph, first = gqe.knn(database, 20), gqe.knn(database, 150, queries=queries)
    check(database, queries, graph, first, k1=20, k2=6, lam=0.3)
    check(database, queries, graph, first, k1=9, k2=3, lam=0.1)


@pytest.mark.parametrize("k2", [1, 2, 4])
def test_a_query_that_nobody_would_have_as_a_neighbour(k2):
    # Two tight pairs; the query is far from both, so its own set is empty and its V sums to less than 1.
    database = np.array([[1, 0, 0], [0.99, 0.1, 0], [0, 1, 0], [0.1, 0.99, 0]])
    database = (database / np.linalg.norm(database, axis=1, keepdims=True)).astype(np.float32)
    queries = np.array([[0.48, 0.36, 0.8]], np.float32)
    first = gqe.knn(database, 4, queries=queries)
    check(database, queries, gqe.knn(database, 3), first, k1=1, k2=k2, lam=0.3)


def test_small_blocks_change_nothing(random_unit, monkeypatch):
    database, queries = torch.from_numpy(random_unit(90, 5)), torch.from_numpy(random_unit(7, 5, seed=1))
    graph, first = gqe.knn(database, 10), gqe.knn(database, 25, queries=queries)
    whole = Reciprocal(k1=10, k2=4).fit(database, graph, device=CPU).rerank(queries, first)
    monkeypatch.setattr(reciprocal, "_ROWS", 30)
    parts = Reciprocal(k1=10, k2=4).fit(database, graph, device=CPU).rerank(queries, first)
    assert (whole.ids == parts.ids).all()
    assert whole.scores == pytest.approx(parts.scores, abs=1e-6)


def test_a_graph_of_larger_k_serves_a_smaller_one(random_unit):
    database, queries = torch.from_numpy(random_unit(60, 4)), torch.from_numpy(random_unit(5, 4, seed=1))
    first = gqe.knn(database, 60, queries=queries)
    results = [
        Reciprocal(k1=6, k2=3).fit(database, gqe.knn(database, k), device=CPU).rerank(queries, first)
        for k in (6, 20)
    ]
    assert (results[0].ids == results[1].ids).all()
    assert (results[0].scores == results[1].scores).all()


def test_half_precision_is_computed_in_single(random_unit):
    database, queries = (
        torch.from_numpy(random_unit(60, 8)).half(),
        torch.from_numpy(random_unit(5, 8, seed=1)),
    )
    graph, first = gqe.knn(database, 8), gqe.knn(database, 60, queries=queries)
    check(database.float().numpy(), queries.numpy(), graph, first, k1=8, k2=3, lam=0.3)
    stored = Reciprocal(k1=8, k2=3).fit(database, graph, device=CPU).rerank(queries, first)
    single = Reciprocal(k1=8, k2=3).fit(database.float(), graph, device=CPU).rerank(queries, first)
    assert stored.scores == pytest.approx(single.scores, abs=1e-6)


def test_size_grows_with_the_items_alone(random_unit):
    sizes = []
    for n in (500, 1000):
        database = torch.from_numpy(random_unit(n, 6))
        sizes.append(Reciprocal().fit(database, gqe.knn(database, 20), device=CPU).size() / n)
    assert Reciprocal().size() == 0
    assert sizes[1] == pytest.approx(sizes[0], rel=0.2)
    assert sizes[1] < 8 * (20 + 40 + 4)


def test_no_queries(random_unit):
    database = torch.from_numpy(random_unit(5, 3))
    none = NeighborGraph(np.empty((0, 4), np.int64), np.empty((0, 4), np.float32))
    method = Reciprocal().fit(database, gqe.knn(database, 4), device=CPU)
    assert method.rerank(torch.empty(0, 3), none).ids.shape == (0, 4)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"k1": 0}, "k1"),
        ({"k2": 0}, "k2"),
        ({"k1": 2.5}, "k1"),
        ({"lam": -0.1}, "lam"),
        ({"lam": 1.1}, "lam"),
    ],
)
def test_refuses_bad_settings(settings, named):
    with pytest.raises(InputError, match=f"^{named}: "):
        Reciprocal(**settings)


def test_refuses_foreign_graphs_and_results(random_unit):
    database = torch.from_numpy(random_unit(30, 3))
    graph, first = gqe.knn(database, 20), gqe.knn(database, 5, queries=database[:2])
    with pytest.raises(InputError, match="fit"):
        Reciprocal().rerank(database[:2], first)
    with pytest.raises(InputError, match="holds 7 neighbours"):
        Reciprocal().fit(database, graph.truncate(7), device=CPU)
    with pytest.raises(InputError, match=r"^graph: "):
        Reciprocal().fit(database[:9], graph, device=CPU)
    with pytest.raises(InputError, match=r"^first: "):
        Reciprocal().fit(database, graph, device=CPU).rerank(database[:3], first)


def test_settings_and_example():
    assert Reciprocal(**Reciprocal(k1=7, k2=2, lam=0.5).settings()).settings() == {
        "k1": 7,
        "k2": 2,
        "lam": 0.5,
    }
    assert (Reciprocal().graph_k, Reciprocal(k1=2, k2=9).num_candidates) == (20, 8)
    assert repr(Reciprocal()) == "Reciprocal(k1=20, k2=6, lam=0.3)"
    assert doctest.testmod(reciprocal).failed == 0
