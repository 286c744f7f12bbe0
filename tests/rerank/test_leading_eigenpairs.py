"""The leading eigenpairs of sparse matrices against dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array

from gqe.rerank import leading_eigenpairs as module
from gqe.rerank.affinity_graph import normalize_by_degree
from gqe.rerank.leading_eigenpairs import leading_eigenpairs


def groups(n: int, size: int, seed: int = 0) -> csr_array:
    """S (n, n) of a connected graph of n / size groups: as many eigenvalues lie near 1."""
    rng = np.random.default_rng(seed)
    inside = random_array((n, n), density=8 / n, rng=rng).tocoo()
    near = inside.row // size * size + inside.col % size
    rows = np.concatenate([inside.row, np.arange(n - 1)])
    columns = np.concatenate([near, np.arange(1, n)])
    weights = np.concatenate([inside.data, np.full(n - 1, 0.05)])
    one_way = csr_array((weights, (rows, columns)), shape=(n, n))
    return normalize_by_degree(csr_array(one_way + one_way.T))


@pytest.mark.parametrize("count", [1, 5, 30, 90, 440])
def test_equals_dense(count: int) -> None:
    matrix = groups(900, 20)
    values, vectors = leading_eigenpairs(matrix, count, tolerance=1e-9)
    expected = np.linalg.eigvalsh(matrix.toarray())[::-1][:count]
    np.testing.assert_allclose(values, expected, atol=1e-9)
    np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-7)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(count), atol=1e-8)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-3, 1e-4])
def test_as_exact_as_asked(tolerance: float) -> None:
    matrix = groups(900, 20)
    values, vectors = leading_eigenpairs(matrix, 30, tolerance=tolerance)
    assert np.linalg.norm(matrix @ vectors - vectors * values, axis=0).max() <= 1.01 * tolerance
    expected = np.linalg.eigvalsh(matrix.toarray())[::-1][:30]
    np.testing.assert_allclose(values, expected, atol=tolerance)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(30), atol=1e-5)


def test_a_filter_that_ends_below_all_vectors_does_no_harm() -> None:
    matrix = csr_array(np.diag(np.linspace(0.99, 1, 60)))  # every eigenvalue is near 1
    values, _ = leading_eigenpairs(matrix, 3, tolerance=1e-8)
    np.testing.assert_allclose(values, np.linspace(0.99, 1, 60)[::-1][:3], atol=1e-9)


def test_what_has_not_converged_is_left_out() -> None:
    values, vectors = leading_eigenpairs(groups(900, 20), 30, tolerance=1e-9, rounds=1)
    assert len(values) < 30
    assert vectors.shape == (900, len(values))


def test_the_polynomial_grows_behind_its_end_only() -> None:
    places = np.linspace(-1, 1, 401)
    table = module._to_torch(csr_array(np.diag(places)), torch.float64, torch.device("cpu"))
    basis = torch.eye(401, dtype=torch.float64).sum(0)[:, None].clone()
    module._filter(table, basis, 0.8)
    values = basis[:, 0].numpy() / basis[-1, 0].item()
    below = places <= 0.8
    assert np.abs(values[below]).max() < 1e-6
    assert (np.diff(values[~below]) > 0).all()
