"""How fast a kind of work goes on a node: its peak, and the share of it that was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gqe.planning.hardware import Kind


class Work(NamedTuple):
    """So many operations, bytes or steps of one kind; see PEAKS."""

    kind: str
    amount: float


# A checksum, a copy and a check of rows by one thread of the host: bytes a second.
_HOST_PASS = 1e9
PEAKS: dict[str, tuple[str, Callable[[Kind], float]]] = {
    "products": ("exact search: operations", lambda kind: kind.flops16),
    "faiss products": ("exact search by faiss on the host's cores: operations", lambda kind: kind.core_flops),
    "scan": ("inverted lists, on the host's cores: operations", lambda kind: kind.core_flops),
    "encoder": ("the paper's encoder: operations", lambda kind: kind.flops16),
    "similarities": ("the universal model: operations", lambda kind: kind.flops32),
    "sums": ("gathered and summed rows: bytes", lambda kind: kind.bandwidth),
    "pass": ("a query past all items: bytes", lambda kind: kind.bandwidth),
    "host": ("rows checked, copied and summed up: bytes", lambda kind: _HOST_PASS),
    "steps": ("what each search costs whatever its size: times", lambda kind: 1.0),
    "rows": ("rows gathered in the host's memory: bytes", lambda kind: kind.host_bandwidth),
    "network": ("network: bytes", lambda kind: kind.network),
    "disk": ("disk: bytes", lambda kind: kind.disk_rate),
    "hops": ("requests from node to node: times", lambda kind: 1.0),
    "cluster": ("speed of many nodes against that of each alone", lambda kind: 1.0),
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


def place_of(kind: Kind) -> str:
    """Where measured shares hold: "gpu" or "cpu"."""
    return "gpu" if kind.gpu else "cpu"


@dataclass
class Speeds:
    """Seconds of work on one node.

    Attributes:
        kind: the node.
        shares: of the peak, by place ("gpu", "cpu") and kind of work, as measured.
        assumed: what had to be assumed so far.
    """

    kind: Kind
    shares: Mapping[tuple[str, str], float]
    assumed: set[str] = field(default_factory=set)

    def _key(self, work: str) -> tuple[str, str]:
        return "cpu" if work in _ON_HOST else place_of(self.kind), work

    def measured(self, work: str) -> bool:
        """Whether a run has shown how fast this kind of work goes on such a node."""
        return self._key(work) in self.shares

    def share(self, work: str) -> float:
        """Of the peak that this kind of work reaches."""
        place, known = self._key(work)
        if self.measured(work):
            return self.shares[place, known]
        for key in ((place, known), ("any", known)):
            if key in ASSUMED:
                self.assumed.add(f"{work} {ASSUMED[key]:g}")
                return ASSUMED[key]
        other = "gpu" if place == "cpu" else "cpu"  # better than nothing
        self.assumed.add(f"{work} as on a {other}")
        return self.shares.get((other, known), 0.1)

    def seconds(self, work: Work) -> float:
        """Of one piece of work."""
        if not work.amount:
            return 0.0
        return work.amount / (PEAKS[work.kind][1](self.kind) * self.share(work.kind))
