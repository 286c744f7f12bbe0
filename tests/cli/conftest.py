"""Run the command line as a user does, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from gqe import cli


class Ran(NamedTuple):
    status: int
    out: str
    err: str


def status_of(*arguments: object) -> int:
    """Run a command line; its exit status."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("sys.argv", ["gqe", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


@pytest.fixture
def gqe(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*arguments: object) -> Ran:
        status = status_of(*arguments)
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with database.npy (40, 8), queries.npy (5, 8) and labels.npz, a benchmark of both."""
    return write_files(tmp_path)


@pytest.fixture(scope="session")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same folder with the index of the shipped model in it, to be copied."""
    folder = write_files(tmp_path_factory.mktemp("indexed"))
    assert status_of("index", "build", folder / "database.npy", folder / "index", "-m", "universal") == 0
    return folder


def write_files(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, 8))
    labels = np.repeat(np.arange(5), 8)
    database = (centres[labels] + 0.5 * rng.normal(size=(40, 8))).astype(np.float32)
    database /= np.linalg.norm(database, axis=1, keepdims=True)
    queries = (centres + 0.5 * rng.normal(size=(5, 8))).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    np.save(folder / "database.npy", database)
    np.save(folder / "queries.npy", queries)
    np.savez(
        folder / "labels.npz",
        queries=queries,
        query_labels=np.arange(5),
        database=database,
        database_labels=labels,
    )
    return folder
