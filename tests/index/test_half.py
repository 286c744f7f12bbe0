"""Neighbours by 16-bit products are the same as by exact ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gqe
from gqe.index import finding
from gqe.neighbors.rescoring import Rescorer
from index.worlds import unit


def awkward(n: int, d: int) -> np.ndarray:
    """Clusters so tight that float16 cannot tell their members apart, and exact copies."""
    rng = np.random.default_rng(0)
    table = unit(
        rng.normal(size=(n // 20, d))[rng.integers(n // 20, size=n)] + 0.01 * rng.normal(size=(n, d))
    )
    table[rng.integers(n, size=n // 10)] = table[rng.integers(n, size=n // 10)]
    return table


@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
@pytest.mark.parametrize("k", [1, 8, 30])
def test_the_same_neighbours_as_the_exact_search(monkeypatch: pytest.MonkeyPatch, stored, k: int) -> None:
    monkeypatch.setattr(finding, "_EXTRA", 8)
    table = torch.from_numpy(awkward(600, 24)).to(stored)
    omit = torch.arange(600)
    expected = gqe.knn(table, k)
    found = finding._rank(
        Rescorer(table, k, exact=True), finding.half_engine(table), table, k + 5, omit, torch.device("cpu")
    )
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.similarities, expected.similarities)


def test_the_error_of_a_16_bit_product_stays_below_its_bound() -> None:
    for d in (4, 64, 2048):
        a, b = (torch.from_numpy(unit(np.random.default_rng(s).normal(size=(200, d)))) for s in (0, 1))
        b[:100] = torch.nn.functional.normalize(a[:100] + 0.1 * b[:100], dim=1)
        halves = (a.half() @ b.half().T).float()
        assert (halves - a @ b.T).abs().max() < finding.ERROR
