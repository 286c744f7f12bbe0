"""The leading eigenpairs of a large sparse matrix: Lanczos with restarts on a polynomial of the matrix.

Keeping hundreds of Lanczos vectors orthogonal costs far more than multiplying one by a sparse matrix. So the
solver is given a polynomial of the matrix instead: a Chebyshev polynomial that grows fast where the wanted
eigenvalues are and stays within [-1, 1] elsewhere. It has the same eigenvectors, and pulls the wanted
eigenvalues apart, so that a fraction of the steps suffices. Where the wanted ones end is estimated first, and
checked afterwards: a wrong estimate costs time and changes nothing.

Fang, Saad, "A filtered Lanczos procedure for extreme and interior eigenvalue problems", SIAM J. Sci. Comput.
34(4), 2012; Lin, Saad, Yang, "Approximating spectral densities of large matrices", SIAM Review 58(1), 2016.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigh_tridiagonal
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

Array = np.ndarray[Any, Any]

# How much larger the polynomial is at 1 than where the wanted eigenvalues end: more would drown those.
_CONTRAST = 1000.0
# Polynomials of a lower degree gain nothing over the matrix itself.
_WORTH_IT = 8
# How many more eigenvalues than wanted should lie above the estimated end.
_SAFETY = 1.5


class Eigenpairs(NamedTuple):
    """Eigenvalues (r,) in any order, and their vectors (s, r)."""

    values: Array
    vectors: Array


def leading_eigenpairs(matrix: Any, count: int, *, restarts: int | None = None) -> Eigenpairs:
    """The `count` largest eigenvalues and their vectors, fewer if they did not converge.

    Args:
        matrix: sparse, symmetric (s, s), all eigenvalues within [-1, 1].
        count: less than s / 2.
        restarts: bounds the work of the solver.

    Example:
        >>> from scipy.sparse import diags_array
        >>> matrix = diags_array(np.linspace(-1, 1, 101)).tocsr()
        >>> np.sort(leading_eigenpairs(matrix, 3).values).round(6).tolist()
        [0.96, 0.98, 1.0]
    """
    size = matrix.shape[0]
    # Less room to work in than usual (2 * count) saves a quarter of the memory.
    room = min(size, count + max(20, count // 2))
    end = _estimated_end(matrix, math.ceil(_SAFETY * count))
    degree = _degree(end, room, matrix.nnz / size)
    if degree >= _WORTH_IT:
        found = _solved(_chebyshev(matrix, end, degree), count, room, restarts)
        values = np.array([vector @ (matrix @ vector) for vector in found.vectors.T])
        if (values > end).all():  # all others are smaller in the polynomial, too
            return Eigenpairs(values, found.vectors)
    return _solved(matrix, count, room, restarts)


def _solved(operator: Any, count: int, room: int, restarts: int | None) -> Eigenpairs:
    start = np.random.default_rng(0).standard_normal(operator.shape[0])  # the same result every time
    try:
        return Eigenpairs(
            *eigsh(operator, k=count, which="LA", v0=start, ncv=room, tol=1e-8, maxiter=restarts)
        )
    except ArpackNoConvergence as stopped:
        return Eigenpairs(stopped.eigenvalues, stopped.eigenvectors)


def _degree(end: float, room: int, row: float) -> int:
    """As many products as cost a few times what a step of the solver costs, within the contrast."""
    scaled = (3 - end) / (1 + end)  # where 1 comes to lie when [-1, end] becomes [-1, 1]
    return int(min(4 * room / max(row, 1), math.acosh(_CONTRAST) / math.acosh(scaled)))


def _chebyshev(matrix: Any, end: float, degree: int) -> LinearOperator:
    """The Chebyshev polynomial of [-1, end], 1 at 1, of a matrix."""
    scaled = (3 - end) / (1 + end)
    scale = math.cosh(degree * math.acosh(scaled))

    def product(x: Array) -> Array:
        spread: Array = matrix @ x
        return (2 * spread + (1 - end) * x) / (1 + end)

    def apply(x: Array) -> Array:
        before, now = x / scale, product(x / scale)
        for _ in range(degree - 1):
            before, now = now, 2 * product(now) - before
        return now

    return LinearOperator(matrix.shape, matvec=apply, dtype=np.float64)


def _estimated_end(matrix: Any, count: int, steps: int = 60, starts: int = 4) -> float:
    """About where the `count` largest eigenvalues end, below 1, by Lanczos quadrature of their density."""
    rng = np.random.default_rng(1)
    now = rng.standard_normal((matrix.shape[0], starts))
    now /= np.linalg.norm(now, axis=0)
    before = np.zeros_like(now)
    diagonal, beside = np.zeros((steps, starts)), np.zeros((steps, starts))
    for step in range(steps):
        after = matrix @ now - (beside[step - 1] * before if step else 0)
        diagonal[step] = np.sum(after * now, axis=0)
        after -= diagonal[step] * now
        beside[step] = np.linalg.norm(after, axis=0)
        before, now = now, after / np.maximum(beside[step], 1e-300)
    places, shares = [], []
    for start in range(starts):
        values, vectors = eigh_tridiagonal(diagonal[:, start], beside[:-1, start])
        places.append(values)
        shares.append(vectors[0] ** 2)
    order = np.argsort(-np.concatenate(places))
    above = np.cumsum(np.concatenate(shares)[order]) * matrix.shape[0] / starts
    at = order[min(int(np.searchsorted(above, count)), len(order) - 1)]
    return float(np.clip(np.concatenate(places)[at], -0.9, 1 - 1e-6))
