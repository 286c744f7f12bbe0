"""The model beside measured runs: some of them set its shares of the peaks, the others show its error."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gqe.planning.costs import serving_of, shard, stages_of
from gqe.planning.hardware import Nodes, Speeds, WorkAmount, parse_nodes
from gqe.planning.job import Job

Shares = dict[tuple[str, str], float]
_GRAPH = "graph"


@dataclass(frozen=True)
class MeasuredRun:
    """A measured run, as in measured.json.

    Attributes:
        what: in words.
        source: where the measurement is documented.
        nodes: what it ran on.
        job: its sizes.
        seconds: measured.
        stages: of a build that `seconds` covers; none for searches.
        queries: of a search, 0 for a build.
        works: what it computed where that is no stage of ours.
        only: kinds of work that it covers; all if empty.
        times: how often the stages were run through.
        disk: bytes of the index, if measured.
        memory: bytes resident, if measured.
        fits: the kind of work whose share it sets, or None: it only checks.
    """

    what: str
    source: str
    nodes: Nodes
    job: Job
    seconds: float
    stages: tuple[str, ...] = ()
    queries: int = 0
    works: tuple[WorkAmount, ...] = ()
    only: tuple[str, ...] = ()
    times: int = 1
    disk: float | None = None
    memory: float | None = None
    fits: str | None = None

    @property
    def all_works(self) -> list[WorkAmount]:
        """All work of the run on its one node."""
        if self.works:
            return list(self.works)
        sharding, node = shard(self.job, self.nodes), self.nodes.kind
        if self.queries:
            works = list(serving_of(self.job, sharding, node).works[self.queries])
        else:
            stages = {
                _GRAPH if stage.name.startswith(_GRAPH) else stage.name: stage
                for stage in stages_of(self.job, sharding, node)
            }
            covered = [stages[name] for name in self.stages] * self.times
            works = [work for stage in covered for work in (*stage.works, WorkAmount("disk", stage.flushed))]
        return [work for work in works if not self.only or work.kind in self.only]


@dataclass(frozen=True)
class Check:
    """A run beside the model.

    Attributes:
        what: the run, and what of it is compared.
        source: where the measurement is documented.
        measured: seconds or bytes.
        modelled: the same.
        unit: "s" or "B".
        fits: the kind of work that this run set, or None.
    """

    what: str
    source: str
    measured: float
    modelled: float
    unit: str
    fits: str | None

    @property
    def error(self) -> float:
        """Of the model, relative to the measurement; above 0 where the model says more."""
        return self.modelled / self.measured - 1


@cache
def measured_runs() -> tuple[MeasuredRun, ...]:
    """The runs that ship with the package."""
    text = resources.files("gqe.planning").joinpath("measured.json").read_text(encoding="utf-8")
    return tuple(_parse_run(entry) for entry in json.loads(text)["runs"])


def _parse_run(entry: dict[str, Any]) -> MeasuredRun:
    values = dict(entry)
    values |= {name: tuple(entry[name]) for name in ("stages", "only") if name in entry}
    values["works"] = tuple(WorkAmount(kind, amount) for kind, amount in entry.get("works", ()))
    values["nodes"], values["job"] = parse_nodes(entry["nodes"]), Job(**entry["job"])
    return MeasuredRun(**values)


def fit_shares(runs: Sequence[MeasuredRun]) -> Shares:
    """Shares of the peaks by place and kind of work: what makes the model right on the runs that fit.

    A run that fits may hold other work, too, if an earlier run has set its share.
    """
    shares: Shares = {}
    for run in runs:
        if run.fits is None:
            continue
        key = run.nodes.kind.place, run.fits
        speeds = Speeds(run.nodes.kind, shares | {key: 1.0})
        at_peak = speeds.seconds(*(work for work in run.all_works if work.kind == run.fits))
        others = speeds.seconds(*(work for work in run.all_works if work.kind != run.fits))
        if at_peak <= 0 or others >= run.seconds:
            raise ValueError(f"{run.what}: cannot set the share of {run.fits}")
        shares[key] = at_peak / (run.seconds - others)
    return shares


@cache
def measured_shares() -> Shares:
    """Shares of the peaks, from the runs that ship."""
    return fit_shares(measured_runs())


@cache
def all_checks() -> tuple[Check, ...]:
    """The runs that ship beside the model, those that set its shares first."""
    return compare(measured_runs())


def compare(runs: Sequence[MeasuredRun]) -> tuple[Check, ...]:
    """Runs beside the model whose shares they set."""
    shares = fit_shares(runs)
    checks = []
    for run in runs:
        modelled = Speeds(run.nodes.kind, shares).seconds(*run.all_works)
        checks.append(Check(run.what, run.source, run.seconds, modelled, "s", run.fits))
        stages = stages_of(run.job, shard(run.job, run.nodes), run.nodes.kind)
        if run.disk is not None:
            disk = sum(stage.disk for stage in stages)
            checks.append(Check(f"{run.what}: on disk", run.source, run.disk, disk, "B", None))
        if run.memory is not None:
            memory = max(stage.host_memory for stage in stages)
            checks.append(Check(f"{run.what}: resident", run.source, run.memory, memory, "B", None))
    return tuple(sorted(checks, key=lambda check: check.fits is None))


@dataclass(frozen=True)
class ModelError:
    """The error of the model on the runs that did not set its shares.

    Attributes:
        runs: how many.
        typical: the factor it is off by, as a geometric mean.
        worst: the largest factor.
        worst_of: the run with it.
    """

    runs: int
    typical: float
    worst: float
    worst_of: str


def model_error(checks: Sequence[Check], unit: str) -> ModelError:
    """Of the checks in one unit."""
    chosen = [check for check in checks if check.fits is None and check.unit == unit]
    factors = {check.what: abs(math.log(check.modelled / check.measured)) for check in chosen}
    worst = max(factors, key=lambda what: factors[what])
    typical = math.exp(sum(factors.values()) / len(factors))
    return ModelError(len(chosen), typical, math.exp(factors[worst]), worst)
