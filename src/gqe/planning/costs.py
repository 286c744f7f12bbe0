"""What each stage of a build, and serving, need on each node: memory, disk, network, operations.

The build is that of gqe.cluster: items lie in shards of consecutive rows; each shard of queries is compared
with each shard of vectors and the best are merged; a level is a map over shards that fetches the rows of
neighbours by number. In serving each node holds its shards, and a request goes to all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gqe.planning import flops
from gqe.planning.hardware import Nodes, NodeType, Speeds, WorkAmount
from gqe.planning.job import GPU_CANDIDATES, SPARE_CANDIDATES, Job, default_num_shards

# Queries per request that are planned for.
BATCHES = (1, 64)
# Python, torch and faiss as they are loaded.
_LIBRARIES = 0.3e9
# Similarities of a block of queries, and the tokens of a block of nodes with all that an encoder makes of
# them, as gqe.index.finding and gqe.hierarchy set them.
_SCORES, _SCORES_SHARE, _TOKENS = 10e9, 1 / 8, 12e9
# Of the memory, for two shards that are compared.
_SHARDS_SHARE = 0.5
# The share of all items that each query is compared with at a recall of 0.95: in 1,000,000 x 128 of
# benchmarks/index.py an inverted file looks at 72 of 4,096 lists.
_PROBED_SHARE = 72 / 4096
# From this size on an inverted file keeps codes of a quarter of a byte for each dimension.
_LARGE_BYTES = 4 << 30


@dataclass(frozen=True)
class BuildStage:
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
    works: tuple[WorkAmount, ...]
    memory: float = 0.0
    host_memory: float = 0.0
    disk: float = 0.0
    network: float = 0.0
    rows: float = 0.0
    flushed: float = 0.0

    def seconds_by_resource(self, speeds: Speeds, nodes: int) -> dict[str, float]:
        """Seconds of what runs concurrently; the slowest decides."""
        return {
            "compute": speeds.seconds(*self.works) / (speeds.share("cluster") if nodes > 1 else 1.0),
            "network": speeds.seconds(WorkAmount("network", self.network)),
            "memory": speeds.seconds(WorkAmount("rows", self.rows)),
            "disk": speeds.seconds(WorkAmount("disk", self.flushed)),
        }


@dataclass(frozen=True)
class Sharding:
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


def shard(job: Job, nodes: Nodes, shards: int | None = None) -> Sharding:
    """Into this many shards, or as `gqe index build --cluster` does; one node alone needs few."""
    if shards is None:
        shards = built_shards(job, nodes) if nodes.count > 1 else fewest_shards(job, nodes)
    tasks = nodes.kind.cores if nodes.count > 1 and not nodes.kind.gpu else 1
    return Sharding(nodes.count, shards, job.items / shards, tasks)


def built_shards(job: Job, nodes: Nodes) -> int:
    """As many as a build on these nodes chooses."""
    workers = nodes.count * (1 if nodes.kind.gpu else nodes.kind.cores)
    return default_num_shards(job.items, job.dim, workers, exact=job.graph == "exact")


def fewest_shards(job: Job, nodes: Nodes) -> int:
    """As few as let a node hold two of them, for each task, while it compares them."""
    node = nodes.kind
    memory = node.memory or node.host_memory / (node.cores if nodes.count > 1 else 1)
    rows = max(1.0, _SHARDS_SHARE * memory / 2 / _compared_bytes(job, node))
    return nodes.count * math.ceil(job.items / (nodes.count * rows))


def _compared_bytes(job: Job, node: NodeType) -> float:
    """Of a row while it is compared: with a copy in 16 bits on a GPU, in float32 without one."""
    if not node.gpu:
        return float(max(job.row_bytes, 4 * job.dim))
    return job.device_row_bytes(gpu=True) + (2 * job.dim if job.dtype != "float16" else 0)


def remote_share(nodes: int) -> float:
    """The share of all items that lies on other nodes."""
    return 1 - 1 / nodes


def graph_network(job: Job, shards: int) -> float:
    """Bytes per item from other shards: their vectors, once per shard of queries, and lists to merge."""
    return (shards - 1) * (job.row_bytes + job.list_bytes)


def level_network(job: Job, shards: int, number: int) -> float:
    """Bytes per item from other shards for one level, if neighbours lie anywhere: rows that a shard needs.

    A row that several items of a shard need is fetched once. The universal model also reads the lists of
    neighbours and, from the second level on, their original vectors.
    """
    rows = -(shards - 1) * math.expm1(-job.k / shards)
    row = float(job.row_bytes)
    if job.method == "universal":
        row += job.list_bytes + (job.row_bytes if number > 1 else 0)
    return rows * row


def _received_bytes(bytes_per_item: float, job: Job, sharding: Sharding) -> float:
    """Bytes that a node receives; a single node has everything on its own disk."""
    return 0.0 if sharding.nodes == 1 else bytes_per_item * job.items / sharding.nodes


def stages_of(job: Job, sharding: Sharding, node: NodeType) -> list[BuildStage]:
    """The stages of a build in order."""
    stages = [_read(job, sharding), *_graph(job, sharding, node)]
    stages += [_level(job, sharding, node, number) for number in range(1, job.stored_levels + 1)]
    # Checksums were computed on the way.
    flushed = sum(stage.disk for stage in stages)
    return [*stages, BuildStage("write", 0.0, (), host_memory=_LIBRARIES, flushed=flushed)]


def _read(job: Job, sharding: Sharding) -> BuildStage:
    """Vectors checked, brought to unit length and stored."""
    own_bytes = job.table_bytes / sharding.nodes
    return BuildStage(
        "read",
        0.0,
        (WorkAmount("host", 2 * own_bytes),),  # once for the fingerprint, once to check and store them
        host_memory=sharding.tasks * (_LIBRARIES + min(2 * job.row_bytes * sharding.rows, 0.1e9)),
        disk=own_bytes + 8 * job.items / sharding.nodes,
        network=_received_bytes(job.row_bytes, job, sharding),
    )


def _graph(job: Job, sharding: Sharding, node: NodeType) -> list[BuildStage]:
    """The neighbour lists of all items; an approximate search builds its inverted files first."""
    if job.graph == "approximate" and sharding.rows >= flops.SMALLEST_APPROXIMATE:
        return _approximate_graph(job, sharding)
    candidates = job.width + SPARE_CANDIDATES + (GPU_CANDIDATES if node.gpu else 0)
    rows = min(2, sharding.shards) * sharding.rows
    products = flops.exact_search_flops(job.items, job.items, job.dim)
    scores = min(_SCORES, node.memory * _SCORES_SHARE, 2.0 * job.items * sharding.rows)
    exact = BuildStage(
        "graph (exact)",
        products + flops.rescoring_flops(job.items, candidates, job.dim),
        (WorkAmount("products", products / sharding.nodes),),
        memory=rows * _compared_bytes(job, node) + scores if node.gpu else 0.0,
        host_memory=sharding.tasks * (_LIBRARIES + rows * job.row_bytes),
        disk=job.items / sharding.nodes * job.list_bytes,
        network=_received_bytes(graph_network(job, sharding.shards), job, sharding),
    )
    return [exact]


def _approximate_graph(job: Job, sharding: Sharding) -> list[BuildStage]:
    """Every shard has an inverted file on its node's host, and every query searches all of them."""
    own_items, candidates = job.items / sharding.nodes, job.width + SPARE_CANDIDATES
    training = flops.inverted_file_flops(sharding.rows, job.dim) * sharding.shards
    per_shard = flops.inverted_scan_flops(job.items, sharding.rows, job.dim, _PROBED_SHARE)
    finding, scanning = (part * sharding.shards for part in per_shard)
    code = 2 * job.dim if sharding.rows * job.dim * 4 <= _LARGE_BYTES else job.dim / 4
    file = sharding.rows * (code + 8) + flops.inverted_lists(sharding.rows) * job.dim * 4
    host_memory = sharding.tasks * (_LIBRARIES + file + 2 * sharding.rows * job.row_bytes)
    files = BuildStage(
        "inverted files",
        training,
        (WorkAmount("faiss products", training / sharding.nodes),),
        host_memory=host_memory,
        disk=file * sharding.shards / sharding.nodes,
    )
    graph = BuildStage(
        "graph (approximate)",
        finding + scanning + flops.rescoring_flops(job.items, candidates, job.dim),
        (
            WorkAmount("faiss products", finding / sharding.nodes),
            WorkAmount("scan", scanning / sharding.nodes),
            WorkAmount("sums", own_items * candidates * job.dim * 4),
        ),
        host_memory=host_memory,
        disk=own_items * job.list_bytes,
        # Queries go to the inverted files instead of vectors to the queries: the same bytes.
        network=_received_bytes(graph_network(job, sharding.shards), job, sharding),
    )
    return [files, graph]


