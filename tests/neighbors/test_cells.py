"""Approximate lists of a whole database: the recall that was asked for, whatever the vectors look like."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gqe
from gqe.neighbors import cells, inverted_file
from gqe.neighbors.cells import approximate_lists

N, D, K = 25_000, 32, 20


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(autouse=True)
def _also_where_few_rows_are(monkeypatch):
    monkeypatch.setattr(cells, "_SMALLEST", 20_000)
    monkeypatch.setattr(cells, "_MOST_PAIRS", 1 / 2)


@pytest.fixture(scope="module")
def clustered():
    rng = np.random.default_rng(0)
    return unit(rng.normal(size=(500, D))[rng.integers(500, size=N)] + rng.normal(size=(N, D)))


@pytest.fixture(scope="module")
def truth(clustered):
    return gqe.knn(clustered[:], K, queries=clustered[:1000]).ids  # each finds itself, too


@pytest.mark.parametrize("recall", [0.8, 0.9])
def test_lists_hold_the_wanted_share_of_the_nearest(clustered, truth, recall):
    found = approximate_lists(torch.from_numpy(clustered), K, recall)
    shares = [
        np.isin(true[true != i], row).mean()
        for i, (true, row) in enumerate(zip(truth, found.ids[:1000].numpy(), strict=True))
    ]
    assert recall <= found.recall < 1
    assert np.mean(shares) >= recall - 0.01  # of other rows than the sample
    assert found.ids.shape == (N, K)
    assert all(len(set(row) - {-1}) == K for row in found.ids[:1000].tolist())
    assert (found.ids[:1000] == torch.arange(1000)[:, None]).any(dim=1).all()


def test_refining_finds_what_the_cells_have_missed(clustered):
    table = torch.from_numpy(clustered)
    sample = cells._Sample(table, K, 0)
    search = cells._CellSearch(table, K, inverted_file.train_centroids(table, 0))
    assert search.compare(2)
    before = sample.recall(search.ids)
    assert search.refine()
    assert sample.recall(search.ids) > before + 0.15 * (1 - before)


def test_vectors_without_clusters_are_left_to_another_search(monkeypatch):
    monkeypatch.setattr(cells, "_MOST_PAIRS", 1 / 16)
    vectors = unit(np.random.default_rng(0).normal(size=(N, D)))
    assert approximate_lists(torch.from_numpy(vectors), K, 0.95) is None
    assert gqe.knn(vectors, K, recall=0.8).recall >= 0.8


def test_equal_vectors_do_not_make_it_slow():
    vectors = np.repeat(np.eye(D, dtype=np.float32)[:1], N, axis=0)
    assert approximate_lists(torch.from_numpy(vectors), K, 0.95) is None


def test_small_tables_and_a_recall_of_one_are_left_to_another_search(clustered):
    table = torch.from_numpy(clustered)
    assert approximate_lists(table[:19_000], K, 0.9) is None
    assert approximate_lists(table, K, 1.0) is None
    assert approximate_lists(table[:20_000], 20_000, 0.9) is None


def test_without_faiss_another_search_is_used(clustered, monkeypatch):
    for module in (cells, inverted_file):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert gqe.knn(clustered, K, recall=0.9).recall is None


def test_the_same_seed_gives_the_same_lists(clustered):
    table = torch.from_numpy(clustered)
    shown = []
    first = approximate_lists(table, K, 0.8, seed=3)
    again = approximate_lists(table, K, 0.8, seed=3, progress=lambda *line: shown.append(line))
    assert {what for _, _, what in shown} >= {"neighbours in cells"}
    assert all(done < total for done, total, _ in shown)
    assert first.recall == again.recall
    assert torch.equal(first.ids, again.ids)
