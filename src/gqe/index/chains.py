"""The levels of a stored database: read from disk where they are up to date, computed where they are not."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators import Aggregator, Alpha, Attention, Decay, Identity, Mean
from gqe.aggregators.attention import _own_kernel
from gqe.aggregators.context import PLACES, background
from gqe.hierarchy import Hierarchy, joined
from gqe.index.lists import StoredGraph
from gqe.index.place import Place, encoder_type
from gqe.index.snapshot import Snapshot, level_names, storage_of
from gqe.index.tables import Table, rounded
from gqe.models import Expander
from gqe.neighbors import NeighborGraph
from gqe.transfer import to_device

Array = np.ndarray[Any, Any]
# Rows of levels kept in memory after they were computed.
_CACHE_BYTES = 256 << 20
_BLOCK = 4096
# Aggregators that take the same steps whatever they are given, all on the device; so do most encoders.
_STEADY = (Alpha, Decay, Identity, Mean)


class Level:
    """A stored level whose outdated rows are computed when they are asked for, and kept for a while.

    Args:
        name: of the table.
        table: what is stored.
        place: where it is read.
        stale: (n,) bool, rows whose stored values are out of date; None if all are right.
        compute: gives rows (p, d) by number (p,).
    """

    def __init__(
        self, name: str, table: Table, place: Place, stale: Array | None, compute: Callable[[Tensor], Tensor]
    ) -> None:
        self.name = name
        self.table = table
        self.place = place
        self.shape = table.shape
        self._stale = None if stale is None else torch.from_numpy(np.array(stale))
        self._compute = compute
        self._places = None if stale is None else torch.full((len(table),), -1, dtype=torch.int64)
        self._kept = torch.empty((0, table.shape[1]), dtype=table.dtype)
        self._count = 0  # of kept rows; there is room for more

    def __len__(self) -> int:
        return len(self.table)

    @property
    def stored(self) -> Table | Tensor:
        """What is stored, in the memory of the device if it fits there and is all up to date."""
        return self.place.table(self.name, self.table) if self._stale is None else self.table

    @property
    def device(self) -> torch.device:
        """Where rows come from."""
        return self.stored.device

    def index_select(self, _: int, numbers: Tensor) -> Tensor:
        """(p, d) rows by number, all up to date."""
        if self._stale is None:
            return self.stored.index_select(0, to_device(numbers, self.device))
        assert self._places is not None
        old = self._stale[numbers]
        result = torch.empty((len(numbers), self.shape[1]), dtype=self.table.dtype)
        result[~old] = self.table.index_select(0, numbers[~old])
        wanted = numbers[old]
        missing = torch.unique(wanted[self._places[wanted] < 0])
        if len(missing):
            if self._count * self.shape[1] * 4 > _CACHE_BYTES:
                self._places.fill_(-1)
                self._count = 0
                missing = torch.unique(wanted)
            self._keep(rounded(self._compute(missing).cpu(), self.table.storage))
            self._places[missing] = torch.arange(self._count - len(missing), self._count)
        result[old] = self._kept[self._places[wanted]]
        return result

    def _keep(self, rows: Tensor) -> None:
        """Put rows (p, d) behind those that are kept; room doubles, so that they are seldom moved."""
        end = self._count + len(rows)
        if end > len(self._kept):
            kept = self._kept[: self._count]
            self._kept = torch.empty((max(end, 2 * len(kept)), self.shape[1]), dtype=kept.dtype)
            self._kept[: len(kept)] = kept
        self._kept[self._count : end] = rows
        self._count = end


class StoredHierarchy(Hierarchy):
    """Algorithm 2 over an index: the levels come from disk, and background and graph are given.

    Args:
        stack: the aggregators.
        snapshot: the opened index.
        prefix: "level" or "augmented": which chain of stored levels.
        backgrounds: (levels, 2), empty where no aggregator reads them.
        place: where aggregators run.
        contrast: see `Hierarchy`.
    """

    def __init__(
        self,
        stack: Sequence[Aggregator],
        snapshot: Snapshot,
        prefix: str,
        backgrounds: Sequence[Sequence[float]],
        place: Place,
        contrast: float = 0.0,
    ) -> None:
        vectors = Level("vectors", snapshot.vectors, place, None, self._computer(0))
        super().__init__(stack, cast(Tensor, vectors), None, device=place.device, contrast=contrast)
        self._encoder_type = encoder_type(place.device, snapshot.manifest.storage)
        self._encoders: dict[int, Aggregator] = {}
        self.stored = snapshot.graph
        # Checking a graph that an index wrote would read all of it.
        self._graph = cast(NeighborGraph, snapshot.graph)
        self._backgrounds = [torch.tensor(pair, dtype=torch.float32) for pair in backgrounds]
        if snapshot.manifest.landscape:
            self._landscape = torch.tensor(snapshot.manifest.landscape, dtype=torch.float32)
        self.alive = snapshot.alive
        self.storage = [snapshot.vectors.storage]
        for i in range(1, len(stack) + 1):
            name = f"{prefix}-{i}"
            if name not in snapshot.levels:
                break
            self.storage.append(storage_of(snapshot.manifest, name))
            level = Level(name, snapshot.levels[name], place, snapshot.stale[name], self._computer(i))
            self._levels.append(cast(Tensor, level))

    @property
    def stored_levels(self) -> int:
        """How many levels above the embeddings are on disk."""
        return len(self._levels) - 1

    @property
    def reads_background(self) -> bool:
        """Whether any aggregator needs to know how similar unrelated items are."""
        return any(aggregator.needs_context for aggregator in self.stack)

    def rows(self, i: int, numbers: Tensor) -> Tensor:
        """(p, d) level i >= 1 of items by number (p,), computed from the level below, on the device."""
        below = self.level(i - 1).index_select(0, numbers)
        unread = i == 1 or not self.stack[i - 1].needs_context
        originals = below if unread else self.database.index_select(0, numbers)
        neighbors = self.stored.neighbors(numbers.numpy(), self.k)
        parts = list(self._aggregate(i - 1, below.to(torch.float32), originals.to(torch.float32), neighbors))
        return joined([part.embeddings for part in parts])

    def measure_background(self, i: int) -> list[float]:
        """Median and deviation of unrelated similarities at level i, kept from here on."""
        rows = self.level(i).index_select(0, self._company())
        measured = background(rows.to(torch.float32)).cpu()
        self._backgrounds = [*self._backgrounds[:i], measured]
        self._read_grounds.clear()
        return [float(value) for value in measured]

    def measure_landscape(self) -> list[list[float]]:
        """How near the neighbours of items usually are, kept from here on."""
        self._landscape = None
        self._read_grounds.clear()
        return [[float(value) for value in row] for row in self._usual()]

    def _items(self) -> Array:
        return np.flatnonzero(self.alive)

    def table(self, i: int) -> Table | Tensor:
        """Level i as a search reads it; none of it may be out of date."""
        return cast(Level, self.level(i)).stored

    @cached_property
    def steady(self) -> bool:
        """Whether expansion takes the same steps for every query, all of them on a GPU."""
        tables = (self.table(i) for i in range(self.depth))
        if not all(isinstance(table, Tensor) and table.is_cuda for table in tables):
            return False
        return all(_is_steady(self._ready(i), self.device) for i in range(self.depth))

    def _ready(self, i: int) -> Aggregator:
        aggregator = self.stack[i]
        if self._encoder_type == torch.float32 or not isinstance(aggregator, Attention):
            return super()._ready(i)
        if i not in self._encoders:
            own = copy.deepcopy(aggregator).to(self.device, self._encoder_type)
            self._encoders[i] = own.eval()
        return self._encoders[i]

    def _computer(self, i: int) -> Callable[[Tensor], Tensor]:
        hierarchy = weakref.proxy(self)  # or only the garbage collector would give a GPU's memory back
        return lambda numbers: cast(Tensor, hierarchy.rows(i, numbers))


def _is_steady(aggregator: Aggregator, device: torch.device) -> bool:
    if not isinstance(aggregator, Attention):
        return type(aggregator) in _STEADY
    # Without our own kernel an encoder asks the GPU whether any token is missing, and waits for the answer.
    tokens = torch.empty((0, aggregator.k + 1, aggregator.dim), dtype=aggregator.positions.dtype)
    return _own_kernel(tokens.to(device), aggregator.heads, 0.0)


class Chains(NamedTuple):
    """The stored levels of an index.

    Attributes:
        query: those a query's expansion reads.
        database: those of the augmentation, whose last one is searched; maybe the same; None if not stored.
    """

    query: StoredHierarchy
    database: StoredHierarchy | None

    def distinct(self) -> dict[str, StoredHierarchy]:
        """Every chain once, by the prefix of its levels' names."""
        chains = {"level": self.query}
        if self.database is not None and self.database is not self.query:
            chains["augmented"] = self.database
        return chains


