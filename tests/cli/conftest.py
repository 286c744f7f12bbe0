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


@pytest.fixture
def gqe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*arguments: object) -> Ran:
        monkeypatch.setattr("sys.argv", ["gqe", *map(str, arguments)])
        status = 0
        try:
            cli.main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with database.npy (40, 8), queries.npy (5, 8) and labels.npz, a benchmark of both."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, 8))
    labels = np.repeat(np.arange(5), 8)
    database = (centres[labels] + 0.5 * rng.normal(size=(40, 8))).astype(np.float32)
    database /= np.linalg.norm(database, axis=1, keepdims=True)
    queries = (centres + 0.5 * rng.normal(size=(5, 8))).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    np.save(tmp_path / "database.npy", database)
    np.save(tmp_path / "queries.npy", queries)
    np.savez(
        tmp_path / "labels.npz",
        queries=queries,
        query_labels=np.arange(5),
        database=database,
        database_labels=labels,
    )
    return tmp_path
