"""Only what lies near the queries is computed, and the result is that of the whole database."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gqe.aggregators import Affinity, Alpha, Attention, Identity, Mean
from gqe.contrast import LAST
from gqe.hierarchy import Hierarchy
from gqe.neighbors import knn
from gqe.neighbors.search import nearest
from gqe.reproduce.nearby import expanded

CPU = torch.device("cpu")
N, DIM = 1300, 8  # more than the 1024 items that show the background


def _attention() -> Attention:
    return Attention(DIM, 5, heads=2, feedforward=8, layers=1)


STACKS = {
    "one level": lambda: [Mean(4)],
    "aqe-g": lambda: [Mean(3), Mean(5)],
    "three levels": lambda: [Alpha(3), Mean(2), Alpha(4, 1.0)],
    "attention": lambda: [_attention(), _attention()],
    "collapsed": lambda: [Identity(), _attention()],
    "affinity, one level": lambda: [Affinity(4, width=8, layers=1, heads=1)],
    "affinity": lambda: [
        Affinity(4, width=8, layers=1, heads=1),
        Affinity(4, width=8, layers=1, heads=1, base=True),
    ],
}


@pytest.mark.parametrize("name", STACKS)
def test_it_equals_the_whole_database(name: str, random_unit) -> None:
    torch.manual_seed(0)
    stack = STACKS[name]()
    database = torch.from_numpy(random_unit(N, DIM))
    queries = torch.from_numpy(random_unit(3, DIM, seed=1))
    graph_k = max(level.graph_k for level in stack)
    neighbors = knn(database, LAST, queries=queries, device=CPU)
    asked: list[int] = []

    def find(items: np.ndarray):
        asked.extend(items.tolist())
        rows = database[torch.from_numpy(items)]
        return nearest(database, rows, graph_k, torch.from_numpy(items), device=CPU)

    whole = Hierarchy(stack, database, knn(database, graph_k, device=CPU), device=CPU, contrast=0.3)
    expected = whole.expand(queries, neighbors)
    found = expanded(stack, database, queries, neighbors, find, device=CPU, contrast=0.3)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert len(asked) == len(set(asked))  # no list is searched twice
    if not any(level.needs_context for level in stack):
        # Lists are needed of what lies within L - 1 hops only.
        most = sum(3 * graph_k**hop for hop in range(1, len(stack)))
        assert len(asked) <= most


def test_a_database_smaller_than_k(random_unit) -> None:
    database = torch.from_numpy(random_unit(3, DIM))
    queries = torch.from_numpy(random_unit(2, DIM, seed=1))
    stack = [Mean(6), Mean(6)]
    neighbors = knn(database, 6, queries=queries, device=CPU)
    found = expanded(
        stack,
        database,
        queries,
        neighbors,
        lambda items: nearest(
            database, database[torch.from_numpy(items)], 6, torch.from_numpy(items), device=CPU
        ),
        device=CPU,
    )
    expected = Hierarchy(stack, database, device=CPU).expand(queries, neighbors)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
