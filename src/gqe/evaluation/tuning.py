"""Choosing settings on validation data, of hand-crafted methods, models and re-rankers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gqe.aggregators import Aggregator
from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench, MethodResult
from gqe.methods import METHODS, Method
from gqe.model_files import with_side
from gqe.rerank import RERANKERS

TEMPERATURES: Sequence[float | None] = (None, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
DATABASE_KS = (4, 8, 16, 24, 32, 48)
CONTRASTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
Progress = Callable[[int, int, str], None]


class DatabaseSide(NamedTuple):
    """The best setting of a model's database side.

    Attributes:
        k: K_DBA.
        temperatures: T_1..T_L, None where the weights are left as they are.
        tried: every setting that was tried, with the mAP it reached.
    """

    k: int
    temperatures: list[float | None]
    tried: list[dict[str, Any]]

    @property
    def map(self) -> float:
        """The mAP of the best setting."""
        return max(float(row["map"]) for row in self.tried)


def grid(method: Method) -> list[Method]:
    """The method with every combination of the settings that are worth trying.

    Of a method with a re-ranker these are the settings of the re-ranker.
    """
    reranking = method.reranking
    if reranking is not None:
        tried = _combinations(RERANKERS[reranking.name].tuning_grid)
        return [
            method.replace(reranking=reranking._replace(settings=reranking.settings | each)) for each in tried
        ]
    if method.name not in METHODS:
        raise InputError(f"method: {method.name!r} is a trained model; use tune_database_side")
    values = METHODS[method.name].tuning_grid
    tried = _combinations({key: values[key] for key in values if key in method.settings})
    return [method.with_settings(**each) for each in tried]


def _combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def tune(bench: Bench, method: Method, *, progress: Progress | None = None) -> list[MethodResult]:
    """Every combination of settings that is worth trying, on a validation benchmark, best first."""
    return best_first(bench.compare(grid(method), progress=progress))


def best_first(outcomes: Sequence[MethodResult]) -> list[MethodResult]:
    """Outcomes by falling mAP; equals stay in the order they were tried in."""
    return sorted(outcomes, key=lambda outcome: -outcome.evaluation.main)


def best_contrast(benches: Sequence[Bench], stack: Sequence[Aggregator]) -> tuple[float, dict[float, float]]:
    """The best weight of negatives (`gqe.negatives`) for a stack, and the mAP of all that were tried.

    The mean mAP over the benches, with the plain and with the augmented database, decides, and the least of
    equals.
    """
    results = [bench.evaluate_contrasts(stack, CONTRASTS) for bench in benches]
    reached = {
        contrast: sum(plain.main + augmented.main for plain, augmented in column) / (2 * len(benches))
        for contrast, *column in zip(CONTRASTS, *results, strict=True)
    }
    return max(CONTRASTS, key=reached.__getitem__), reached


class Side(NamedTuple):
    """K and the temperatures of the database's side of a model, None where weights are left as they are."""

    k: int
    temperatures: tuple[float | None, ...]

    def with_temperature(self, level: int, temperature: float | None) -> Side:
        """The same with another temperature of one level."""
        changed = list(self.temperatures)
        changed[level] = temperature
        return self._replace(temperatures=tuple(changed))

    def __str__(self) -> str:
        shown = "/".join("–" if t is None else f"{t:g}" for t in self.temperatures)
        return f"K_DBA={self.k} T={shown}"


def best_side(
    stack: Sequence[Aggregator],
    reached: Callable[[Side], float],
    *,
    ks: Sequence[int],
    temperatures: Sequence[float | None],
    ahead: Callable[[list[Side]], None] | None = None,
) -> Side:
    """The best side found by changing one setting at a time, and keeping what is better.

    First K, then each temperature from the last level down, twice over: a full grid would cost |K| * |T|^L
    augmentations. No K is tried that the model has no positions for.

    Args:
        stack: of the model.
        reached: the mAP of a side; asked more than once for some.
        ks: to try.
        temperatures: to try.
        ahead: called with the sides that are tried next, in order, so that several can be tried at once.
    """

    def best_of(sides: list[Side]) -> Side:
        if ahead is not None:
            ahead(sides)
        return max(sides, key=reached)

    room = min(level.settings().get("positions", math.inf) for level in stack)
    fitting = [k for k in ks if k <= room]
    start = Side(min(room, max(level.k for level in stack)), tuple(level.temperature for level in stack))
    best = best_of([start, *(start._replace(k=k) for k in fitting)])
    for _ in range(2):
        before = best
        for level in reversed(range(len(stack))):
            best = best_of([best, *(best.with_temperature(level, t) for t in temperatures)])
        best = best_of([best, *(best._replace(k=k) for k in fitting)])
        if best == before:
            break
    return best


def tune_database_side(bench: Bench, method: Method, *, progress: Progress | None = None) -> DatabaseSide:
    """K_DBA and a temperature for each level, the model frozen and the query's side as it is."""
    stack = method.stack()
    measured: dict[Side, float] = {}

    def reached(side: Side) -> float:
        if side not in measured:
            if progress is not None:
                progress(len(measured), max_sides(stack), str(side))
            measured[side] = measure_side(bench, method, side)
        return measured[side]

    best = best_side(stack, reached, ks=DATABASE_KS, temperatures=TEMPERATURES)
    return database_side(best, measured)


def max_sides(stack: Sequence[Aggregator]) -> int:
    """About how many sides are tried at most."""
    return 2 * (len(DATABASE_KS) + len(stack) * len(TEMPERATURES))


def measure_side(bench: Bench, method: Method, side: Side) -> float:
    """The mAP of a method with this side of the database."""
    stack = with_side(method.stack(), *side)
    return bench.run(method.replace(dba=True), database_stack=stack).evaluation.main


def database_side(best: Side, measured: dict[Side, float]) -> DatabaseSide:
    """The best side, and all that were tried."""
    tried = [{"k": t.k, "temperatures": list(t.temperatures), "map": value} for t, value in measured.items()]
    return DatabaseSide(best.k, list(best.temperatures), tried)
