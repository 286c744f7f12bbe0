"""Vectors that are hard to rank."""

from __future__ import annotations

import numpy as np


def awkward(seed: int = 0) -> np.ndarray:
    """Many exact duplicates, and many items whose similarities differ by less than float32 can tell."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(40, 64))
    vectors = np.concatenate([base[rng.integers(40, size=1500)], rng.normal(size=(500, 64))])
    vectors[:700] += rng.normal(size=(700, 64)) * 1e-7
    rng.shuffle(vectors)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
