"""What all tests share."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import typer.main
from hypothesis import settings

# `literal`, the oracle, is imported by tests in several folders.
sys.path.insert(0, str(Path(__file__).parent))

# The same examples in every run; a slow machine is no failure.
settings.register_profile("gqe", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("gqe")

# A process runs one command line, for which all commands are made from their functions; tests run many.
typer.main.get_command = functools.cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Ctrl+C stays what it is in tests that run the command in this process."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def random_unit() -> Callable[..., np.ndarray]:
    """Make (n, d) float32 random unit vectors."""

    def make(n: int, d: int, seed: int = 0) -> np.ndarray:
        vectors = np.random.default_rng(seed).normal(size=(n, d))
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    return make
