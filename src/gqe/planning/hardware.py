"""How fast a node is: peaks from data sheets, and the share of a peak that measured runs reached.

The shares are fitted to runs in `gqe.planning.checks`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gqe.errors import InputError

# A core of a server: float32 operations and bytes from memory per second, and bytes of memory.
_CORE_FLOPS, _CORE_BANDWIDTH, _CORE_MEMORY = 150e9, 8e9, 8e9
_MAX_BANDWIDTH = 200e9
# A checksum, a copy and a check of rows by one thread of the host: bytes per second.
_HOST_PASS = 1e9


@dataclass(frozen=True)
class NodeType:
    """One node: a GPU with its share of a server, or a server without.

    Attributes:
        name: as typed.
        flops16: dense operations per second in 16 bits.
        flops32: the same in float32.
        bandwidth: bytes per second from the memory it computes in.
        memory: bytes of the GPU; 0 without one.
        cores: of the host.
        host_memory: bytes.
        disk: bytes.
        disk_rate: bytes per second.
        network: bytes per second, in and out alike.
    """

    name: str
    flops16: float
    flops32: float
    bandwidth: float
    memory: float
    cores: int
    host_memory: float
    disk: float
    disk_rate: float = 2e9
    network: float = 3.125e9

    @property
    def gpu(self) -> bool:
        """Whether it has one."""
        return self.memory > 0

    @property
    def place(self) -> str:
        """Where measured shares hold: "gpu" or "cpu"."""
        return "gpu" if self.gpu else "cpu"

    @property
    def core_flops(self) -> float:
        """float32 operations per second of all cores of the host."""
        return self.cores * _CORE_FLOPS

    @property
    def host_bandwidth(self) -> float:
        """Bytes per second from the host's memory."""
        return min(self.cores * _CORE_BANDWIDTH, _MAX_BANDWIDTH)


# Dense peaks without sparsity (NVIDIA's data sheets); an eighth of a server with eight of them, or the
# smallest machine that clouds rent with one. The network is 25 Gbit/s per node unless given otherwise.
GPUS = {
    node.name: node
    for node in (
        NodeType("H200", 989e12, 67e12, 4.8e12, 141e9, 24, 256e9, 3.8e12),
        NodeType("H100", 989e12, 67e12, 3.35e12, 80e9, 24, 256e9, 3.8e12),
        NodeType("A100", 312e12, 19.5e12, 2.0e12, 80e9, 12, 144e9, 1e12),
        NodeType("L40S", 362e12, 91.6e12, 0.86e12, 48e9, 16, 128e9, 1.9e12),
        NodeType("L4", 121e12, 30.3e12, 0.3e12, 24e9, 8, 32e9, 0.4e12),
    )
}


@dataclass(frozen=True)
class Nodes:
    """Several nodes of one type."""

    count: int
    kind: NodeType

    def __str__(self) -> str:
        return f"{self.count}x{self.kind.name}"

    def with_network(self, gigabits: float | None) -> Nodes:
        """The same behind another network, in Gbit/s for each node."""
        if gigabits is None:
            return self
        if not 0 < gigabits < 1e6:
            raise InputError(f"--network: expected Gbit/s above 0, got {gigabits!r}")
        return replace(self, kind=replace(self.kind, network=gigabits * 1e9 / 8))


def parse_nodes(text: str) -> Nodes:
    """Nodes as typed: 8xH200, L4, 4xcpu:16.

    Example:
        >>> str(parse_nodes("8xh200")), parse_nodes("cpu:16").kind.cores
        ('8xH200', 16)
    """
    match = re.fullmatch(r"(?:(\d{1,6})\s*[xX*]\s*)?([A-Za-z]\w*)(?::(\d{1,4}))?", text.strip(), re.ASCII)
    count = 1 if match is None or match[1] is None else int(match[1])
    if match is not None and count >= 1:
        name, cores = match[2].upper(), int(match[3] or 0)
        if name == "CPU" and cores >= 1:
            return Nodes(count, _cpu(cores))
        if name in GPUS and match[3] is None:
            return Nodes(count, GPUS[name])
    kinds = ", ".join(GPUS)
    raise InputError(f"--nodes: {text!r} is unknown; write COUNTxKIND with a kind of {kinds} or cpu:CORES")


