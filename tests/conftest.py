"""What all tests share."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import typer.main
from hypothesis import settings

# Tests report nothing to anybody: Haystack would.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

# `literal`, the oracle, is imported by tests in several folders.
# Tests of `gqe.datasets` are in `data_sets`: libraries would take a folder `datasets` here for that package.
sys.path.insert(0, str(Path(__file__).parent))

# The same examples in every run; a slow machine is no failure.
settings.register_profile("gqe", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("gqe")

# A process runs one command line, for which all commands are made from their functions; tests run many.
typer.main.get_command = functools.cache(typer.main.get_command)


# What takes longest goes first, so that all workers end together. Those that wait for other processes come
# before those that compute.
FIRST = (
    "tests/cluster/test_building.py",
    "tests/cluster/test_serving.py",
    "tests/cluster/",
    "tests/reproduce/test_running.py",
    "tests/test_contract.py",
    "tests/stores/test_sync.py",
    "tests/stores/test_serving.py",
    "tests/test_expansion_learned.py",
    "tests/index/test_crashes.py",
    "tests/cli/test_database.py",
    "tests/cli/test_train.py",
    "tests/cli/test_main.py",
    "tests/server/test_writes.py",
    "tests/benchmarks/test_soak.py",
    "tests/index/",
    "tests/cli/",
    "tests/stores/",
    "tests/server/",
    "tests/test_platforms.py",
    "tests/test_readme.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((at for at, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))

    items.sort(key=place)


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