def _level(job: Job, sharding: Sharding, node: NodeType, number: int) -> BuildStage:
    """One level of all items; the last one is the augmented database."""
    own_items = job.items / sharding.nodes
    kind, amount = job.level_work(number)
    if kind == "encoder" and node.gpu and job.dtype == "float32":
        amount *= node.flops16 / node.flops32  # nothing is computed in 16 bits then
    # A task needs the rows of its neighbours, wherever they are.
    below = job.items * min(1.0, job.k / sharding.shards) * job.device_row_bytes(node.gpu)
    on_gpu = node.gpu and below < node.memory / 2
    tables = 2 if number == 1 or job.method != "universal" else 3
    mapped = own_items * ((tables + 1) * job.row_bytes + job.list_bytes)
    return BuildStage(
        "augmentation" if number == job.levels else f"level {number}",
        job.items * job.level_flops(number),
        (WorkAmount(kind, own_items * amount),),
        memory=(below if on_gpu else 0) + min(_TOKENS, node.memory / 8) if node.gpu else 0.0,
        # Of mapped files more is dropped when needed.
        host_memory=sharding.tasks * _LIBRARIES + min(mapped, 0.5 * node.host_memory),
        disk=own_items * job.row_bytes,
        network=_received_bytes(level_network(job, sharding.shards, number), job, sharding),
        rows=0.0 if on_gpu or not node.gpu else own_items * job.k * job.row_bytes,
    )


