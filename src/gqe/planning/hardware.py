"""What a node can do: peaks from the makers' data sheets, and what usually stands around a GPU.

Of the peaks only a part is ever reached; how much, measured runs say (`gqe.planning.measured`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gqe.errors import InputError

# A core of a server: float32 operations, bytes from memory, and bytes of a file whose checksum it computes.
_CORE_FLOPS = 150e9
_CORE_BANDWIDTH = 8e9
_MOST_BANDWIDTH = 200e9
_CORE_MEMORY = 8e9


@dataclass(frozen=True)
class Kind:
    """One node: a GPU with its share of a server, or a server without.

    Attributes:
        name: as typed.
        flops16: dense operations a second in 16 bits.
        flops32: the same in float32.
        bandwidth: bytes a second from the memory it computes in.
        memory: bytes of the GPU; 0 without one.
        cores: of the host.
        host_memory: bytes.
        disk: bytes.
        disk_rate: bytes a second.
        network: bytes a second, in and out alike.
    """

    name: str
    flops16: float
    flops32: float
    bandwidth: float
    memory: float
    cores: int
    host_memory: float
    disk: float
    disk_rate: float
    network: float

    @property
    def gpu(self) -> bool:
        """Whether it has one."""
        return self.memory > 0

    @property
    def core_flops(self) -> float:
        """float32 operations a second of all cores of the host."""
        return self.cores * _CORE_FLOPS

    @property
    def host_bandwidth(self) -> float:
        """Bytes a second from the host's memory."""
        return min(self.cores * _CORE_BANDWIDTH, _MOST_BANDWIDTH)


def _gpu(name: str, tera16: float, tera32: float, bandwidth: float, memory: float, *host: float) -> Kind:
    cores, host_memory, disk = host
    return Kind(
        name, tera16 * 1e12, tera32 * 1e12, bandwidth, memory, int(cores), host_memory, disk, 2e9, 3.125e9
    )


# Dense peaks without sparsity (NVIDIA's data sheets); an eighth of a server with eight of them, or the
# smallest machine that clouds rent with one. The network is 25 Gbit/s a node unless told otherwise.
GPUS = {
    kind.name: kind
    for kind in (
        _gpu("H200", 989, 67, 4.8e12, 141e9, 24, 256e9, 3.8e12),
        _gpu("H100", 989, 67, 3.35e12, 80e9, 24, 256e9, 3.8e12),
        _gpu("A100", 312, 19.5, 2.0e12, 80e9, 12, 144e9, 1e12),
        _gpu("L40S", 362, 91.6, 0.86e12, 48e9, 16, 128e9, 1.9e12),
        _gpu("L4", 121, 30.3, 0.3e12, 24e9, 8, 32e9, 0.4e12),
    )
}


def cpu(cores: int) -> Kind:
    """A server without a GPU: 8 GB of memory a core, 2 TB of disk, 10 Gbit/s."""
    bandwidth = min(cores * _CORE_BANDWIDTH, _MOST_BANDWIDTH)
    flops = cores * _CORE_FLOPS
    memory = cores * _CORE_MEMORY
    return Kind(f"cpu:{cores}", flops, flops, bandwidth, 0, cores, memory, 2e12, 1e9, 1.25e9)


@dataclass(frozen=True)
class Nodes:
    """Several nodes of one kind."""

    count: int
    kind: Kind

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
    found = re.fullmatch(r"(?:(\d{1,6})\s*[xX*]\s*)?([A-Za-z]\w*)(?::(\d{1,4}))?", text.strip(), re.ASCII)
    count = 1 if found is None or found[1] is None else int(found[1])
    if found is not None and count >= 1:
        name, cores = found[2].upper(), found[3]
        if name == "CPU" and cores is not None and int(cores) >= 1:
            return Nodes(count, cpu(int(cores)))
        if name in GPUS and cores is None:
            return Nodes(count, GPUS[name])
    kinds = ", ".join(GPUS)
    raise InputError(f"--nodes: {text!r} is unknown; write COUNTxKIND with a kind of {kinds} or cpu:CORES")
