"""Choosing settings on validation data: K and α of hand-crafted methods, and the database side of a model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench, Outcome
from gqe.methods import METHODS, Method
from gqe.model_files import remade

KS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48)
# What is tried for each setting of a hand-crafted method.
GRID: dict[str, Sequence[Any]] = {"k": KS, "alpha": (0.5, 1, 2, 3, 4), "positives": (2, 3, 5, 10, 20)}
# The same for a re-ranker; the expansion before it stays as it is.
_DIFFUSED: dict[str, Sequence[Any]] = {"k": (10, 20, 50), "kq": (3, 5, 10), "alpha": (0.8, 0.95, 0.99)}
RERANKER_GRID: dict[str, dict[str, Sequence[Any]]] = {
    "diffusion": _DIFFUSED,
    "offline-diffusion": {"k": (10, 20, 50), "kq": (3, 10), "alpha": (0.8, 0.95, 0.99)},
    "spectral": _DIFFUSED,
    "hybrid-diffusion": {"k": (10, 20, 50), "kq": (3, 10), "alpha": (0.95, 0.99)},
    "egt": {"k": (10, 25, 50), "t": (0.3, 0.42, 0.6, 0.8, 1.0)},
    "gss": {"k": (5, 10), "kq": (5, 15), "epochs": (0, 200)},
    "reciprocal": {"k1": (10, 20, 30, 40), "k2": (3, 6), "lam": (0.1, 0.3, 0.6)},
    "superglobal": {"k": (3, 5, 9, 15), "beta": (0.15, 0.5, 1.0)},
}
# A list of K for the SVM of DQE is cut far down, where its negative examples are.
LIST_LENGTHS = (200, 500, 1000)
TEMPERATURES: Sequence[float | None] = (None, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
DATABASE_KS = (4, 8, 16, 24, 32, 48)
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
    if method.then is not None:
        then, worth = method.then, RERANKER_GRID.get(method.then.name, {})
        combined = [dict(zip(worth, each, strict=True)) for each in itertools.product(*worth.values())]
        return [method._replace(then=then._replace(settings=then.settings | each)) for each in combined]
    if method.name not in METHODS:
        raise InputError(f"method: {method.name!r} is a trained model; tune its database side instead")
    choices = [method]
    for key, values in GRID.items():
        if key in method.settings:
            tried = LIST_LENGTHS if key == "k" and method.name == "dqe" else values
            choices = [each.with_settings(**{key: value}) for each in choices for value in tried]
    return choices


def tune(bench: Bench, method: Method, *, progress: Progress | None = None) -> list[Outcome]:
    """Every combination of settings that is worth trying, on a validation benchmark, best first."""
    outcomes = bench.compare(grid(method), progress=progress)
    return sorted(outcomes, key=lambda outcome: -outcome.evaluation.main)


def tune_database_side(bench: Bench, method: Method, *, progress: Progress | None = None) -> DatabaseSide:
    """K_DBA and a temperature for each level, the model frozen and the query's side as it is.

    One setting is changed at a time (first K, then each temperature from the last level down, twice over),
    and kept if it is better: a full grid would cost |K| * |T|^L augmentations.
    """
    stack = method.stack()
    side = _Trial(max(level.k for level in stack), tuple(level.temperature for level in stack))
    measured: dict[_Trial, float] = {}

    def reached(trial: _Trial) -> float:
        if trial not in measured:
            if progress is not None:
                progress(len(measured), most, str(trial))
            pairs = zip(stack, trial.temperatures, strict=True)
            levels = [remade([level], k=trial.k, temperature=t)[0] for level, t in pairs]
            measured[trial] = bench.run(method._replace(dba=True), database_stack=levels).evaluation.main
        return measured[trial]

    most = 2 * (len(DATABASE_KS) + len(stack) * len(TEMPERATURES))
    best = max([side, *(side._replace(k=k) for k in DATABASE_KS)], key=reached)
    for _ in range(2):
        before = best
        for level in reversed(range(len(stack))):
            best = max([best, *(best.tempered(level, t) for t in TEMPERATURES)], key=reached)
        best = max([best, *(best._replace(k=k) for k in DATABASE_KS)], key=reached)
        if best == before:
            break
    tried = [{"k": t.k, "temperatures": list(t.temperatures), "map": value} for t, value in measured.items()]
    return DatabaseSide(best.k, list(best.temperatures), tried)


class _Trial(NamedTuple):
    k: int
    temperatures: tuple[float | None, ...]

    def tempered(self, level: int, temperature: float | None) -> _Trial:
        changed = list(self.temperatures)
        changed[level] = temperature
        return self._replace(temperatures=tuple(changed))

    def __str__(self) -> str:
        return f"K {self.k}, T {self.temperatures}"