def _cpu(cores: int) -> NodeType:
    """A server without a GPU: 8 GB of memory per core, 2 TB of disk, 10 Gbit/s."""
    flops, memory = cores * _CORE_FLOPS, cores * _CORE_MEMORY
    bandwidth = min(cores * _CORE_BANDWIDTH, _MAX_BANDWIDTH)
    return NodeType(f"cpu:{cores}", flops, flops, bandwidth, 0, cores, memory, 2e12, 1e9, 1.25e9)


class WorkAmount(NamedTuple):
    """An amount of operations, bytes or steps of one kind; see PEAKS."""

    kind: str
    amount: float


# Operations, bytes or times per second at the peak, by kind of work.
PEAKS: dict[str, Callable[[NodeType], float]] = {
    "products": lambda node: node.flops16,  # exact search: operations
    "faiss products": lambda node: node.core_flops,  # exact search by faiss on the host's cores: operations
    "scan": lambda node: node.core_flops,  # inverted lists on the host's cores: operations
    "encoder": lambda node: node.flops16,  # the paper's encoder: operations
    "similarities": lambda node: node.flops32,  # the universal model: operations
    "sums": lambda node: node.bandwidth,  # gathered and summed rows: bytes
    "pass": lambda node: node.bandwidth,  # a query compared with all items: bytes
    "host": lambda node: _HOST_PASS,  # rows checked, copied and summed up: bytes
    "steps": lambda node: 1.0,  # what each search costs whatever its size: times
    "rows": lambda node: node.host_bandwidth,  # rows gathered in the host's memory: bytes
    "network": lambda node: node.network,
    "disk": lambda node: node.disk_rate,
    "hops": lambda node: 1.0,  # requests from node to node: times
    "cluster": lambda node: 1.0,  # speed of many nodes against that of each alone
}
# Where nothing was measured; a plan names those it rests on.
ASSUMED: dict[tuple[str, str], float] = {
    ("gpu", "similarities"): 0.2,
    ("gpu", "sums"): 0.25,
    ("cpu", "pass"): 0.5,
    ("any", "rows"): 0.2,
    ("any", "network"): 0.7,
    ("any", "disk"): 0.7,
    ("any", "hops"): 2000.0,
    ("any", "cluster"): 0.8,
}
# The host's cores are the same with a GPU beside them.
_ON_HOST = ("faiss products", "scan")


@dataclass
class Speeds:
    """Seconds of work on one node.

    Attributes:
        node: the node.
        shares: of the peak, by place ("gpu", "cpu") and kind of work, as measured.
        assumed: shares that had to be assumed so far.
    """

    node: NodeType
    shares: Mapping[tuple[str, str], float]
    assumed: set[str] = field(default_factory=set)

    def measured(self, work: str) -> bool:
        """Whether a run has shown how fast this kind of work is on such a node."""
        return self._key(work) in self.shares

    def share(self, work: str) -> float:
        """The share of the peak that this kind of work reaches."""
        place, _ = key = self._key(work)
        if key in self.shares:
            return self.shares[key]
        for known in (key, ("any", work)):
            if known in ASSUMED:
                self.assumed.add(f"{work} {ASSUMED[known]:g}")
                return ASSUMED[known]
        other = "gpu" if place == "cpu" else "cpu"  # better than nothing
        self.assumed.add(f"{work} as on a {other}")
        return self.shares.get((other, work), 0.1)

    def seconds(self, *works: WorkAmount) -> float:
        """Of some work, one after the other."""
        return sum(
            work.amount / (PEAKS[work.kind](self.node) * self.share(work.kind))
            for work in works
            if work.amount
        )

    def _key(self, work: str) -> tuple[str, str]:
        return "cpu" if work in _ON_HOST else self.node.place, work
