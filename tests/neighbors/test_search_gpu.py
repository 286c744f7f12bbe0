"""`knn` on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gqe
from neighbors.awkward import awkward

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_the_same_neighbours_as_on_the_cpu():
    database = awkward()
    here, there = (gqe.knn(database, 20, device=device) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(there.similarities, here.similarities, atol=1e-6)
    exact = np.take_along_axis(database @ database.T, there.ids.astype(np.int64), axis=1)
    np.testing.assert_allclose(there.similarities, exact, atol=2e-6)
    tied = np.diff(there.similarities, axis=1) == 0
    assert (np.diff(there.ids, axis=1)[tied] > 0).all()


def test_the_same_bits_in_every_batch():
    database = awkward()
    together = gqe.knn(database, 20, device="cuda")
    for i in range(0, 2000, 97):
        one = gqe.knn(database, 20, queries=database[i : i + 1], exclude=[i], device="cuda")
        np.testing.assert_array_equal(one.ids[0], together.ids[i])
        np.testing.assert_array_equal(one.similarities[0], together.similarities[i])


def test_tensors_on_the_gpu_and_tables_too_large_for_it(monkeypatch):
    database = awkward()
    expected = gqe.knn(database, 5, device="cuda")
    table = torch.from_numpy(database).cuda()
    np.testing.assert_array_equal(gqe.knn(table, 5).ids, expected.ids)
    np.testing.assert_allclose(gqe.knn(table, 5, device="cpu").similarities, expected.similarities, atol=1e-6)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
    np.testing.assert_array_equal(gqe.knn(database, 5, device="cuda").ids, expected.ids)


def test_tf32_allowed_elsewhere_does_not_lose_neighbours():
    database = awkward()
    expected = gqe.knn(database, 20, device="cuda")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        np.testing.assert_array_equal(gqe.knn(database, 20, device="cuda").ids, expected.ids)
    finally:
        torch.set_float32_matmul_precision(before)
