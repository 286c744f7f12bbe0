"""What serving the built index needs: each node holds its shards, a request goes to all of them."""

from __future__ import annotations

from dataclasses import dataclass

from gqe.planning import counting
from gqe.planning.costs import LIBRARIES, PROBED_SHARE, Layout, away
from gqe.planning.hardware import Kind
from gqe.planning.job import Job
from gqe.planning.speeds import Speeds, Work

# Queries in a request that are planned for.
BATCHES = (1, 64)


@dataclass(frozen=True)
class Serving:
    """One replica of all shards over all nodes.

    Attributes:
        memory: bytes on each node in the memory that searches go through: the GPU's, or the host's.
        host_memory: bytes on each node for what is only looked up: lower levels and lists.
        network: bytes of one query.
        works: by the number of queries at once, what a node does for them.
        hops: requests from node to node, one after the other.
    """

    memory: float
    host_memory: float
    network: float
    hops: int
    works: dict[int, tuple[Work, ...]]

    def seconds(self, speeds: Speeds, queries: int) -> float:
        """Of one request of 1 or 64 queries."""
        works = (*self.works[queries], Work("network", queries * self.network), Work("hops", self.hops))
        return sum(speeds.seconds(work) for work in works)


def serving(job: Job, cut: Layout, kind: Kind) -> Serving:
    """The two searches and the expansion of a request."""
    mine = job.items / cut.nodes
    searched = mine * job.held_bytes(kind.gpu) * (2 if job.dba else 1)
    lower = mine * (job.row_bytes * (job.levels - 1) + job.list_bytes + 8)
    exact_only = kind.gpu or job.graph == "exact" or cut.rows < counting.SMALLEST_APPROXIMATE
    file = 0.0 if exact_only else mine * (2 * job.dim + 8)
    per_query = away(cut.nodes) * job.k * job.row_bytes * job.levels
    return Serving(
        memory=searched if kind.gpu else searched + lower + file + LIBRARIES,
        host_memory=lower + LIBRARIES,
        network=per_query,
        hops=0 if cut.nodes == 1 else 2,  # the two searches; rows are read from storage
        works={queries: _works(job, mine, queries, exact_only, kind.gpu) for queries in BATCHES},
    )


def _works(job: Job, mine: float, queries: int, exact_only: bool, gpu: bool) -> tuple[Work, ...]:
    works = [Work("steps", 1)]
    for number in range(1, job.levels + 1):
        what, amount = job.level_work(number)
        works.append(Work(what, queries * amount))
    for search in range(2):
        if exact_only or (search and job.dba):  # the augmented database has no inverted file
            if gpu or queries == 1:  # a CPU computes so slowly that many queries hide the reading of rows
                works.append(Work("pass", mine * job.held_bytes(gpu)))
            works.append(Work("products", counting.exact_search_flops(queries, mine, job.dim)))
        else:
            finding, scanning = counting.inverted_scan_flops(queries, mine, job.dim, PROBED_SHARE)
            works += [Work("faiss products", finding), Work("scan", scanning)]
    return tuple(works)
