"""The piled-up top-k against torch's own, and exact duplicates against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gqe.neighbors import duplicates
from gqe.neighbors.candidates import exact_candidates, inner_products, rough_products, top
from gqe.neighbors.duplicates import late_duplicates


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 400), st.integers(1, 30), st.booleans())
def test_the_best_columns_are_those_of_topk(seed, m, width, count, with_ties):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(m, width)).astype(np.float32)
    scores = torch.from_numpy(scores.round(1) if with_ties else scores)
    found = top(scores, count)
    expected = torch.topk(scores, min(count, width), dim=1)
    assert torch.equal(found.similarities, expected.values)
    assert torch.equal(scores.gather(1, found.ids), expected.values)
    assert all(len(set(row)) == len(row) for row in found.ids.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_candidates_come_best_first(random_unit, dtype):
    table = torch.from_numpy(random_unit(300, 9)).to(dtype)
    queries = torch.from_numpy(random_unit(4, 9, seed=1))
    found = exact_candidates(queries, table, 12)
    scores = queries @ table.float().T
    assert torch.allclose(found.similarities, scores.sort(dim=1, descending=True).values[:, :12], atol=1e-6)
    assert torch.allclose(scores.gather(1, found.ids), found.similarities, atol=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 8), st.integers(1, 5))
def test_late_duplicates_are_those_that_loops_find(seed, n, kinds, copies):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(kinds, 3)).astype(np.float32)[rng.integers(kinds, size=n)]
    expected = [sum((rows[j] == rows[i]).all() for j in range(i)) >= copies for i in range(n)]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert late_duplicates(torch.from_numpy(rows).to(dtype), copies).tolist() == expected


def test_rows_that_merely_share_a_hash_are_no_duplicates(monkeypatch):
    rows = torch.tensor([[1.0], [2.0], [1.0], [1.0], [2.0]])
    assert late_duplicates(rows, 1).tolist() == [False, False, True, True, True]
    monkeypatch.setattr(duplicates, "_hashes", lambda table: torch.zeros(len(table), dtype=torch.int64))
    assert not late_duplicates(rows, 1).any()  # an unclear group is left alone


def test_rough_products_are_near_and_leave_the_precision_as_it_was(random_unit):
    rows = torch.from_numpy(random_unit(300, 512))
    before = torch.get_float32_matmul_precision()
    rough = rough_products(rows[:40], rows)
    assert torch.get_float32_matmul_precision() == before
    assert (rough - inner_products(rows[:40], rows)).abs().max() < 2e-3
