"""Choosing settings on a cluster: each setting of the grid is one task.

The driver compares what tasks have measured in the order of the grid, so it chooses what `gqe tune` chooses
without a cluster.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gqe.cluster.running import Chain, TaskRunner
from gqe.cluster.session import connect, ray_module
from gqe.datasets.base import Benchmark
from gqe.evaluation import tuning as grids
from gqe.evaluation.benchmark import Bench, Outcome
from gqe.evaluation.tuning import DatabaseSide, Progress, Side
from gqe.methods import Method

log = logging.getLogger(__name__)

# The benchmark that a worker process is at, made ready once for all of its tasks.
_ready: dict[str, Bench] = {}


class Trial(NamedTuple):
    """What all tasks of a tuning know.

    Attributes:
        name: of this tuning, unlike all others.
        settings: of `Bench`.
    """

    name: str
    settings: dict[str, Any]


def tune_on_cluster(
    benchmark: Benchmark,
    method: Method,
    *,
    cluster: str = "auto",
    recall: float | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> list[Outcome]:
    """`gqe.evaluation.tuning.tune` with the settings tried by a cluster, best first.

    Args:
        benchmark: validation data.
        method: a hand-crafted method, or an expansion with a re-ranker. All nodes must see the folder of a
            trained model under the same path.
        cluster: see `gqe.cluster.session.connect`.
        recall: see `Bench`.
        seed: see `Bench`.
        device: see `Bench`.
        progress: called with settings done, settings in all, and the latest.
    """
    tried = grids.grid(method)
    Bench(benchmark, device="cpu", recall=recall, seed=seed)  # refuses bad data before a cluster is joined
    with _Tuning(benchmark, cluster, recall, seed, device) as tuning:
        outcomes = tuning.each(run_method, tried, progress, len(tried))
    return grids.best_first(outcomes)


def tune_database_side_on_cluster(
    benchmark: Benchmark,
    method: Method,
    *,
    cluster: str = "auto",
    recall: float | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> DatabaseSide:
    """`gqe.evaluation.tuning.tune_database_side` with the sides of each step tried side by side."""
    stack, measured = method.stack(), dict[Side, float]()
    Bench(benchmark, device="cpu", recall=recall, seed=seed)
    with _Tuning(benchmark, cluster, recall, seed, device) as tuning:

        def ahead(sides: list[Side]) -> None:
            new = list(dict.fromkeys(side for side in sides if side not in measured))
            given = [(method, side) for side in new]
            found = tuning.each(run_side, given, progress, grids.max_sides(stack), len(measured))
            measured.update(zip(new, found, strict=True))

        best = grids.best_side(
            stack, measured.__getitem__, ks=grids.DATABASE_KS, temperatures=grids.TEMPERATURES, ahead=ahead
        )
    return grids.database_side(best, measured)


class _Tuning:
    """A cluster whose workers know the benchmark."""

    def __init__(
        self, benchmark: Benchmark, cluster: str, recall: float | None, seed: int, device: str
    ) -> None:
        self.ray = ray_module()
        self.benchmark = benchmark
        self.settings = {"recall": recall, "seed": seed}
        self.device = device
        self._session = connect(cluster)

    def __enter__(self) -> _Tuning:
        session = self._session.__enter__()
        device = "cuda" if session.gpus and self.device != "cpu" else "cpu"
        self.crew = TaskRunner(self.ray, session, device, self.benchmark.name)
        self.trial = Trial(uuid.uuid4().hex, self.settings | {"device": device})
        self.data = self.ray.put(replace(self.benchmark, picture=None))
        return self

    def __exit__(self, *problem: Any) -> None:
        self._session.__exit__(*problem)

    def each(
        self,
        function: Callable[..., Any],
        given: Sequence[Any],
        progress: Progress | None,
        total: int,
        before: int = 0,
    ) -> list[Any]:
        """What a function gives for each of these, in order."""
        task = self.crew.task(function)
        results: dict[int, Any] = {}

        def chain(number: int) -> Chain:
            results[number] = yield task.remote(self.trial, self.data, given[number])
            if progress is not None:
                progress(before + len(results), max(total, before + len(results)), _shown(given[number]))

        self.crew.run(chain(number) for number in range(len(given)))
        return [results[number] for number in range(len(given))]


def run_method(trial: Trial, benchmark: Benchmark, method: Method) -> Outcome:
    """One setting: the task."""
    return _bench(trial, benchmark).run(method)


def run_side(trial: Trial, benchmark: Benchmark, given: tuple[Method, Side]) -> float:
    """One side of the database: the task."""
    return grids.measure_side(_bench(trial, benchmark), *given)


def _bench(trial: Trial, benchmark: Benchmark) -> Bench:
    """The benchmark made ready; neighbours that one task has searched for serve the next."""
    if trial.name not in _ready:
        _ready.clear()
        _ready[trial.name] = Bench(benchmark, **trial.settings)
    return _ready[trial.name]


def _shown(given: Any) -> str:
    return str(given[1]) if isinstance(given, tuple) and not isinstance(given, Method) else str(given)
