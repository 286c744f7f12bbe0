"""All stages together: whether they fit, how long they take, and what to change if they do not fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from gqe.errors import InputError
from gqe.planning.checks import Check, checks, error, shares
from gqe.planning.costs import Layout, Stage, all_stages, built_shards, fewest_shards, layout
from gqe.planning.hardware import Nodes
from gqe.planning.job import Job
from gqe.planning.quantities import as_bytes
from gqe.planning.serving import BATCHES, Serving, serving
from gqe.planning.speeds import PEAKS, Speeds

# Of memory and disk; the rest is for the system and for what nobody counts.
_USABLE = 0.9
_MOST_NODES = 100_000


class Timed(NamedTuple):
    """A stage, how long it takes, and what it waits for."""

    stage: Stage
    seconds: float
    bound: str


class Shortfall(NamedTuple):
    """What does not fit on a node.

    Attributes:
        what: the stage, or serving.
        of: GPU memory, host memory or disk.
        needed: bytes.
        there: bytes that can be used.
    """

    what: str
    of: str
    needed: float
    there: float

    def __str__(self) -> str:
        return f"{self.what}: {as_bytes(self.needed)} of {self.of} a node, {as_bytes(self.there)} can be used"


@dataclass(frozen=True)
class Plan:
    """What a job needs on some nodes.

    Attributes:
        job: what is built.
        nodes: where.
        cut: shards and their rows.
        stages: in order.
        serving: one replica over all nodes.
        latency: seconds of a request, by its number of queries.
        lacks: what does not fit.
        remedies: what would, each a sentence.
        assumed: shares of peaks that no run has measured.
        shares: of the peaks that were measured and used, by kind of work.
        checks: the model beside measured runs.
        faster: another number of shards and the seconds of a build with it, if it saves much.
    """

    job: Job
    nodes: Nodes
    cut: Layout
    stages: list[Timed]
    serving: Serving
    latency: dict[int, float]
    lacks: list[Shortfall]
    remedies: list[str]
    assumed: list[str]
    shares: dict[str, float]
    checks: tuple[Check, ...]
    faster: tuple[int, float] | None

    @property
    def fits(self) -> bool:
        """Whether everything fits."""
        return not self.lacks

    @property
    def seconds(self) -> float:
        """Of the whole build."""
        return sum(timed.seconds for timed in self.stages)

    @property
    def flops(self) -> float:
        """Of the whole build, on all nodes."""
        return sum(timed.stage.flops for timed in self.stages)

    @property
    def network(self) -> float:
        """Bytes that each node receives during the build."""
        return sum(timed.stage.network for timed in self.stages)

    @property
    def disk(self) -> float:
        """Bytes of the index on each node."""
        return sum(timed.stage.disk for timed in self.stages)

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        stages = [
            {
                "stage": stage.name,
                "gpu_memory_bytes": stage.memory,
                "host_memory_bytes": stage.host_memory,
                "disk_bytes": stage.disk,
                "network_bytes": stage.network,
                "flops_of_all_nodes": stage.flops,
                "seconds": seconds,
                "bound_by": bound,
            }
            for stage, seconds, bound in self.stages
        ]
        rows = [{**asdict(check), "error": check.error} for check in self.checks]
        return {
            "job": asdict(self.job),
            "nodes": {"count": self.nodes.count, **asdict(self.nodes.kind)},
            "shards": self.cut.shards,
            "rows_a_shard": self.cut.rows,
            "stages_on_each_node": stages,
            "build": {
                "seconds": self.seconds,
                "node_hours": self.seconds * self.nodes.count / 3600,
                "flops": self.flops,
                "network_bytes_on_each_node": self.network,
                "disk_bytes_on_each_node": self.disk,
                "disk_bytes_in_all": self.disk * self.nodes.count,
            },
            "serving": {
                "memory_bytes_on_each_node": self.serving.memory,
                "host_memory_bytes_on_each_node": self.serving.host_memory,
                "network_bytes_a_query": self.serving.network,
                "seconds_of_a_request": {str(batch): value for batch, value in self.latency.items()},
            },
            "faster": None
            if self.faster is None
            else dict(zip(("shards", "seconds"), self.faster, strict=True)),
            "fits": self.fits,
            "lacks": [lack._asdict() for lack in self.lacks],
            "remedies": self.remedies,
            "measured_shares": self.shares,
            "assumed_shares": self.assumed,
            "model_error": {unit: asdict(error(self.checks, unit)) for unit in ("s", "B")},
            "checks": rows,
        }


def plan(job: Job, nodes: Nodes, shards: int | None = None) -> Plan:
    """What a build and its serving need.

    Args:
        job: what is built.
        nodes: where.
        shards: into how many the rows are cut; as few as fit if None.

    Example:
        >>> from gqe.planning.hardware import parse_nodes
        >>> made = plan(Job(1_000_000, 2048, k=44, method="gqe"), parse_nodes("H200"))
        >>> made.fits, [timed.stage.name for timed in made.stages]
        (True, ['read', 'graph (exact)', 'level 1', 'augmentation', 'write'])
    """
    if shards is not None and not nodes.count <= shards <= job.items:
        raise InputError(
            f"--shards: {shards} for {nodes.count} nodes and {job.items} items; give at least one a node"
        )
    cut = layout(job, nodes, shards)
    speeds = Speeds(nodes.kind, shares())
    stages = [_timed(stage, speeds, nodes.count) for stage in all_stages(job, cut, nodes.kind)]
    served = serving(job, cut, nodes.kind)
    latency = {batch: served.seconds(speeds, batch) for batch in BATCHES}
    short = lacks(job, nodes, cut)
    used = {work.kind for timed in stages for work in timed.stage.works}
    used |= {work.kind for works in served.works.values() for work in works}
    return Plan(
        job,
        nodes,
        cut,
        stages,
        served,
        latency,
        short,
        _remedies(job, nodes, shards) if short else [],
        sorted(speeds.assumed),
        {kind: speeds.share(kind) for kind in PEAKS if kind in used and speeds.measured(kind)},
        checks(),
        _faster(job, nodes, cut, sum(timed.seconds for timed in stages)),
    )


def _faster(job: Job, nodes: Nodes, cut: Layout, seconds: float) -> tuple[int, float] | None:
    """Fewer shards that fit and save a twentieth of the time: each of them reads all the others."""
    other = layout(job, nodes, 2 * fewest_shards(job, nodes))
    if other.shards >= cut.shards or lacks(job, nodes, other):
        return None
    speeds = Speeds(nodes.kind, shares())
    needed = sum(_timed(s, speeds, nodes.count).seconds for s in all_stages(job, other, nodes.kind))
    return (other.shards, needed) if needed < 0.95 * seconds else None


def _timed(stage: Stage, speeds: Speeds, nodes: int) -> Timed:
    lanes = stage.lanes(speeds, nodes)
    slowest = max(lanes, key=lambda lane: lanes[lane])
    return Timed(stage, lanes[slowest], slowest if lanes[slowest] else "")


def lacks(job: Job, nodes: Nodes, cut: Layout | None = None) -> list[Shortfall]:
    """What does not fit, cut as given or into as few shards as possible."""
    kind, cut = nodes.kind, cut or layout(job, nodes)
    memory, host, disk = (_USABLE * value for value in (kind.memory, kind.host_memory, kind.disk))
    stages, served = all_stages(job, cut, kind), serving(job, cut, kind)
    found = []
    for stage in stages:
        if kind.gpu and stage.memory > memory:
            found.append(Shortfall(stage.name, "GPU memory", stage.memory, memory))
        if stage.host_memory > host:
            found.append(Shortfall(stage.name, "host memory", stage.host_memory, host))
    # The vectors that are read lie there, too.
    stored = sum(stage.disk for stage in stages) + job.table_bytes / nodes.count
    if stored > disk:
        found.append(Shortfall("index and input", "disk", stored, disk))
    if served.memory > (memory if kind.gpu else host):
        what = "GPU memory" if kind.gpu else "host memory"
        found.append(Shortfall("serving", what, served.memory, memory if kind.gpu else host))
    if kind.gpu and served.host_memory > host + disk:  # looked up through mapped files
        found.append(Shortfall("serving", "host memory and disk", served.host_memory, host + disk))
    return found


def _remedies(job: Job, nodes: Nodes, shards: int | None) -> list[str]:
    """Single changes after which everything fits."""
    result = []
    for other in (built_shards(job, nodes), fewest_shards(job, nodes)):
        if other != shards and not lacks(job, nodes, layout(job, nodes, other)):
            result.append(f"cut into {other} shards (--shards {other})")
            break
    enough = _enough(job, nodes)
    if enough is not None:
        result.append(f"use {enough}x{nodes.kind.name}")
    for dtype in ("float16", "int8"):
        smaller = replace(job, dtype=dtype)
        if smaller.row_bytes < job.row_bytes and not lacks(smaller, nodes):
            result.append(f"store {dtype} (--dtype {dtype})")
            break
    if job.dba and not lacks(replace(job, dba=False), nodes):
        result.append("leave out the augmented database (--no-dba)")
    dim = job.dim
    while dim > 64 and lacks(replace(job, dim=dim), nodes):
        dim //= 2
    if dim < job.dim and not lacks(replace(job, dim=dim), nodes):
        result.append(f"reduce the dimension to {dim} by whitening (`gqe whiten`, --dim {dim})")
    return result or ["no single change is enough: use nodes with more memory, or fewer items"]


def _enough(job: Job, nodes: Nodes) -> int | None:
    """The fewest nodes of this kind on which everything fits; None if there is no such number."""
    most = nodes.count
    while most < _MOST_NODES and lacks(job, replace(nodes, count=most)):
        most *= 2
    if lacks(job, replace(nodes, count=most)):
        return None
    least = most // 2  # does not fit, or is fewer than given
    while most - least > 1:
        middle = (most + least) // 2
        if lacks(job, replace(nodes, count=middle)):
            least = middle
        else:
            most = middle
    return most
