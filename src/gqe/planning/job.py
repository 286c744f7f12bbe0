"""What is to be built: sizes, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gqe.errors import InputError
from gqe.planning import counting

METHODS = ("universal", "gqe", "alpha", "aqe")
GRAPHS = ("exact", "approximate")
NUMBER_BYTES = {"float32": 4, "float16": 2, "int8": 1}
# Neighbours kept beyond those that are listened to, candidates beyond those (more on a GPU, where 16 bits
# propose them), and what `Affinity` reads of a list at least, as gqe.index and gqe.aggregators have them.
SPARE_NEIGHBORS, SPARE_CANDIDATES, GPU_CANDIDATES, LEAST_LIST = 8, 5, 76, 32
# An id and a similarity in a list.
ENTRY_BYTES = 8
# Rows are numbered in 32 bits.
_MOST = {"items": 2**31 - 1, "dim": 1 << 20, "levels": 16, "k": 4096}


@dataclass(frozen=True)
class Job:
    """An index to plan.

    Attributes:
        items: n.
        dim: d.
        levels: L of the expander.
        k: neighbours that each level listens to.
        method: universal (reads similarities), gqe (the paper's encoder), alpha, or aqe.
        graph: exact, or approximate with a recall of 0.95.
        dtype: how embeddings and levels are stored.
        dba: whether the augmented database is stored and searched.
    """

    items: int
    dim: int
    levels: int = 2
    k: int = 32
    method: str = "universal"
    graph: str = "exact"
    dtype: str = "float16"
    dba: bool = True

    def __post_init__(self) -> None:
        for name in ("items", "dim", "levels", "k"):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"--{name}: expected a whole number of at least 1, got {value!r}")
            if value > _MOST.get(name, value):
                raise InputError(
                    f"--{name}: {value} is more than {_MOST[name]}, the most that is planned for"
                )
        for name, known in (("method", METHODS), ("graph", GRAPHS), ("dtype", tuple(NUMBER_BYTES))):
            if getattr(self, name) not in known:
                raise InputError(f"--{name}: {getattr(self, name)!r} is none of {', '.join(known)}")

    @property
    def row_bytes(self) -> int:
        """Of a stored embedding; 8 bits have a scale for each row."""
        return self.dim * NUMBER_BYTES[self.dtype] + (4 if self.dtype == "int8" else 0)

    def held_bytes(self, gpu: bool) -> int:
        """Of an embedding in the memory where it is compared: a GPU makes float32 of 8 bits."""
        return 4 * self.dim if gpu and self.dtype == "int8" else self.row_bytes

    @property
    def table_bytes(self) -> float:
        """Of one level of all items."""
        return float(self.items * self.row_bytes)

    @property
    def width(self) -> int:
        """Neighbours in a stored list."""
        return (max(self.k, LEAST_LIST) if self.method == "universal" else self.k) + SPARE_NEIGHBORS

    @property
    def list_bytes(self) -> int:
        """Of a stored list."""
        return self.width * ENTRY_BYTES

    @property
    def stored_levels(self) -> int:
        """Levels above the embeddings that are kept: one less than the expander has, or all for DBA."""
        return self.levels if self.dba else self.levels - 1

    def level_flops(self, level: int) -> float:
        """Of one node at a level, from 1."""
        if self.method == "gqe":
            return counting.attention_flops(self.k, self.dim)
        if self.method == "universal":
            return counting.affinity_flops(self.k, self.dim, first=level == 1)
        return (counting.alpha_flops if self.method == "alpha" else counting.sum_flops)(self.k, self.dim)

    def level_work(self, level: int) -> tuple[str, float]:
        """What a node costs at a level: the kind of work, and operations or, where those are few, bytes."""
        if self.method in ("alpha", "aqe"):
            return "sums", float((self.k + 1) * self.dim * 4)
        return ("encoder" if self.method == "gqe" else "similarities"), self.level_flops(level)
