"""What is to be built: sizes, checked, and the bytes and operations that follow from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from gqe.errors import InputError
from gqe.planning import flops
from gqe.query_options import QueryOptions

METHODS = ("universal", "gqe", "alpha", "aqe")
GRAPHS = ("exact", "approximate")
NUMBER_BYTES = {"float32": 4, "float16": 2, "int8": 1}
# Neighbours stored beyond those that aggregators read, candidates beyond those (more on a GPU, where 16 bits
# propose them), and what `Affinity` reads of a list at least, as gqe.index and gqe.aggregators have them.
SPARE_NEIGHBORS, SPARE_CANDIDATES, GPU_CANDIDATES, LEAST_LIST = 8, 5, 76, 32
# An id and a similarity in a list.
ENTRY_BYTES = 8
# Rows are numbered in 32 bits.
_MAXIMA = {"items": 2**31 - 1, "dim": 1 << 20, "levels": 16, "k": 4096}
# Shards per worker, so that all are busy to the end; approximate searches cost less in large shards. No shard
# is larger than 1 GiB in float32, nor smaller than this many rows, where that can be avoided.
_SHARDS_PER_WORKER = {"exact": 4, "approximate": 1}
_MAX_SHARD_BYTES, _MIN_SHARD_ROWS = 1 << 30, 1024


@dataclass(frozen=True)
class Job:
    """An index to plan.

    Attributes:
        items: n.
        dim: d.
        levels: L of the expander.
        k: neighbours that each level aggregates.
        method: universal (reads similarities), gqe (the paper's encoder), alpha, or aqe.
        graph: exact, or approximate with a recall of 0.95.
        dtype: how embeddings and levels are stored.
        dba: whether the augmented database is stored and searched.
        contrast: see `QueryOptions`; that of the method if None.
        rounds: see `QueryOptions`.
    """

    items: int
    dim: int
    levels: int = 2
    k: int = 32
    method: str = "universal"
    graph: str = "exact"
    dtype: str = "float16"
    dba: bool = True
    contrast: float | None = None
    rounds: int = 1

    def __post_init__(self) -> None:
        for name, maximum in _MAXIMA.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"--{name}: expected a whole number of at least 1, got {value!r}")
            if value > maximum:
                raise InputError(f"--{name}: {value} is more than {maximum}, the most that is planned for")
        for name, known in (("method", METHODS), ("graph", GRAPHS), ("dtype", tuple(NUMBER_BYTES))):
            if getattr(self, name) not in known:
                raise InputError(f"--{name}: {getattr(self, name)!r} is none of {', '.join(known)}")
        try:
            self.options  # noqa: B018  # refuses wrong values
        except InputError as error:
            raise InputError(f"--{error}") from None

    @property
    def options(self) -> QueryOptions:
        """What is done to queries beside running the aggregators."""
        contrast = _shipped_contrast(self.method) if self.contrast is None else self.contrast
        return QueryOptions(contrast, self.rounds)

    @property
    def row_bytes(self) -> int:
        """Of a stored embedding; 8 bits have a scale for each row."""
        return self.dim * NUMBER_BYTES[self.dtype] + (4 if self.dtype == "int8" else 0)

    def device_row_bytes(self, gpu: bool) -> int:
        """Of an embedding in the memory where it is compared: a GPU makes float32 of 8 bits."""
        return 4 * self.dim if gpu and self.dtype == "int8" else self.row_bytes

    @property
    def table_bytes(self) -> float:
        """Of one level of all items."""
        return float(self.items * self.row_bytes)

    @property
    def graph_k(self) -> int:
        """Neighbours in a list that aggregators read."""
        return max(self.k, LEAST_LIST) if self.method == "universal" else self.k

    @property
    def width(self) -> int:
        """Neighbours in a stored list."""
        return self.graph_k + SPARE_NEIGHBORS

    @property
    def list_bytes(self) -> int:
        """Of a stored list."""
        return self.width * ENTRY_BYTES

    @property
    def num_query_neighbors(self) -> int:
        """Neighbours of a query whose embeddings are read: those of the aggregators, and the negatives."""
        return self.options.num_neighbors(self.k)

    @property
    def query_bytes(self) -> float:
        """Of the rows and lists that are read for one query."""
        expansion = self.levels * self.k * self.row_bytes
        if self.method == "universal":
            expansion += self.k * self.list_bytes
        return self.rounds * expansion + (self.num_query_neighbors - self.k) * self.row_bytes

    @property
    def stored_levels(self) -> int:
        """Levels above the embeddings that are stored: one less than the expander has, or all for DBA."""
        return self.levels if self.dba else self.levels - 1

    def level_flops(self, level: int) -> float:
        """Of one node at a level, from 1."""
        if self.method == "gqe":
            return flops.attention_flops(self.k, self.dim)
        if self.method == "universal":
            return flops.affinity_flops(self.k, self.dim, first=level == 1)
        return (flops.alpha_flops if self.method == "alpha" else flops.sum_flops)(self.k, self.dim)

    def level_work(self, level: int) -> tuple[str, float]:
        """What a node costs at a level: the kind of work, and operations or, where those are few, bytes."""
        if self.method in ("alpha", "aqe"):
            return "sums", float((self.k + 1) * self.dim * 4)
        return ("encoder" if self.method == "gqe" else "similarities"), self.level_flops(level)


@cache
def _shipped_contrast(method: str) -> float:
    """Of a model that ships with the package; 0 for other methods."""
    config = resources.files("gqe").joinpath("pretrained", method, "config.json")
    if not config.is_file():
        return 0.0
    return QueryOptions.from_config(json.loads(config.read_text(encoding="utf-8"))).contrast


def default_num_shards(items: int, dim: int, workers: int, *, exact: bool) -> int:
    """Into how many shards a build on a cluster cuts rows: several per worker, none above 1 GiB.

    Example:
        >>> default_num_shards(1_000_000, 2048, 2, exact=True)
        8
    """
    by_size = -(-items * dim * 4 // _MAX_SHARD_BYTES)
    by_workers = workers * _SHARDS_PER_WORKER["exact" if exact else "approximate"]
    return max(1, by_size, min(by_workers, items // _MIN_SHARD_ROWS))
