"""Whitening: centre, turn, give every axis the same variance, cut to a dimension.

Whitening stops a few strong directions from ruling every comparison. `fit` learns it without labels, from all
vectors (PCA-whitening; Jégou and Chum, Negative evidences and co-occurrences in image retrieval, ECCV 2012);
`fit_pairs` from pairs that belong together (Mikolajczyk and Matas, Improving descriptors for fast tree
matching by optimal linear projection, ICCV 2007; Radenović, Tolias, Chum, TPAMI 2019). Both on pictures that
are never searched. On disk a whitening is .npz or .safetensors with `mean` (d,) and `projection` (d, k).
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.extraction.network import normalize_rows
from gqe.formats import read_arrays
from gqe.formats.atomic import atomic_path
from gqe.formats.checks import Array, existing_file, wrap_parse_errors

_ENDINGS = (".npz", ".safetensors")
_CHECKPOINTS = (".pth", ".pt", ".tar")


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
        return normalize_rows(turned)

    def digest(self) -> str:
        """Twelve letters that differ if the whitening, in float32, does."""
        digest = hashlib.sha256(repr(self.projection.shape).encode())
        for array in (self.mean, self.projection):
            digest.update(np.ascontiguousarray(array, dtype="<f4").tobytes())
        return digest.hexdigest()[:12]

    def check(self, source: object) -> Whitening:
        """Return itself if its numbers fit together; `source` names it in the message."""
        mean, projection = self.mean, self.projection
        if mean.ndim != 1 or projection.ndim != 2 or len(mean) != len(projection) or not projection.size:
            raise InputError(
                f"{source}: mean {mean.shape} and projection {projection.shape} do not fit together"
            )
        if not (np.isfinite(mean).all() and np.isfinite(projection).all()):
            raise InputError(f"{source}: its whitening holds a number that is not finite; learn it again")
        return self


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
    values = _check_vectors(vectors)
    if not 0.0 <= shrinkage <= 1.0:
        raise InputError(f"shrinkage: {shrinkage} is not between 0 and 1")
    _check_dim(dim, values)
    mean = values.mean(axis=0)
    variances, axes = np.linalg.eigh(np.cov(values - mean, rowvar=False).reshape(values.shape[1], -1))
    strongest = np.argsort(-variances, kind="stable")[:dim]
    shrunk = (1.0 - shrinkage) * variances[strongest] + shrinkage * variances.mean()
    axes = _orient(axes[:, strongest])
    return Whitening(mean, axes / np.sqrt(np.maximum(shrunk, 1e-12 * max(1e-300, float(variances.max())))))


def fit_pairs(vectors: Array, pairs: Array, dim: int | None = None) -> Whitening:
    """Learn a whitening from pairs of vectors that show the same thing.

    What differs within pairs is noise: the axes in which it does become short. Of the rest, the axes in which
    all vectors differ most are kept.

    Args:
        vectors: (n, d) training vectors.
        pairs: (m, 2) rows of vectors that belong together.
        dim: How many axes to keep; None for all.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> things = np.repeat(rng.normal(size=(50, 2)), 2, axis=0)
        >>> noisy = np.hstack([things, 5 * rng.normal(size=(100, 1))])
        >>> learned = fit_pairs(noisy, np.arange(100).reshape(50, 2), dim=2)
        >>> bool(np.abs(learned.projection[2]).max() < 0.5)
        True
    """
    values = _check_vectors(vectors)
    rows = np.asarray(pairs)
    if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind not in "iu" or not len(rows):
        raise InputError(f"pairs: expected whole numbers of shape (m, 2), got {rows.dtype} {rows.shape}")
    if rows.min() < 0 or rows.max() >= len(values):
        raise InputError(
            f"pairs: row {rows.min() if rows.min() < 0 else rows.max()} is not among {len(values)} vectors"
        )
    if not np.any(values[rows[:, 0]] != values[rows[:, 1]]):
        raise InputError("pairs: the two vectors of every pair are equal; nothing can be learned from them")
    dim = min(values.shape[1], len(values) - 1) if dim is None else dim
    _check_dim(dim, values)
    mean = values[rows[:, 0]].mean(axis=0)
    differences = values[rows[:, 0]] - values[rows[:, 1]]
    undone = np.linalg.inv(_cholesky(differences.T @ differences / len(rows)))
    left = (values - mean) @ undone.T
    strength, axes = np.linalg.eigh(left.T @ left)
    axes = _orient(axes[:, np.argsort(-strength, kind="stable")[:dim]])
    return Whitening(mean, undone.T @ axes)


def pairs_of_labels(labels: Array) -> Array:
    """Pairs (m, 2) of rows with equal labels: each row and the next one of its label, the last and the first.

    Example:
        >>> pairs_of_labels(np.array([7, 8, 7, 9, 7])).tolist()
        [[0, 2], [2, 4], [4, 0]]
    """
    values = np.asarray(labels)
    if values.ndim != 1 or values.dtype.kind not in "iuUb":
        raise InputError(
            f"labels: expected one whole number or text per vector, got {values.dtype} {values.shape}"
        )
    pairs: list[Array] = []
    _, numbers = np.unique(values, return_inverse=True)
    order = np.argsort(numbers, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        if len(rows) > 1:
            pairs.append(np.stack([rows, np.roll(rows, -1)], axis=1)[: len(rows) if len(rows) > 2 else 1])
    if not pairs:
        raise InputError("labels: no two vectors have the same label; nothing can be learned from them")
    return np.concatenate(pairs)


def save_whitening(path: str | os.PathLike[str], whitening: Whitening) -> None:
    """Write a whitening in float32.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "white.npz"
        >>> save_whitening(path, Whitening(np.zeros(3), np.eye(3)[:, :2]))
        >>> load_whitening(path).projection.shape
        (3, 2)
    """
    whitening.check("whitening")
    arrays = {
        "mean": np.ascontiguousarray(whitening.mean, dtype=np.float32),
        "projection": np.ascontiguousarray(whitening.projection, dtype=np.float32),
    }
    ending = Path(path).suffix.lower()
    if ending not in _ENDINGS:
        raise InputError(f"{path}: a whitening is written to {' or '.join(_ENDINGS)}; choose another name")
    with atomic_path(path) as temporary:
        if ending == ".npz":
            np.savez(temporary, **arrays)  # type: ignore[arg-type]
        else:
            from safetensors.numpy import save_file

            save_file(arrays, temporary, metadata={"format": "gqe whitening"})


def load_whitening(path: str | os.PathLike[str], *, several_scales: bool = False) -> Whitening:
    """Read a whitening.

    Args:
        path: A .npz or .safetensors file of `mean` and `projection`, or a published checkpoint, with
            ":NAME" behind it where it holds several.
        several_scales: Which of a checkpoint's whitenings to take.

    Raises:
        InputError: The file is missing, broken, or holds no whitening.
    """
    text = os.fspath(path)
    ending = Path(text).suffix.lower()
    if ending in _ENDINGS:
        found = existing_file(text)
        if ending == ".npz":
            arrays: dict[str, Any] = dict(read_arrays(found))
        else:
            from safetensors.numpy import load_file

            with wrap_parse_errors(found, "safetensors file"):
                arrays = load_file(found)
        for name in ("mean", "projection"):
            if name not in arrays:
                raise InputError(f"{text}: holds no {name!r}; make it with gqe whiten")
            if arrays[name].dtype.kind != "f":
                raise InputError(f"{text}: {name!r} holds {arrays[name].dtype}, not real numbers")
        return Whitening(np.array(arrays["mean"]), np.array(arrays["projection"])).check(text)
    file, dataset = text, None
    if ending not in _CHECKPOINTS and ":" in text:
        file, _, dataset = text.rpartition(":")
    if Path(file).suffix.lower() not in _CHECKPOINTS:
        raise InputError(f"{text}: a whitening is read from {', '.join((*_ENDINGS, *_CHECKPOINTS))} files")
    from gqe.extraction.checkpoints import read_learned_whitening

    return read_learned_whitening(file, dataset, several_scales=several_scales)


def _check_vectors(vectors: Array) -> Array:
    values = np.asarray(vectors, dtype=np.float64)
    if values.ndim != 2 or len(values) < 2:
        raise InputError(f"vectors: expected shape (n, d) with n of at least 2, got {values.shape}")
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise InputError(f"vectors: row {row} holds a value that is not finite; remove it")
    return values


def _check_dim(dim: int, values: Array) -> None:
    most = min(values.shape[1], len(values) - 1)
    if not 1 <= dim <= most:
        raise InputError(
            f"dim: {dim} axes cannot be learned from {len(values)} vectors of dimension {values.shape[1]}; "
            f"choose 1 to {most}"
        )


def _orient(axes: Array) -> Array:
    """Axes (d, k), each turned so that its largest coefficient is positive."""
    return np.asarray(axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])]))


def _cholesky(scatter: Array) -> Array:
    """The root of a scatter matrix; where too few pairs leave it singular, with as small a ridge as works."""
    ridge, unit = 0.0, np.eye(len(scatter)) * np.trace(scatter) / len(scatter)
    while True:
        try:
            root = np.linalg.cholesky(scatter + ridge * unit)
        except np.linalg.LinAlgError:
            root = None
        # A root with next to nothing on its diagonal would blow up rounding errors.
        if root is not None and np.diag(root).min() > 1e-6 * np.diag(root).max():
            return np.asarray(root)
        ridge = 10 * ridge if ridge else 1e-10
