"""What all tests share."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


# What takes longest goes first, so that all workers end together; in the order of their CPU time.
FIRST = (
    "tests/cluster/",  # one worker runs all of it: its files share a cluster
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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile` does, but the tests of a cluster are one file."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return FIRST[0] if nodeid.startswith(FIRST[0]) else super()._split_scope(nodeid)

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


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
