"""The levels of a stored database: read from disk where they are up to date, computed where they are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators import Aggregator
from gqe.aggregators.context import PLACES, background, landscape, profiles
from gqe.hierarchy import Hierarchy
from gqe.index.lists import StoredGraph
from gqe.index.snapshot import Snapshot, level_names, storage_of
from gqe.index.tables import Table, rounded
from gqe.neighbors import NeighborGraph

Array = np.ndarray[Any, Any]
# Rows of levels kept in memory after they were computed.
_CACHE_BYTES = 256 << 20
# Items that backgrounds and the landscape are measured on: as many as the hierarchy itself looks at.
_SAMPLE = 1024
_LISTS_SAMPLE = 4096
_BLOCK = 4096


class Level:
    """A stored level whose outdated rows are computed when they are asked for, and kept for a while.

    Args:
        table: what is stored.
        stale: (n,) bool, rows whose stored values are out of date; None if all are right.
        compute: gives rows (p, d) by number (p,).
    """

    def __init__(self, table: Table, stale: Array | None, compute: Callable[[Tensor], Tensor]) -> None:
        self.table = table
        self.shape = table.shape
        self.device = table.device
        self._stale = None if stale is None else torch.from_numpy(np.array(stale))
        self._compute = compute
        self._places = None if stale is None else torch.full((len(table),), -1, dtype=torch.int64)
        self._kept = torch.empty((0, table.shape[1]), dtype=table.dtype)

    def __len__(self) -> int:
        return len(self.table)

    def index_select(self, _: int, numbers: Tensor) -> Tensor:
        """(p, d) rows by number, all up to date."""
        if self._stale is None:
            return self.table.index_select(0, numbers)
        assert self._places is not None
        old = self._stale[numbers]
        result = torch.empty((len(numbers), self.shape[1]), dtype=self.table.dtype)
        result[~old] = self.table.index_select(0, numbers[~old])
        wanted = numbers[old]
        missing = torch.unique(wanted[self._places[wanted] < 0])
        if len(missing):
            if len(self._kept) * self._kept.shape[1] * 4 > _CACHE_BYTES:
                self._places.fill_(-1)
                self._kept = self._kept[:0]
                missing = torch.unique(wanted)
            fresh = rounded(self._compute(missing).cpu(), self.table.storage)
            self._places[missing] = torch.arange(len(missing)) + len(self._kept)
            self._kept = torch.cat([self._kept, fresh])
        result[old] = self._kept[self._places[wanted]]
        return result


class StoredHierarchy(Hierarchy):
    """Algorithm 2 over an index: the levels come from disk, and background and graph are given.

    Args:
        stack: the aggregators.
        snapshot: the opened index.
        prefix: "level" or "augmented": which chain of stored levels.
        backgrounds: (levels, 2), empty where no aggregator reads them.
        device: where aggregators run.
    """

    def __init__(
        self,
        stack: Sequence[Aggregator],
        snapshot: Snapshot,
        prefix: str,
        backgrounds: Sequence[Sequence[float]],
        device: torch.device,
    ) -> None:
        super().__init__(stack, cast(Tensor, snapshot.vectors), None, device=device)
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
            level = Level(snapshot.levels[name], snapshot.stale[name], self._computer(i))
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
        """(p, d) level i >= 1 of the items of the given numbers (p,), computed from the level below."""
        below = self.level(i - 1).index_select(0, numbers)
        originals = below if i == 1 else self.database.index_select(0, numbers)
        neighbors = self.stored.neighbors(numbers.numpy(), self.k)
        parts = list(self._aggregate(i - 1, below.to(torch.float32), originals.to(torch.float32), neighbors))
        return torch.cat([part.embeddings for part in parts]).cpu()

    def measure_background(self, i: int) -> list[float]:
        """Median and deviation of unrelated similarities at level i, kept from here on."""
        numbers = torch.from_numpy(np.flatnonzero(self.alive))
        if len(numbers) > _SAMPLE:
            order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(0))
            numbers = numbers[order[:_SAMPLE]]
        measured = background(self.level(i).index_select(0, numbers).to(torch.float32))
        self._backgrounds = [*self._backgrounds[:i], measured]
        return [float(value) for value in measured]

    def measure_landscape(self) -> list[list[float]]:
        """How near the neighbours of items usually are, kept from here on."""
        numbers = np.flatnonzero(self.alive)
        chosen = np.sort(np.random.default_rng(0).permutation(len(numbers))[:_LISTS_SAMPLE])
        lists = self.stored.take(numbers[chosen]).similarities
        self._landscape = landscape(profiles(torch.from_numpy(lists)))
        return [[float(value) for value in row] for row in self._landscape]

    def _computer(self, i: int) -> Callable[[Tensor], Tensor]:
        return lambda numbers: self.rows(i, numbers)


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


def open_chains(
    snapshot: Snapshot,
    stack: Sequence[Aggregator],
    database_stack: Sequence[Aggregator],
    device: torch.device,
) -> Chains:
    """The levels of an opened index."""
    backgrounds = snapshot.manifest.backgrounds
    query = StoredHierarchy(stack, snapshot, "level", backgrounds.get("level", []), device)
    if not snapshot.manifest.augmented:
        return Chains(query, None)
    if "augmented-1" not in snapshot.levels:
        return Chains(query, query)
    own = backgrounds.get("augmented", [])
    return Chains(query, StoredHierarchy(database_stack, snapshot, "augmented", own, device))


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
