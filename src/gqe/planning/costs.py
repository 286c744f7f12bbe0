"""What each stage of a build needs on each node: memory, disk, network, operations.

The build is that of gqe.cluster: items lie in shards of consecutive rows; each shard of queries is compared
with each shard of vectors and the best are merged; a level is a map over shards that fetches the rows of
neighbours by number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gqe.planning import counting
from gqe.planning.cutting import usual_shards
from gqe.planning.hardware import Kind, Nodes
from gqe.planning.job import GPU_CANDIDATES, SPARE_CANDIDATES, Job
from gqe.planning.speeds import Speeds, Work

# Python, torch and faiss as they are loaded.
LIBRARIES = 0.3e9
# Similarities of a block of queries, and the tokens of a block of nodes with all that an encoder makes of
# them, as gqe.index.half and gqe.hierarchy set them.
_SCORES, _SCORES_SHARE, _TOKENS = 10e9, 1 / 8, 12e9
# Of the memory, for two shards that are compared.
_SHARDS_SHARE = 0.5
# The share of all items that each query is compared with at a recall of 0.95: in 1,000,000 x 128 of
# benchmarks/index.py an inverted file looks at 72 of 4,096 lists.
PROBED_SHARE = 72 / 4096
# From this size on an inverted file keeps codes of a quarter of a byte for each dimension.
_LARGE_BYTES = 4 << 30


@dataclass(frozen=True)
class Stage:
    """What one stage needs, on each node unless said otherwise.

    Attributes:
        name: as shown.
        flops: of all nodes.
        works: what is computed, one after the other.
        memory: bytes of the GPU's memory, 0 without one.
        host_memory: bytes.
        disk: bytes written that stay.
        network: bytes received.
        rows: bytes of neighbours' rows gathered in the host's memory.
        flushed: bytes that have to be on the disk at its end.
    """

    name: str
    flops: float
    works: tuple[Work, ...]
    memory: float = 0.0
    host_memory: float = 0.0
    disk: float = 0.0
    network: float = 0.0
    rows: float = 0.0
    flushed: float = 0.0

    def lanes(self, speeds: Speeds, nodes: int) -> dict[str, float]:
        """Seconds of what goes on side by side; the slowest decides."""
        computing = sum(speeds.seconds(work) for work in self.works)
        return {
            "compute": computing / (speeds.share("cluster") if nodes > 1 else 1.0),
            "network": speeds.seconds(Work("network", self.network)),
            "memory": speeds.seconds(Work("rows", self.rows)),
            "disk": speeds.seconds(Work("disk", self.flushed)),
        }


@dataclass(frozen=True)
class Layout:
    """How items are cut: shards of equally many rows, as many on each node.

    Attributes:
        nodes: how many.
        shards: in all.
        rows: of a shard.
        tasks: that a node runs at a time.
    """

    nodes: int
    shards: int
    rows: float
    tasks: int


def layout(job: Job, nodes: Nodes, shards: int | None = None) -> Layout:
    """As many shards as asked for, or as `gqe index build --cluster` makes; one node alone needs few."""
    if shards is None:
        shards = built_shards(job, nodes) if nodes.count > 1 else fewest_shards(job, nodes)
    tasks = nodes.kind.cores if nodes.count > 1 and not nodes.kind.gpu else 1
    return Layout(nodes.count, shards, job.items / shards, tasks)


def built_shards(job: Job, nodes: Nodes) -> int:
    """As many as a build on these nodes chooses."""
    workers = nodes.count * (1 if nodes.kind.gpu else nodes.kind.cores)
    return usual_shards(job.items, job.dim, workers, exact=job.graph == "exact")


def fewest_shards(job: Job, nodes: Nodes) -> int:
    """As few as let a node hold two of them, for each task, while it compares them."""
    kind = nodes.kind
    memory = kind.memory or kind.host_memory / (kind.cores if nodes.count > 1 else 1)
    most = max(1.0, _SHARDS_SHARE * memory / 2 / _compared_bytes(job, kind))
    return nodes.count * math.ceil(job.items / (nodes.count * most))


def _compared_bytes(job: Job, kind: Kind) -> float:
    """Of a row while it is compared: with a copy in 16 bits on a GPU, in float32 without one."""
    if not kind.gpu:
        return float(max(job.row_bytes, 4 * job.dim))
    return job.held_bytes(gpu=True) + (2 * job.dim if job.dtype != "float16" else 0)


def away(nodes: int) -> float:
    """The share of all items that lies on other nodes."""
    return 1 - 1 / nodes


def graph_network(job: Job, shards: int) -> float:
    """Bytes an item from other shards: their vectors, once for each shard of queries, and lists to merge."""
    return (shards - 1) * job.row_bytes + (shards - 1) * job.list_bytes


def level_network(job: Job, shards: int, number: int) -> float:
    """Bytes an item from other shards for one level, if neighbours lie anywhere: rows that a shard needs.

    A row that several items of a shard need is fetched once. The universal model also reads the lists of
    neighbours and, from the second level on, where they were at first.
    """
    rows = -(shards - 1) * math.expm1(-job.k / shards)
    row = float(job.row_bytes)
    if job.method == "universal":
        row += job.list_bytes + (job.row_bytes if number > 1 else 0)
    return rows * row


def _received(bytes_an_item: float, job: Job, cut: Layout) -> float:
    """Bytes that a node receives; one that is alone has everything on its own disk."""
    return 0.0 if cut.nodes == 1 else bytes_an_item * job.items / cut.nodes


def read(job: Job, cut: Layout) -> Stage:
    """Vectors checked, brought to unit length and stored."""
    mine = job.table_bytes / cut.nodes
    return Stage(
        "read",
        0.0,
        (Work("host", 2 * mine),),  # once to know them again, once to check and store them
        host_memory=cut.tasks * (LIBRARIES + min(2 * job.row_bytes * cut.rows, 0.1e9)),
        disk=mine + 8 * job.items / cut.nodes,
        network=_received(job.row_bytes, job, cut),
    )


def graph(job: Job, cut: Layout, kind: Kind) -> list[Stage]:
    """The neighbour lists of all items; an approximate search makes its inverted files first."""
    if job.graph == "approximate" and cut.rows >= counting.SMALLEST_APPROXIMATE:
        return _approximate_graph(job, cut)
    mine = job.items / cut.nodes
    candidates = job.width + SPARE_CANDIDATES + (GPU_CANDIDATES if kind.gpu else 0)
    shards = min(2, cut.shards) * cut.rows * _compared_bytes(job, kind)
    flops = counting.exact_search_flops(job.items, job.items, job.dim)
    scores = min(_SCORES, kind.memory * _SCORES_SHARE, 2.0 * job.items * cut.rows)
    exact = Stage(
        "graph (exact)",
        flops + counting.rescoring_flops(job.items, candidates, job.dim),
        (Work("products", flops / cut.nodes),),
        memory=shards + scores if kind.gpu else 0.0,
        host_memory=cut.tasks * (LIBRARIES + min(2, cut.shards) * cut.rows * job.row_bytes),
        disk=mine * job.list_bytes,
        network=_received(graph_network(job, cut.shards), job, cut),
    )
    return [exact]


def _approximate_graph(job: Job, cut: Layout) -> list[Stage]:
    """Every shard has an inverted file on its node's host, and every query asks all of them."""
    mine, candidates = job.items / cut.nodes, job.width + SPARE_CANDIDATES
    making = counting.inverted_file_flops(cut.rows, job.dim) * cut.shards
    finding, scanning = counting.inverted_scan_flops(job.items, cut.rows, job.dim, PROBED_SHARE)
    finding, scanning = finding * cut.shards, scanning * cut.shards
    code = 2 * job.dim if cut.rows * job.dim * 4 <= _LARGE_BYTES else job.dim / 4
    file = cut.rows * (code + 8) + counting.inverted_lists(cut.rows) * job.dim * 4
    held = cut.tasks * (LIBRARIES + file + 2 * cut.rows * job.row_bytes)
    files = Stage(
        "inverted files",
        making,
        (Work("faiss products", making / cut.nodes),),
        host_memory=held,
        disk=file * cut.shards / cut.nodes,
    )
    asked = Stage(
        "graph (approximate)",
        finding + scanning + counting.rescoring_flops(job.items, candidates, job.dim),
        (
            Work("faiss products", finding / cut.nodes),
            Work("scan", scanning / cut.nodes),
            Work("sums", mine * candidates * job.dim * 4),
        ),
        host_memory=held,
        disk=mine * job.list_bytes,
        # Queries go to the inverted files instead of vectors to the queries: the same bytes.
        network=_received(graph_network(job, cut.shards), job, cut),
    )
    return [files, asked]


