"""What the benchmarks share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np


def clustered(n: int, dim: int, seed: int = 0) -> np.ndarray:
    """(n, dim) unit vectors around n / 50 centres that are the same for every seed."""
    centres = np.random.default_rng(99).normal(size=(max(1, n // 50), dim)).astype(np.float32)
    rng = np.random.default_rng(seed)
    vectors = centres[rng.integers(len(centres), size=n)]
    vectors += 0.7 * rng.standard_normal(vectors.shape, dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that a piece of work takes, and what it gives."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result