@dataclass(frozen=True)
class Serving:
    """One replica of all shards over all nodes.

    Attributes:
        memory: bytes on each node in the memory that searches go through: the GPU's, or the host's.
        host_memory: bytes on each node for what is only looked up: lower levels and lists.
        network: bytes per query.
        hops: requests from node to node, one after the other.
        works: by the number of queries at once, what a node does for them.
    """

    memory: float
    host_memory: float
    network: float
    hops: int
    works: dict[int, tuple[WorkAmount, ...]]

    def seconds(self, speeds: Speeds, queries: int) -> float:
        """Of one request of 1 or 64 queries."""
        return speeds.seconds(
            *self.works[queries], WorkAmount("network", queries * self.network), WorkAmount("hops", self.hops)
        )


def serving_of(job: Job, sharding: Sharding, node: NodeType) -> Serving:
    """The searches and the expansion of a request."""
    own_items = job.items / sharding.nodes
    searched = own_items * job.device_row_bytes(node.gpu) * (2 if job.dba else 1)
    lower = own_items * (job.row_bytes * (job.levels - 1) + job.list_bytes + 8)
    exact_only = node.gpu or job.graph == "exact" or sharding.rows < flops.SMALLEST_APPROXIMATE
    file = 0.0 if exact_only else own_items * (2 * job.dim + 8)
    return Serving(
        memory=searched if node.gpu else searched + lower + file + _LIBRARIES,
        host_memory=lower + _LIBRARIES,
        network=remote_share(sharding.nodes) * job.query_bytes,
        hops=0 if sharding.nodes == 1 else job.rounds + 1,  # the searches; rows are read from storage
        works={batch: _query_works(job, own_items, batch, exact_only, node.gpu) for batch in BATCHES},
    )


def _query_works(job: Job, items: float, queries: int, exact_only: bool, gpu: bool) -> tuple[WorkAmount, ...]:
    """A search and an expansion per round, the negatives, and the last search."""
    works = [WorkAmount("steps", (job.rounds + 1) / 2)]
    for number in range(1, job.levels + 1):
        kind, amount = job.level_work(number)
        works.append(WorkAmount(kind, job.rounds * queries * amount))
    works.append(WorkAmount("sums", queries * (job.num_query_neighbors - job.k) * job.dim * 4.0))
    for search in range(job.rounds + 1):
        # The augmented database has no inverted file.
        if exact_only or (search == job.rounds and job.dba):
            if gpu or queries == 1:  # a CPU computes so slowly that many queries hide the reading of rows
                works.append(WorkAmount("pass", items * job.device_row_bytes(gpu)))
            works.append(WorkAmount("products", flops.exact_search_flops(queries, items, job.dim)))
        else:
            finding, scanning = flops.inverted_scan_flops(queries, items, job.dim, _PROBED_SHARE)
            works += [WorkAmount("faiss products", finding), WorkAmount("scan", scanning)]
    return tuple(works)
