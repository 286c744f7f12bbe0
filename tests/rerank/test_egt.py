"""Explore-exploit traversal against the paper's algorithm, written out with a dictionary for the heap."""

from __future__ import annotations

import doctest
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gqe
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph
from gqe.rerank import egt
from gqe.rerank.egt import Egt

CPU = torch.device("cpu")


def literal_walk(graph: NeighborGraph, start: dict[int, float], k: int, t: float, most: int) -> list[int]:
    """The items in the order they are taken from the heap of the paper's Algorithm 1."""
    heap, taken = dict(start), []
    while heap and len(taken) < most:
        turn: list[int] = []
        while heap and len(taken) + len(turn) < most:
            best = max(heap, key=lambda item: (heap[item], -item))
            if turn and not heap[best] > t:
                break
            turn.append(best)
            del heap[best]
        taken += turn
        for item in turn:
            for neighbor, similarity in zip(graph.ids[item, :k], graph.similarities[item, :k], strict=True):
                if neighbor >= 0 and neighbor not in taken:
                    heap[int(neighbor)] = max(heap.get(int(neighbor), -np.inf), float(similarity))
    return taken


def literal(graph: NeighborGraph, first: NeighborGraph, k: int, t: float, p: int) -> list[list[int]]:
    result = []
    for row in range(len(first)):
        listed = [int(i) for i in first.ids[row] if i >= 0]
        start = {
            int(i): float(s)
            for i, s in zip(first.ids[row, :k], first.similarities[row, :k], strict=True)
            if i >= 0
        }
        taken = literal_walk(graph, start, k, t, p)[: first.k]
        merged = (taken + [i for i in listed if i not in taken])[: first.k]
        result.append(merged + [-1] * (first.k - len(merged)))
    return result


def random_lists(rng: np.random.Generator, m: int, n: int, k: int, *, own: bool) -> NeighborGraph:
    """Random neighbours with few different similarities, so that many tie; some lists are short or empty."""
    ids = np.full((m, k), -1, dtype=np.int64)
    similarities = np.full((m, k), -np.inf, dtype=np.float32)
    for row in range(m):
        others = [i for i in range(n) if not (own and i == row)]
        count = int(rng.integers(0, min(k, len(others)) + 1))
        chosen = rng.permutation(others)[:count].astype(np.int64)
        values = (rng.integers(-2, 9, size=count) / 8).astype(np.float32)
        order = np.lexsort((chosen, -values))
        ids[row, :count], similarities[row, :count] = chosen[order], values[order]
    return NeighborGraph(ids, similarities)


def fitted(method: Egt, graph: NeighborGraph) -> Egt:
    return method.fit(torch.ones(len(graph), 1), graph, device=CPU)


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 14),
    columns=st.integers(1, 16),
    width=st.integers(1, 16),
    k=st.integers(1, 20),
    t=st.sampled_from([-1.0, 0.0, 0.25, 0.42, 0.5, 1.0]),
    p=st.integers(1, 20),
)
def test_equals_the_literal_walk(seed, n, columns, width, k, t, p):
    rng = np.random.default_rng(seed)
    graph = random_lists(rng, n, n, columns, own=True)
    first = random_lists(rng, 4, n, width, own=False)
    result = fitted(Egt(k=k, t=t, p=p), graph).rerank(torch.ones(4, 1), first)
    assert result.ids.tolist() == literal(graph, first, k, t, p)
    present = result.ids >= 0
    for row, there in zip(result.scores, present, strict=True):
        assert (np.diff(row[there]) <= 0).all()
    assert np.isneginf(result.scores[~present]).all()


def test_equals_the_literal_walk_on_vectors(random_unit):
    database, queries = random_unit(120, 5), random_unit(9, 5, seed=1)
    graph, first = gqe.knn(database, 12), gqe.knn(database, 60, queries=queries)
    for t in (0.5, 0.8, 0.95, 2.0):
        result = fitted(Egt(k=8, t=t, p=40), graph).rerank(torch.from_numpy(queries), first)
        assert result.ids.tolist() == literal(graph, first, 8, t, 40)