def level(job: Job, cut: Layout, kind: Kind, number: int) -> Stage:
    """One level of all items; the last one is the augmented database."""
    mine = job.items / cut.nodes
    what, amount = job.level_work(number)
    if what == "encoder" and kind.gpu and job.dtype == "float32":
        amount *= kind.flops16 / kind.flops32  # nothing is computed in 16 bits then
    # A task needs the rows of its neighbours, wherever they are.
    below = job.items * min(1.0, job.k / cut.shards) * job.held_bytes(kind.gpu)
    on_gpu = kind.gpu and below < kind.memory / 2
    tables = 2 if number == 1 or job.method != "universal" else 3
    host = tables * mine * job.row_bytes + mine * (job.row_bytes + job.list_bytes)
    return Stage(
        "augmentation" if number == job.levels else f"level {number}",
        job.items * job.level_flops(number),
        (Work(what, mine * amount),),
        memory=(below if on_gpu else 0) + min(_TOKENS, kind.memory / 8) if kind.gpu else 0.0,
        host_memory=cut.tasks * LIBRARIES
        + min(host, 0.5 * kind.host_memory),  # mapped: more is dropped when needed
        disk=mine * job.row_bytes,
        network=_received(level_network(job, cut.shards, number), job, cut),
        rows=0.0 if on_gpu or not kind.gpu else mine * job.k * job.row_bytes,
    )


def write(job: Job, cut: Layout, stages: list[Stage]) -> Stage:
    """Everything on the disk, with checksums that were computed on the way."""
    return Stage("write", 0.0, (), host_memory=LIBRARIES, flushed=sum(stage.disk for stage in stages))


def all_stages(job: Job, cut: Layout, kind: Kind) -> list[Stage]:
    """The stages of a build in order."""
    stages = [read(job, cut), *graph(job, cut, kind)]
    stages += [level(job, cut, kind, number) for number in range(1, job.stored_levels + 1)]
    return [*stages, write(job, cut, stages)]
