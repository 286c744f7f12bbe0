"""The leading eigenpairs of a large sparse matrix: subspace iteration with a Chebyshev filter.

All vectors are multiplied at once, by a polynomial of the matrix that grows fast where the wanted eigenvalues
are and stays within [-1, 1] elsewhere; then they are made orthogonal again. Lanczos' method needs fewer
products, but takes them one vector at a time and spends most of its time keeping hundreds of vectors
orthogonal to each new one; here all work is done on whole blocks, which a GPU, too, does well.

Zhou, Saad, Tiago, Chelikowsky, "Self-consistent-field calculations using Chebyshev-filtered subspace
iteration", J. Comput. Phys. 219, 2006.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]

# How much larger the polynomial may be at 1 than where the wanted eigenvalues end.
_CONTRAST = {torch.float32: 1e4, torch.float64: 1e8}
# Products between two orthogonalisations, at most.
_DEGREE = 100
# Below this float32 is not exact enough.
_DOUBLE = 1e-5
# Vectors multiplied at once, which bounds the memory beside the vectors themselves.
_COLUMNS = 128


class Eigenpairs(NamedTuple):
    """Eigenvalues (r,), falling, and their vectors (s, r)."""

    values: Array
    vectors: Array


def leading_eigenpairs(
    matrix: Any,
    count: int,
    *,
    tolerance: float = 1e-3,
    device: torch.device | None = None,
    rounds: int = 200,
) -> Eigenpairs:
    """The `count` largest eigenvalues and their vectors, fewer if they did not converge.

    Args:
        matrix: csr_array, symmetric (s, s), all eigenvalues within [-1, 1].
        count: less than s / 2.
        tolerance: the length of S v - x v that counts as none. The error of x is about its square.
        device: where to compute; the CPU if None.
        rounds: bounds the work.

    Example:
        >>> from scipy.sparse import diags_array
        >>> matrix = diags_array(np.linspace(-1, 1, 101)).tocsr()
        >>> leading_eigenpairs(matrix, 3, tolerance=1e-8).values.round(6).tolist()
        [1.0, 0.98, 0.96]
    """
    device = device or torch.device("cpu")
    size = matrix.shape[0]
    # The filter ends where the eigenvalues of these vectors end: the farther off, the faster.
    many = min(size, count + max(20, count // 2))
    dtype = torch.float32 if tolerance >= _DOUBLE else torch.float64
    seeded = torch.Generator().manual_seed(0)  # the same result every time
    basis = torch.linalg.qr(torch.randn(size, many, dtype=dtype, generator=seeded).to(device)).Q
    table = _to_torch(matrix, dtype, device)
    for left in range(rounds, -1, -1):
        values, basis = _rayleigh_ritz(table, basis)
        good = _errors(table, basis[:, :count], values[:count]) <= tolerance
        if left == 0 or bool(good.all()):
            break
        _filter(table, basis, float(values[-1].clamp(-0.9, 1 - 1e-9)))
        basis = torch.linalg.qr(basis).Q
    return Eigenpairs(values[:count][good].cpu().numpy(), basis[:, :count][:, good].cpu().numpy())


def _to_torch(matrix: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Sparse (CSR tensor support is in beta|invariant checks are)"
        )
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data),
            matrix.shape,
            dtype=dtype,
            device=device,
            check_invariants=False,
        )


def _rayleigh_ritz(table: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """The best eigenpairs within the span of an orthonormal basis (Rayleigh and Ritz), falling."""
    small = torch.cat([basis.T @ (table @ part) for part in torch.split(basis, _COLUMNS, dim=1)], dim=1)
    values, vectors = torch.linalg.eigh((small + small.T) / 2)
    return values.flip(0), basis @ vectors.flip(1)


def _errors(table: Tensor, vectors: Tensor, values: Tensor) -> Tensor:
    """The length of S v - x v of each pair."""
    parts = zip(torch.split(vectors, _COLUMNS, dim=1), torch.split(values, _COLUMNS), strict=True)
    return torch.cat([torch.linalg.vector_norm(table @ part - part * own, dim=0) for part, own in parts])


def _filter(table: Tensor, basis: Tensor, end: float) -> None:
    """Multiply vectors, in place, by the Chebyshev polynomial of [-1, end] of the matrix."""
    growth = math.acosh((3 - end) / (1 + end))  # where 1 comes to lie when [-1, end] becomes [-1, 1]
    degree = max(1, min(_DEGREE, int(math.acosh(_CONTRAST[basis.dtype]) / growth)))

    def product(x: Tensor) -> Tensor:
        return (2 * (table @ x) + (1 - end) * x) / (1 + end)

    for columns in torch.split(basis, _COLUMNS, dim=1):
        before, now = columns.clone(), product(columns)
        for _ in range(degree - 1):
            before, now = now, 2 * product(now) - before
        # Each by itself: they differ in size by as much as the polynomial does.
        columns.copy_(now / torch.linalg.vector_norm(now, dim=0).clamp(min=1e-300))
