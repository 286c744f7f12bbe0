"""SuperGlobal's re-ranking against its formulas, one result at a time."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gqe
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph
from gqe.rerank import base, superglobal
from gqe.rerank.superglobal import SuperGlobal

CPU = torch.device("cpu")
UNUSED = NeighborGraph(np.empty((0, 0), np.int64), np.empty((0, 0), np.float32))


def literal(query: np.ndarray, results: list[np.ndarray], k: int, beta: float) -> list[float]:
    """The final scores of the first M results (M, d), in their order."""
    refined = []
    for i, own in enumerate(results):
        others = sorted((j for j in range(len(results)) if j != i), key=lambda j: (-(own @ results[j]), j))
        total, weight = own.copy(), 1.0
        for j in others[:k]:
            similarity = max(own @ results[j], 0.0)
            total = total + beta * similarity * results[j]
            weight += beta * similarity
        refined.append(total / weight)
    first = [float(query @ x) for x in refined]
    # Rounded, since what is tied must not be told apart by rounding errors.
    best = sorted(range(len(results)), key=lambda i: (-round(first[i], 9), i))[: k + 1]
    expanded = np.max([refined[i] for i in best], axis=0) if best else np.zeros_like(query)
    return [(s + float(expanded @ x)) / 2 for s, x in zip(first, refined, strict=True)]


def check(database, queries, first, *, m, k, beta):
    method = SuperGlobal(m=m, k=k, beta=beta).fit(torch.from_numpy(database), UNUSED, device=CPU)
    result = method.rerank(torch.from_numpy(queries), first)
    for row in range(len(queries)):
        listed = [int(i) for i in first.ids[row, :m] if i >= 0]
        behind = [int(i) for i in first.ids[row, m:] if i >= 0]
        vectors = [database[i].astype(np.float64) for i in listed]
        wanted = dict(zip(listed, literal(queries[row].astype(np.float64), vectors, k, beta), strict=True))
        ranked = result.ids[row][result.ids[row] >= 0].tolist()
        assert sorted(ranked[: len(listed)]) == sorted(listed)
        assert ranked[len(listed) :] == behind
        expected = [wanted[i] for i in ranked[: len(listed)]]
        assert result.scores[row, : len(listed)] == pytest.approx(expected, abs=1e-5)
        assert (np.diff(result.scores[row, : len(ranked)]) <= 0).all()


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def shortened(lists: NeighborGraph, rng: np.random.Generator) -> NeighborGraph:
    cut = np.arange(lists.k) >= rng.integers(0, lists.k + 1, size=(len(lists), 1))
    ids, similarities = lists.ids.copy(), lists.similarities.copy()
    ids[cut], similarities[cut] = -1, -np.inf
    return NeighborGraph(ids, similarities)


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 20),
    width=st.integers(1, 24),
    m=st.integers(1, 24),
    k=st.integers(1, 24),
    beta=st.sampled_from([0.0, 0.15, 1.0]),
)
def test_equals_the_formulas(seed, n, width, m, k, beta):
    rng = np.random.default_rng(seed)
    database, queries = unit(rng.normal(size=(n, 6))), unit(rng.normal(size=(4, 6)))
    first = shortened(gqe.knn(database, width, queries=queries), rng)
    check(database, queries, first, m=m, k=k, beta=beta)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), k=st.integers(1, 8))
def test_equals_the_formulas_where_all_is_tied(seed, n, k):
    # Vectors of halves: every cosine is exact, and there are duplicates of everything.
    rng = np.random.default_rng(seed)
    database, queries = (rng.choice([-0.5, 0.5], size=(size, 4)).astype(np.float32) for size in (n, 4))
    first = gqe.knn(database, n, queries=queries)
    check(database, queries, first, m=12, k=k, beta=0.25)


def test_equals_the_formulas_at_the_usual_size(random_unit):
    database, queries = random_unit(500, 16), random_unit(3, 16, seed=1)
    check(database, queries, gqe.knn(database, 450, queries=queries), m=400, k=9, beta=0.15)


def test_does_not_depend_on_the_batch(random_unit, monkeypatch):
    database, queries = torch.from_numpy(random_unit(80, 8)), torch.from_numpy(random_unit(6, 8, seed=1))
    first = gqe.knn(database, 40, queries=queries)
    method = SuperGlobal(m=30).fit(database, UNUSED, device=CPU)
    together = method.rerank(queries, first)
    monkeypatch.setattr(base, "blocks", lambda n, size: (slice(i, i + 1) for i in range(n)))
    alone = method.rerank(queries, first)
    assert (together.ids == alone.ids).all()
    assert together.scores == pytest.approx(alone.scores, abs=1e-6)


def test_half_precision_is_computed_in_single(random_unit):
    database, queries = (
        torch.from_numpy(random_unit(60, 8)).half(),
        torch.from_numpy(random_unit(5, 8, seed=1)),
    )
    first = gqe.knn(database, 60, queries=queries)
    stored = SuperGlobal(m=30).fit(database, UNUSED, device=CPU).rerank(queries, first)
    single = SuperGlobal(m=30).fit(database.float(), UNUSED, device=CPU).rerank(queries, first)
    assert (stored.ids == single.ids).all()
    assert (stored.scores == single.scores).all()


def test_no_queries(random_unit):
    none = NeighborGraph(np.empty((0, 4), np.int64), np.empty((0, 4), np.float32))
    method = SuperGlobal().fit(torch.from_numpy(random_unit(5, 3)), UNUSED, device=CPU)
    assert method.rerank(torch.empty(0, 3), none).ids.shape == (0, 4)


@pytest.mark.parametrize(
    ("settings", "named"), [({"m": 0}, "m"), ({"k": 0}, "k"), ({"k": True}, "k"), ({"beta": -1.0}, "beta")]
)
def test_refuses_bad_settings(settings, named):
    with pytest.raises(InputError, match=f"^{named}: "):
        SuperGlobal(**settings)


def test_refuses_foreign_results(random_unit):
    database = torch.from_numpy(random_unit(9, 3))
    first = gqe.knn(database, 5, queries=database[:2])
    with pytest.raises(InputError, match="fit"):
        SuperGlobal().rerank(database[:2], first)
    with pytest.raises(InputError, match="outside"):
        SuperGlobal().fit(database[:2], UNUSED, device=CPU).rerank(database[:2], first)
    with pytest.raises(InputError, match=r"^first: "):
        SuperGlobal().fit(database, UNUSED, device=CPU).rerank(database[:3], first)


def test_settings_and_example():
    made = SuperGlobal(m=7, k=2, beta=0.5)
    assert SuperGlobal(**made.settings()).settings() == {"m": 7, "k": 2, "beta": 0.5}
    assert (made.graph_k, made.num_candidates, made.size()) == (0, 7, 0)
    assert repr(SuperGlobal()) == "SuperGlobal(m=400, k=9, beta=0.15)"
    assert doctest.testmod(superglobal).failed == 0