def open_chains(snapshot: Snapshot, expander: Expander, place: Place) -> Chains:
    """The levels of an opened index."""
    backgrounds = snapshot.manifest.backgrounds
    query = StoredHierarchy(
        expander.stack, snapshot, "level", backgrounds.get("level", []), place, expander.contrast
    )
    if not snapshot.manifest.augmented:
        return Chains(query, None)
    if "augmented-1" not in snapshot.levels:
        return Chains(query, query)
    own = backgrounds.get("augmented", [])
    return Chains(query, StoredHierarchy(expander.database_stack, snapshot, "augmented", own, place))


def affected(hierarchy: StoredHierarchy, levels: int, changed_at: Array, fresh: Array) -> list[Array]:
    """Which rows of each level a change of neighbour lists has put out of date.

    A row follows its own list and, level by level, the rows it listens to. An aggregator that reads the
    neighbours' own lists follows those, too.

    Args:
        hierarchy: after the change.
        levels: how many levels to look at.
        changed_at: (n,) the first place of each list that changed; at least the lists' width if none.
        fresh: (n,) bool, new items.

    Returns:
        For each level from 1 on, (n,) bool.
    """
    below = fresh.copy()
    result = []
    for aggregator in hierarchy.stack[:levels]:
        now = fresh | (changed_at < aggregator.k) | below
        listened = below
        if aggregator.needs_context:
            now |= changed_at < PLACES[-1]
            listened = below | fresh | (changed_at < PLACES[-1])
        if listened.any():
            _mark_listeners(hierarchy.stored, aggregator.k, listened, now)
        now &= hierarchy.alive
        result.append(now)
        below = now
    return result


def _mark_listeners(graph: StoredGraph, k: int, listened: Array, marks: Array) -> None:
    """Mark, in place, every row that has a listened-to row among its first k neighbours."""
    for start in range(0, len(marks), _BLOCK):
        ids = graph.block(start, min(start + _BLOCK, len(marks))).ids[:, :k]
        marks[start : start + _BLOCK] |= (listened[ids.clip(min=0)] & (ids >= 0)).any(axis=1)


__all__ = ["Chains", "Level", "StoredHierarchy", "affected", "level_names", "open_chains"]
