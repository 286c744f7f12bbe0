"""An index of shards without a cluster: its tasks run here, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from gqe.cluster.building import ClusterBuild
from gqe.cluster.job import Bounds, JobState
from gqe.cluster.storage import Storage, open_storage
from gqe.formats.sources import open_source
from gqe.index import Index
from gqe.index.manifest import BUILDING, MANIFEST, manifest_bytes
from gqe.index.plan import BuildPlan, make_plan
from gqe.index.shards import even_bounds


class Stopped(Exception):
    """Where a build was told to stop."""


class Alone:
    """A crew of one, without Ray."""

    ray = SimpleNamespace(put=lambda value: value)
    device = "cpu"
    workers = 1

    def task(self, function: Callable[..., Any], returns: int = 1, *, spread: bool = False) -> Any:
        return SimpleNamespace(remote=function)

    def run(self, chains: Iterable[Any]) -> None:
        for chain in chains:
            result = None
            while True:
                try:
                    result = chain.send(result)
                except StopIteration:
                    break

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        return function(*given)


def build_in_shards(
    table: np.ndarray,
    expander: Any,
    path: Path,
    shards: int,
    *,
    ids: Any = None,
    metadata: Any = None,
    storage: Any = "float32",
    dba: bool = False,
    recall: float | None = None,
    approximate_by: str = "auto",
    stop: tuple[str, int] | None = None,
) -> Index:
    """What `build_index` does, in this process; `stop` ends it in a stage, after some of its tasks."""

    def progress(done: int, _: int, what: str) -> None:
        if (what, done) == stop:
            raise Stopped

    path.mkdir(exist_ok=True)
    np.save(path / "given.npy", table)
    source = open_source(path / "given.npy")
    plan = make_plan(source, expander, ids, metadata, storage, dba, recall, approximate_by, "cpu", 0)
    run_alone(plan, open_storage(path), even_bounds(len(table), min(shards, max(1, len(table)))), progress)
    (path / "given.npy").unlink()
    return Index.open(path, device="cpu")


def run_alone(
    plan: BuildPlan, storage: Storage, bounds: Bounds, progress: Callable[[int, int, str], None] | None = None
) -> JobState:
    """All tasks of a job in this process."""
    try:
        job = JobState(storage, "here", bounds)
        manifest = ClusterBuild(plan, job, Alone(), progress).run()
        storage.write(MANIFEST, manifest_bytes(manifest))
        storage.remove(BUILDING)
    finally:
        storage.clean()
    return job
