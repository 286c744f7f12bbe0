"""PCA-whitening: centre, turn to the principal axes, give every axis the same variance, cut to a dimension.

Whitening stops a few strong directions from ruling every comparison (Jégou and Chum, Negative evidences and
co-occurrences in image retrieval, ECCV 2012). It is learned without labels, on pictures that are never
searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from gqe.errors import InputError

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True, eq=False)
class Whitening:
    """A learned whitening.

    Attributes:
        mean: (d,) mean of the training vectors.
        projection: (d, k) axes, each divided by its deviation.
    """

    mean: Array
    projection: Array

    def apply(self, vectors: Array) -> Array:
        """Whiten vectors.

        Args:
            vectors: (n, d) of the same kind as those it was learned from.

        Returns:
            (n, k) float32 of unit length; a vector equal to the mean stays zero.

        Example:
            >>> white = Whitening(np.zeros(2), np.eye(2))
            >>> white.apply(np.array([[3.0, 4.0]]))
            array([[0.6, 0.8]], dtype=float32)
        """
        values = np.asarray(vectors, dtype=np.float32)
        if values.ndim != 2 or values.shape[1] != len(self.mean):
            raise InputError(
                f"vectors: expected shape (n, {len(self.mean)}), got {values.shape}; use the same network"
            )
        turned = (values - self.mean.astype(np.float32)) @ self.projection.astype(np.float32)
        length = np.linalg.norm(turned, axis=1, keepdims=True)
        return np.asarray(turned / np.maximum(length, np.finfo(np.float32).tiny), dtype=np.float32)


def fit(vectors: Array, dim: int, *, shrinkage: float = 0.0) -> Whitening:
    """Learn a whitening.

    Args:
        vectors: (n, d) training vectors, more than `dim` of them.
        dim: How many axes to keep.
        shrinkage: Between 0 and 1: moves the variances of all axes towards their mean, so that weak axes,
            which are mostly noise, are blown up less. 1 leaves only the turn to the principal axes.

    Returns:
        The whitening. Each axis points where its largest coefficient is positive, so a fit can be repeated.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(500, 3)) * [5.0, 1.0, 0.1]
        >>> turned = (x - fit(x, 2).mean) @ fit(x, 2).projection
        >>> np.allclose(np.cov(turned.T), np.eye(2))
        True
    """
    values = np.asarray(vectors, dtype=np.float64)
    if values.ndim != 2 or len(values) < 2:
        raise InputError(f"vectors: expected shape (n, d) with n of at least 2, got {values.shape}")
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise InputError(f"vectors: row {row} holds a value that is not finite; remove it")
    if not 0.0 <= shrinkage <= 1.0:
        raise InputError(f"shrinkage: {shrinkage} is not between 0 and 1")
    if not 1 <= dim <= min(values.shape[1], len(values) - 1):
        raise InputError(
            f"dim: {dim} axes cannot be learned from {len(values)} vectors of dimension {values.shape[1]}; "
            f"choose 1 to {min(values.shape[1], len(values) - 1)}"
        )
    mean = values.mean(axis=0)
    variances, axes = np.linalg.eigh(np.cov(values - mean, rowvar=False).reshape(values.shape[1], -1))
    strongest = np.argsort(-variances, kind="stable")[:dim]
    kept = (1.0 - shrinkage) * variances[strongest] + shrinkage * variances.mean()
    axes = axes[:, strongest]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(dim)])
    return Whitening(mean, axes / np.sqrt(np.maximum(kept, 1e-12 * max(1e-300, float(variances.max())))))
