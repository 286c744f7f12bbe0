"""The leading eigenpairs of sparse matrices against dense ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from gqe.rerank import leading_eigenpairs as module
from gqe.rerank.affinity_graph import normalised
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
    return normalised(csr_array(one_way + one_way.T))


@pytest.mark.parametrize("end", [None, -0.5, 0.5, 0.9999])  # the estimate; two that are too low; one too high
@pytest.mark.parametrize("count", [5, 30, 90])
def test_equals_dense(count: int, end: float | None, monkeypatch: pytest.MonkeyPatch):
    matrix = groups(900, 20)
    if end is not None:
        monkeypatch.setattr(module, "_estimated_end", lambda *_: end)
    values, vectors = leading_eigenpairs(matrix, count)
    expected = np.linalg.eigvalsh(matrix.toarray())[-count:]
    np.testing.assert_allclose(np.sort(values), expected, atol=1e-9)
    np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-7)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(count), atol=1e-8)


def test_the_polynomial_is_used_where_eigenvalues_are_close(monkeypatch: pytest.MonkeyPatch):
    degrees = []
    usual = module._chebyshev
    monkeypatch.setattr(
        module, "_chebyshev", lambda matrix, end, degree: degrees.append(degree) or usual(matrix, end, degree)
    )
    leading_eigenpairs(groups(900, 20), 20)
    assert degrees
    assert degrees[0] >= 8


@pytest.mark.parametrize("count", [30, 100])
def test_estimates_where_the_wanted_ones_end(count: int):
    matrix = groups(2000, 20)
    above = int((np.linalg.eigvalsh(matrix.toarray()) > module._estimated_end(matrix, count)).sum())
    assert 0.6 * count < above < 1.6 * count


def test_the_polynomial_is_one_at_one_and_small_below_its_end():
    places = np.linspace(-1, 1, 401)
    matrix = csr_array(np.diag(places))
    values = module._chebyshev(matrix, 0.8, 9) @ np.ones(401)
    assert values[-1] == pytest.approx(1)
    below = places <= 0.8
    assert np.abs(values[below]).max() < 0.02
    assert (np.diff(values[~below]) > 0).all()
