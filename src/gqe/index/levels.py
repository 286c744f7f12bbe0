"""The levels of a stored database: read from disk where they are up to date, computed where they are not."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators import Aggregator, Attention
from gqe.expansion import compute_level
from gqe.index.gpu import DeviceCache, encoder_type
from gqe.index.snapshot import Snapshot, storage_of
from gqe.index.tables import Table, round_rows
from gqe.models import Expander
from gqe.neighbors.candidates import Candidates
from gqe.row_cache import RowCache
from gqe.source import LevelSource
from gqe.staleness import reads_outdated, valid_levels
from gqe.statistics import SpaceStatistics
from gqe.transfer import to_device

Array = np.ndarray[Any, Any]
# Rows of levels cached in memory after they were computed.
_CACHE_BYTES = 256 << 20
_BLOCK = 4096


class StoredLevel:
    """A stored level whose outdated rows are computed when they are read, and cached. Threads may share it.

    Args:
        name: of the table.
        table: what is stored.
        cache: the device where it is read.
        stale: (n,) bool, rows whose stored values are out of date; None if all are right.
        source: what computes rows; not kept alive, or only the garbage collector would free a GPU's memory.
        level: which one it is.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        cache: DeviceCache,
        stale: Array | None,
        source: StoredSource,
        level: int,
    ) -> None:
        self.name = name
        self.table = table
        self.cache = cache
        self._source: StoredSource = weakref.proxy(source)
        self._level = level
        self._stale = None if stale is None else torch.from_numpy(np.array(stale))
        self._cached = None if stale is None else RowCache(len(table), _CACHE_BYTES)

    @property
    def stored_table(self) -> Table | Tensor:
        """What is stored, in the memory of the device if it fits there and is all up to date."""
        return self.cache.table(self.name, self.table) if self._stale is None else self.table

    def rows(self, ids: Tensor) -> Tensor:
        """(p, d) rows by id, all up to date."""
        if self._stale is None or self._cached is None:
            stored = self.stored_table
            return stored.index_select(0, to_device(ids, stored.device))
        ids = ids.cpu()
        old = self._stale[ids]
        result = torch.empty((len(ids), self.table.shape[1]), dtype=self.table.dtype)
        result[~old] = self.table.index_select(0, ids[~old])
        if bool(old.any()):
            result[old] = self._cached.rows(ids[old], self._computed)[0]
        return result

    def _computed(self, ids: Tensor) -> tuple[Tensor]:
        """Rows (p, d) that are out of date."""
        rows = compute_level(self._source, self._level, ids)
        return (round_rows(rows.cpu(), self.table.storage),)


class StoredSource(LevelSource):
    """The levels of an index.

    Args:
        stack: the aggregators.
        snapshot: the opened index.
        prefix: "level" or "augmented": which of the stored levels.
        cache: the device where aggregators run.
    """

    def __init__(
        self, stack: Sequence[Aggregator], snapshot: Snapshot, prefix: str, cache: DeviceCache
    ) -> None:
        manifest = snapshot.manifest
        statistics = SpaceStatistics(manifest.quantiles or None, manifest.backgrounds.get(prefix, []))
        super().__init__(stack, manifest.dimension, cache.device, statistics)
        self._encoder_type = encoder_type(cache.device, manifest.storage)
        self._encoders: dict[int, Aggregator] = {}
        self.graph = snapshot.graph
        self.alive = snapshot.alive
        self._levels = [StoredLevel("vectors", snapshot.vectors, cache, None, self, 0)]
        self.storage = [snapshot.vectors.storage]
        for i in range(1, len(stack) + 1):
            name = f"{prefix}-{i}"
            if name not in snapshot.levels:
                break
            self.storage.append(storage_of(manifest, name))
            self._levels.append(
                StoredLevel(name, snapshot.levels[name], cache, snapshot.stale[name], self, i)
            )

    def __len__(self) -> int:
        return len(self.alive)

    @property
    def stored_levels(self) -> int:
        """How many levels above the embeddings are on disk."""
        return len(self._levels) - 1

    def rows(self, level: int, ids: Tensor) -> Tensor:
        """See `LevelSource`."""
        return self._levels[level].rows(ids)

    def lists(self, ids: Tensor) -> Candidates:
        """See `LevelSource`."""
        lists = self.graph.take(ids.cpu().numpy())
        k = self.graph_k
        return Candidates(torch.from_numpy(lists.ids[:, :k]), torch.from_numpy(lists.similarities[:, :k]))

    def items(self) -> Array:
        """See `LevelSource`."""
        return np.flatnonzero(self.alive)

    def table(self, level: int) -> Table | Tensor:
        """A level as a search reads it; none of it may be out of date."""
        return self._levels[level].stored_table

    @cached_property
    def cuda_graph_safe(self) -> bool:
        """Whether expansion takes the same steps for every query, all of them on a GPU."""
        tables = (self.table(i) for i in range(self.depth))
        if not all(isinstance(table, Tensor) and table.is_cuda for table in tables):
            return False
        return all(self.aggregator(i).cuda_graph_safe(self.device) for i in range(self.depth))

    def aggregator(self, level: int) -> Aggregator:
        """See `LevelSource`; encoders in the type that the storage allows."""
        aggregator = self.stack[level]
        if self._encoder_type == torch.float32 or not isinstance(aggregator, Attention):
            return super().aggregator(level)
        if level not in self._encoders:
            self._encoders[level] = copy.deepcopy(aggregator).to(self.device, self._encoder_type).eval()
        return self._encoders[level]


class StoredLevels(NamedTuple):
    """The stored levels of an index.

    Attributes:
        query: those a query's expansion reads.
        database: those of the augmentation, whose last one is searched; maybe the same; None if not stored.
    """

    query: StoredSource
    database: StoredSource | None

    def by_prefix(self) -> dict[str, StoredSource]:
        """Every source once, by the prefix of its levels' names."""
        sources = {"level": self.query}
        if self.database is not None and self.database is not self.query:
            sources["augmented"] = self.database
        return sources


def open_levels(snapshot: Snapshot, expander: Expander, cache: DeviceCache) -> StoredLevels:
    """The levels of an opened index."""
    query = StoredSource(expander.stack, snapshot, "level", cache)
    if not snapshot.manifest.augmented:
        return StoredLevels(query, None)
    if "augmented-1" not in snapshot.levels:
        return StoredLevels(query, query)
    return StoredLevels(query, StoredSource(expander.database_stack, snapshot, "augmented", cache))


def valid_after(source: StoredSource, levels: int, changed_at: Array) -> Array:
    """(n,) how many levels of each item a change of neighbour lists leaves valid, see `gqe.staleness`.

    Args:
        source: after the change.
        levels: how many are stored.
        changed_at: (n,) the first place of each list that changed, 0 for new items; at least the lists' width
            if none.
    """
    stack = source.stack[:levels]
    valid = valid_levels(stack, changed_at)
    for level, aggregator in enumerate(stack, 1):
        outdated = valid < level - 1
        for start in range(0, len(valid) if outdated.any() else 0, _BLOCK):
            stop = min(start + _BLOCK, len(valid))
            readers = reads_outdated(aggregator, source.graph.block(start, stop).ids, outdated)
            valid[start:stop][readers] = np.minimum(valid[start:stop][readers], level - 1)
    return valid
