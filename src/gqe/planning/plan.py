"""All stages together: whether they fit, how long they take, and what to change if they do not fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from gqe.errors import InputError
from gqe.planning.checks import Check, all_checks, measured_shares, model_error
from gqe.planning.costs import (
    BATCHES,
    BuildStage,
    Serving,
    Sharding,
    built_shards,
    fewest_shards,
    serving_of,
    shard,
    stages_of,
)
from gqe.planning.hardware import PEAKS, Nodes, Speeds
from gqe.planning.job import Job
from gqe.planning.quantities import as_bytes

# Of memory and disk; the rest is for the system and for what nobody counts.
_USABLE = 0.9
_MAX_NODES = 100_000


class TimedStage(NamedTuple):
    """A stage, how long it takes, and the resource it waits for."""

    stage: BuildStage
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
        needed, there = as_bytes(self.needed), as_bytes(self.there)
        return f"{self.what}: {needed} of {self.of} per node, {there} can be used"


@dataclass(frozen=True)
class CapacityPlan:
    """What a job needs on some nodes.

    Attributes:
        job: what is built.
        nodes: where.
        sharding: shards and their rows.
        stages: in order.
        serving: one replica over all nodes.
        latency: seconds of a request, by its number of queries.
        shortfalls: what does not fit.
        remedies: what would fit, each a sentence.
        assumed: shares of peaks that no run has measured.
        shares: of the peaks that were measured and used, by kind of work.
        checks: the model beside measured runs.
        faster: another number of shards and the seconds of a build with it, if it saves much.
    """

    job: Job
    nodes: Nodes
    sharding: Sharding
    stages: list[TimedStage]
    serving: Serving
    latency: dict[int, float]
    shortfalls: list[Shortfall]
    remedies: list[str]
    assumed: list[str]
    shares: dict[str, float]
    checks: tuple[Check, ...]
    faster: tuple[int, float] | None

    @property
    def fits(self) -> bool:
        """Whether everything fits."""
        return not self.shortfalls

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
        faster = self.faster and dict(zip(("shards", "seconds"), self.faster, strict=True))
        return {
            "job": asdict(self.job),
            "nodes": {"count": self.nodes.count, **asdict(self.nodes.kind)},
            "shards": self.sharding.shards,
            "rows_a_shard": self.sharding.rows,
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
            "faster": faster,
            "fits": self.fits,
            "lacks": [shortfall._asdict() for shortfall in self.shortfalls],
            "remedies": self.remedies,
            "measured_shares": self.shares,
            "assumed_shares": self.assumed,
            "model_error": {unit: asdict(model_error(self.checks, unit)) for unit in ("s", "B")},
            "checks": [{**asdict(check), "error": check.error} for check in self.checks],
        }


def plan(job: Job, nodes: Nodes, shards: int | None = None) -> CapacityPlan:
    """What a build and its serving need.

    Args:
        job: what is built.
        nodes: where.
        shards: into how many the rows are cut; as few as fit if None.

    Example:
        >>> from gqe.planning.hardware import parse_nodes
        >>> needs = plan(Job(1_000_000, 2048, k=44, method="gqe"), parse_nodes("H200"))
        >>> needs.fits, [timed.stage.name for timed in needs.stages]
        (True, ['read', 'graph (exact)', 'level 1', 'augmentation', 'write'])
    """
    if shards is not None and not nodes.count <= shards <= job.items:
        raise InputError(
            f"--shards: {shards} for {nodes.count} nodes and {job.items} items; give at least one per node"
        )
    sharding = shard(job, nodes, shards)
    speeds = Speeds(nodes.kind, measured_shares())
    stages = _timed_stages(job, nodes, sharding, speeds)
    serving = serving_of(job, sharding, nodes.kind)
    latency = {batch: serving.seconds(speeds, batch) for batch in BATCHES}
    missing = shortfalls(job, nodes, sharding)
    works = [timed.stage.works for timed in stages] + list(serving.works.values())
    used = {work.kind for some in works for work in some if work.amount}
    return CapacityPlan(
        job,
        nodes,
        sharding,
        stages,
        serving,
        latency,
        missing,
        _remedies(job, nodes, shards, missing),
        sorted(speeds.assumed),
        {kind: speeds.share(kind) for kind in PEAKS if kind in used and speeds.measured(kind)},
        all_checks(),
        _faster(job, nodes, sharding, sum(timed.seconds for timed in stages)),
    )


def _faster(job: Job, nodes: Nodes, sharding: Sharding, seconds: float) -> tuple[int, float] | None:
    """Fewer shards that fit and save a twentieth of the time: each of them reads all the others."""
    other = shard(job, nodes, 2 * fewest_shards(job, nodes))
    if other.shards >= sharding.shards or shortfalls(job, nodes, other):
        return None
    stages = _timed_stages(job, nodes, other, Speeds(nodes.kind, measured_shares()))
    needed = sum(timed.seconds for timed in stages)
    return (other.shards, needed) if needed < 0.95 * seconds else None


def _timed_stages(job: Job, nodes: Nodes, sharding: Sharding, speeds: Speeds) -> list[TimedStage]:
    timed = []
    for stage in stages_of(job, sharding, nodes.kind):
        seconds = stage.seconds_by_resource(speeds, nodes.count)
        slowest = max(seconds, key=lambda resource: seconds[resource])
        timed.append(TimedStage(stage, seconds[slowest], slowest if seconds[slowest] else ""))
    return timed


def shortfalls(job: Job, nodes: Nodes, sharding: Sharding | None = None) -> list[Shortfall]:
    """What does not fit, sharded as given or into as few shards as possible."""
    node, sharding = nodes.kind, sharding or shard(job, nodes)
    stages, serving = stages_of(job, sharding, node), serving_of(job, sharding, node)
    memory, host, disk = (_USABLE * value for value in (node.memory, node.host_memory, node.disk))
    needs = []
    for stage in stages:
        if node.gpu:
            needs.append(Shortfall(stage.name, "GPU memory", stage.memory, memory))
        needs.append(Shortfall(stage.name, "host memory", stage.host_memory, host))
    # The vectors that are read lie there, too.
    stored = sum(stage.disk for stage in stages) + job.table_bytes / nodes.count
    needs.append(Shortfall("index and input", "disk", stored, disk))
    if node.gpu:
        needs.append(Shortfall("serving", "GPU memory", serving.memory, memory))
        # Looked up through mapped files.
        needs.append(Shortfall("serving", "host memory and disk", serving.host_memory, host + disk))
    else:
        needs.append(Shortfall("serving", "host memory", serving.memory, host))
    return [need for need in needs if need.needed > need.there]


def _remedies(job: Job, nodes: Nodes, shards: int | None, missing: list[Shortfall]) -> list[str]:
    """Single changes after which everything that is missing fits."""
    if not missing:
        return []
    remedies = []
    for other in (built_shards(job, nodes), fewest_shards(job, nodes)):
        if other != shards and not shortfalls(job, nodes, shard(job, nodes, other)):
            remedies.append(f"cut into {other} shards (--shards {other})")
            break
    count = _enough_nodes(job, nodes)
    if count is not None:
        remedies.append(f"use {count}x{nodes.kind.name}")
    for dtype in ("float16", "int8"):
        smaller = replace(job, dtype=dtype)
        if smaller.row_bytes < job.row_bytes and not shortfalls(smaller, nodes):
            remedies.append(f"store {dtype} (--dtype {dtype})")
            break
    if job.dba and not shortfalls(replace(job, dba=False), nodes):
        remedies.append("leave out the augmented database (--no-dba)")
    dim = job.dim
    while dim > 64 and shortfalls(replace(job, dim=dim), nodes):
        dim //= 2
    if dim < job.dim and not shortfalls(replace(job, dim=dim), nodes):
        remedies.append(f"reduce the dimension to {dim} by whitening (`gqe whiten`, --dim {dim})")
    if any(shortfall.what == "serving" for shortfall in missing):
        remedies.append("let a vector database hold and search the vectors (`gqe store attach`)")
    return remedies or ["no single change is enough: use nodes with more memory, or fewer items"]


def _enough_nodes(job: Job, nodes: Nodes) -> int | None:
    """The fewest nodes of this kind on which everything fits; None if there is no such number."""

    def fits(count: int) -> bool:
        return not shortfalls(job, replace(nodes, count=count))

    most = nodes.count
    while most < _MAX_NODES and not fits(most):
        most *= 2
    if not fits(most):
        return None
    least = most // 2  # does not fit, or is fewer than given
    while most - least > 1:
        middle = (most + least) // 2
        least, most = (least, middle) if fits(middle) else (middle, most)
    return most
