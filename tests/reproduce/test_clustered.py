from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gqe.neighbors import knn
from gqe.reproduce.clustered import Clustered
from gqe.reproduce.suites.synthetic import _World


def table(n: int = 3000) -> torch.Tensor:
    world = _World(n, 32, 0)
    return torch.from_numpy(world.vectors(world.things[-n:], 1))


def graph(lists: Clustered, k: int) -> np.ndarray:
    ids = np.full((len(lists.table), k), -9, np.int64)
    for part in lists.parts(500):
        ids[part] = lists.neighbors(part, k).ids
    return ids


def test_compared_with_every_list_it_is_exact() -> None:
    vectors = table()
    lists = Clustered.made(vectors, 5, 0.5)
    lists.breadth = len(lists)
    np.testing.assert_array_equal(graph(lists, 5), knn(vectors, 5, device="cpu").ids)


def test_lists_as_the_items_stand_are_compared_with_all_of_them() -> None:
    vectors = table(1000)
    lists = Clustered.in_order(vectors, 300)
    assert [len(lists.members(number)) for number in range(len(lists))] == [300, 300, 300, 100]
    np.testing.assert_array_equal(graph(lists, 5), knn(vectors, 5, device="cpu").ids)


def test_the_recall_that_was_asked_for() -> None:
    vectors = table()
    lists = Clustered.made(vectors, 10, 0.9)
    assert lists.breadth < len(lists) / 2
    found, true = graph(lists, 10), knn(vectors, 10, device="cpu").ids
    recall = np.mean([np.isin(t, f).mean() for t, f in zip(true, found, strict=True)])
    assert recall >= 0.88
    assert not (found == np.arange(len(vectors))[:, None]).any()  # nobody is its own neighbour


def test_every_item_is_in_one_part() -> None:
    parts = Clustered.made(table(), 5, 0.8).parts(500)
    assert len(parts) > 3
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(3000))


def test_a_stopped_run_goes_on_with_the_same_lists(tmp_path: Path) -> None:
    vectors = table()
    made = Clustered.kept(tmp_path / "lists.npz", vectors, 5, 0.8)
    again = Clustered.kept(tmp_path / "lists.npz", -vectors, 5, 0.8)
    np.testing.assert_array_equal(made.list_of, again.list_of)
    assert made.breadth == again.breadth