def test_a_chain_is_followed_beyond_the_first_results():
    # 0 - 1 - 2 - 3, each link strong; item 4 is nearer to the query than all but 0, but weakly.
    graph = NeighborGraph(
        np.array([[1, -1], [0, 2], [1, 3], [2, -1], [-1, -1]]),
        np.array([[0.9, -np.inf], [0.9, 0.8], [0.8, 0.7], [0.7, -np.inf], [-np.inf] * 2], np.float32),
    )
    first = NeighborGraph(np.array([[0, 4, 1]]), np.array([[0.6, 0.3, 0.1]], np.float32))
    chain = fitted(Egt(k=2, t=0.5), graph).rerank(torch.ones(1, 1), first)
    assert chain.ids.tolist() == [[0, 1, 2]]
    layers = fitted(Egt(k=2, t=0.0), graph).rerank(torch.ones(1, 1), first)
    assert layers.ids.tolist() == [[0, 4, 1]]


def test_does_not_depend_on_the_batch(random_unit):
    database, queries = random_unit(80, 4), random_unit(6, 4, seed=2)
    first = gqe.knn(database, 30, queries=queries)
    walk = fitted(Egt(k=6, t=0.9), gqe.knn(database, 6))
    together = walk.rerank(torch.from_numpy(queries), first)
    for row in range(6):
        alone = walk.rerank(
            torch.from_numpy(queries[row : row + 1]),
            NeighborGraph(first.ids[row : row + 1], first.similarities[row : row + 1]),
        )
        assert (alone.ids[0] == together.ids[row]).all()
        assert (alone.scores[0] == together.scores[row]).all()


def test_no_queries_and_one_item():
    one = NeighborGraph(np.full((1, 3), -1), np.full((1, 3), -np.inf, np.float32))
    none = NeighborGraph(np.empty((0, 5), np.int64), np.empty((0, 5), np.float32))
    assert fitted(Egt(), one).rerank(torch.ones(0, 1), none).ids.shape == (0, 5)
    first = NeighborGraph(np.array([[0, -1]]), np.array([[0.1, -np.inf]], np.float32))
    assert fitted(Egt(), one).rerank(torch.ones(1, 1), first).ids.tolist() == [[0, -1]]


def test_a_large_graph_takes_milliseconds_a_query():
    n, k = 200_000, 20
    rng = np.random.default_rng(0)
    similarities = -np.sort(-rng.random((n, k), dtype=np.float32), axis=1)
    others = (np.arange(n)[:, None] + rng.integers(1, n, size=(n, k))) % n
    walk = fitted(Egt(k=k, t=0.9), NeighborGraph(others, similarities))
    ids = rng.integers(n, size=(20, 1)) + np.arange(100) * 7
    first = NeighborGraph(ids % n, -np.sort(-rng.random((20, 100), dtype=np.float32), axis=1))
    started = time.perf_counter()
    walk.rerank(torch.ones(20, 1), first)
    assert (time.perf_counter() - started) / 20 < 0.1  # about 1 ms where nothing else runs
    assert walk.size() == 0


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"k": 0}, "k"),
        ({"p": 1.5}, "p"),
        ({"t": float("nan")}, "t"),
        ({"t": "much"}, "t"),
        ({"t": True}, "t"),
    ],
)
def test_refuses_bad_settings(settings, named):
    with pytest.raises(InputError, match=f"^{named}: "):
        Egt(**settings)


def test_refuses_foreign_graphs_and_results():
    graph = NeighborGraph(np.array([[1], [0]]), np.ones((2, 1), np.float32))
    with pytest.raises(InputError, match="fit"):
        Egt().rerank(torch.ones(2, 1), graph)
    with pytest.raises(InputError, match=r"^graph: "):
        Egt().fit(torch.ones(3, 1), graph, device=CPU)
    outside = NeighborGraph(np.array([[5]]), np.ones((1, 1), np.float32))
    with pytest.raises(InputError, match="outside"):
        fitted(Egt(), graph).rerank(torch.ones(1, 1), outside)
    with pytest.raises(InputError, match=r"^first: "):
        fitted(Egt(), graph).rerank(torch.ones(3, 1), graph)


def test_settings_and_example():
    assert Egt(**Egt(k=7, t=0.1, p=9).settings()).settings() == {"k": 7, "t": 0.1, "p": 9}
    assert (Egt().graph_k, Egt(k=7).num_candidates) == (50, 7)
    assert repr(Egt()) == "Egt(k=50, t=0.42, p=5000)"
    assert doctest.testmod(egt).failed == 0
