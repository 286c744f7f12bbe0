"""The model beside measured runs: some of them set its shares of the peaks, the others show its error."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gqe.planning.costs import Stage, all_stages, layout
from gqe.planning.hardware import Nodes, parse_nodes
from gqe.planning.job import Job
from gqe.planning.serving import serving
from gqe.planning.speeds import Speeds, Work, place_of

FILE = "measured.json"
_GRAPH = "graph"


@dataclass(frozen=True)
class Run:
    """A measured run.

    Attributes:
        what: in words.
        source: where it stands.
        nodes: what it ran on.
        job: its sizes.
        stages: of a build that `seconds` covers; none for searches.
        queries: of a search, 0 for a build.
        works: what it computed where that is no stage of ours.
        only: kinds of work that it covers; all if empty.
        times: how often the stages were run through.
        seconds: measured.
        disk: bytes of the index, if measured.
        memory: bytes resident, if measured.
        fits: the kind of work whose share it sets, or None: it only checks.
    """

    what: str
    source: str
    nodes: Nodes
    job: Job
    stages: tuple[str, ...]
    queries: int
    works: tuple[Work, ...]
    only: tuple[str, ...]
    times: int
    seconds: float
    disk: float | None
    memory: float | None
    fits: str | None


@dataclass(frozen=True)
class Check:
    """A run beside the model.

    Attributes:
        what: the run, and what of it is compared.
        source: where the run stands.
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
        """Of the model, as a share of what was measured; above 0 where the model says more."""
        return self.modelled / self.measured - 1


def works_of(run: Run) -> list[Work]:
    """All work of a run on its one node."""
    cut = layout(run.job, run.nodes)
    if run.works:
        return list(run.works)
    if run.queries:
        works = list(serving(run.job, cut, run.nodes.kind).works[run.queries])
    else:
        works = [work for stage in _stages(run) for work in _computed(stage)] * run.times
    return [work for work in works if not run.only or work.kind in run.only]


def _computed(stage: Stage) -> tuple[Work, ...]:
    return (*stage.works, Work("disk", stage.flushed))


def _stages(run: Run) -> list[Stage]:
    stages = all_stages(run.job, layout(run.job, run.nodes), run.nodes.kind)
    known = {_short(stage): stage for stage in stages}
    return [known[name] for name in run.stages]


def _short(stage: Stage) -> str:
    return _GRAPH if stage.name.startswith(_GRAPH) else stage.name


@cache
def measured_runs() -> tuple[Run, ...]:
    """The runs that ship with the package."""
    content = json.loads(resources.files("gqe.planning").joinpath(FILE).read_text(encoding="utf-8"))
    return tuple(run_of(entry) for entry in content["runs"])


def run_of(entry: dict[str, Any]) -> Run:
    """A run from its entry in the file."""
    return Run(
        what=entry["what"],
        source=entry["source"],
        nodes=parse_nodes(entry["nodes"]),
        job=Job(**entry["job"]),
        stages=tuple(entry.get("stages", ())),
        queries=entry.get("queries", 0),
        works=tuple(Work(kind, amount) for kind, amount in entry.get("works", ())),
        only=tuple(entry.get("only", ())),
        times=entry.get("times", 1),
        seconds=entry["seconds"],
        disk=entry.get("disk"),
        memory=entry.get("memory"),
        fits=entry.get("fits"),
    )


def fitted(runs: Sequence[Run]) -> dict[tuple[str, str], float]:
    """Shares of the peaks by place and kind of work: what makes the model right on the runs that fit.

    A run that fits may hold other work, too, if an earlier run has set its share.
    """
    shares: dict[tuple[str, str], float] = {}
    for run in runs:
        if run.fits is None:
            continue
        speeds = Speeds(run.nodes.kind, shares | {(place_of(run.nodes.kind), run.fits): 1.0})
        works = works_of(run)
        at_peak = sum(speeds.seconds(work) for work in works if work.kind == run.fits)
        others = sum(speeds.seconds(work) for work in works if work.kind != run.fits)
        if at_peak <= 0 or others >= run.seconds:
            raise ValueError(f"{run.what}: cannot set the share of {run.fits}")
        shares[place_of(run.nodes.kind), run.fits] = at_peak / (run.seconds - others)
    return shares


@cache
def shares() -> dict[tuple[str, str], float]:
    """Shares of the peaks, from the runs that ship."""
    return fitted(measured_runs())


@cache
def checks() -> tuple[Check, ...]:
    """The runs that ship beside the model, those that set its shares first."""
    return compared(measured_runs())


def compared(runs: Sequence[Run]) -> tuple[Check, ...]:
    """Runs beside the model whose shares they set."""
    known = fitted(runs)
    rows = [check for run in runs for check in _compared(run, known)]
    return tuple(sorted(rows, key=lambda check: check.fits is None))


def _compared(run: Run, known: dict[tuple[str, str], float]) -> list[Check]:
    speeds = Speeds(run.nodes.kind, known)
    modelled = sum(speeds.seconds(work) for work in works_of(run))
    rows = [Check(run.what, run.source, run.seconds, modelled, "s", run.fits)]
    stages = all_stages(run.job, layout(run.job, run.nodes), run.nodes.kind)
    if run.disk is not None:
        disk = sum(stage.disk for stage in stages)
        rows.append(Check(f"{run.what}: on disk", run.source, run.disk, disk, "B", None))
    if run.memory is not None:
        memory = max(stage.host_memory for stage in stages)
        rows.append(Check(f"{run.what}: resident", run.source, run.memory, memory, "B", None))
    return rows


@dataclass(frozen=True)
class Error:
    """How far the model is off on the runs that did not set its shares.

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


def error(rows: Sequence[Check], unit: str) -> Error:
    """Of the checks in one unit."""
    chosen = [row for row in rows if row.fits is None and row.unit == unit]
    factors = {row.what: abs(math.log(row.modelled / row.measured)) for row in chosen}
    worst = max(factors, key=lambda what: factors[what])
    typical = math.exp(sum(factors.values()) / len(factors))
    return Error(len(chosen), typical, math.exp(factors[worst]), worst)
