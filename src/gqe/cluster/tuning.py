"""Choosing settings on a cluster: each setting of the grid is one task.

The driver compares what tasks have measured in the order of the grid, so it chooses what `gqe tune` chooses
without a cluster.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from gqe.cluster.session import Chain, TaskRunner, connect, ray_module
from gqe.datasets.base import Benchmark
from gqe.evaluation import tuning as grids
from gqe.evaluation.benchmark import Bench, MethodResult
from gqe.evaluation.tuning import DatabaseSide, Progress, Side
from gqe.methods import Method

# The benchmark of a tuning in this worker process, opened once for all of its tasks.
_open_benches: dict[str, Bench] = {}


def tune_on_cluster(
    benchmark: Benchmark,
    method: Method,
    *,
    cluster: str = "auto",
    recall: float | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> list[MethodResult]:
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
    methods = grids.grid(method)
    with _open_tuning(benchmark, cluster, recall, seed, device) as tuning:
        outcomes = tuning.map(run_method, methods, progress, len(methods))
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
    with _open_tuning(benchmark, cluster, recall, seed, device) as tuning:

        def ahead(sides: list[Side]) -> None:
            new = list(dict.fromkeys(side for side in sides if side not in measured))
            trials = [(method, side) for side in new]
            results = tuning.map(run_side, trials, progress, grids.max_sides(stack), len(measured))
            measured.update(zip(new, results, strict=True))

        best = grids.best_side(
            stack, measured.__getitem__, ks=grids.DATABASE_KS, temperatures=grids.TEMPERATURES, ahead=ahead
        )
    return grids.database_side(best, measured)


@contextmanager
def _open_tuning(
    benchmark: Benchmark, cluster: str, recall: float | None, seed: int, device: str
) -> Iterator[_Tuning]:
    """Join a cluster, and send it the benchmark."""
    ray = ray_module()
    Bench(benchmark, device="cpu", recall=recall, seed=seed)  # refuses bad data before a cluster is joined
    with connect(cluster) as session:
        device = "cuda" if session.gpus and device != "cpu" else "cpu"
        runner = TaskRunner(ray, session, device, benchmark.name)
        settings = {"recall": recall, "seed": seed, "device": device}
        yield _Tuning(runner, (uuid.uuid4().hex, settings, ray.put(replace(benchmark, picture=None))))


class _Tuning(NamedTuple):
    """A cluster whose workers know the benchmark.

    Attributes:
        runner: its workers.
        setup: what all tasks know: a name of its own, settings of `Bench`, and the benchmark.
    """

    runner: TaskRunner
    setup: tuple[str, dict[str, Any], Any]

    def map(
        self,
        function: Callable[..., Any],
        trials: Sequence[Any],
        progress: Progress | None,
        total: int,
        done: int = 0,
    ) -> list[Any]:
        """What a function gives for each of these, in order."""
        task, results = self.runner.task(function), dict[int, Any]()

        def chain(number: int) -> Chain:
            trial = trials[number]
            results[number] = yield task.remote(*self.setup, trial)
            if progress is not None:
                side = isinstance(trial, tuple) and not isinstance(trial, Method)
                count = done + len(results)
                progress(count, max(total, count), str(trial[1] if side else trial))

        self.runner.run(map(chain, range(len(trials))))
        return [results[number] for number in range(len(trials))]


def run_method(name: str, settings: dict[str, Any], benchmark: Benchmark, method: Method) -> MethodResult:
    """One setting: the task."""
    return _bench(name, settings, benchmark).run(method)


def run_side(name: str, settings: dict[str, Any], benchmark: Benchmark, trial: tuple[Method, Side]) -> float:
    """One side of the database: the task."""
    return grids.measure_side(_bench(name, settings, benchmark), *trial)


def _bench(name: str, settings: dict[str, Any], benchmark: Benchmark) -> Bench:
    """The open benchmark; neighbours that one task has searched for serve the next."""
    if name not in _open_benches:
        _open_benches.clear()
        _open_benches[name] = Bench(benchmark, **settings)
    return _open_benches[name]
