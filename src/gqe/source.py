"""What expansion reads of a database: embeddings, the levels above them, neighbour lists, statistics.

Level i of a database item depends only on the database, never on the query. So each level is computed once
and kept, and a query costs one aggregator call per level instead of K^(L-1): the paper's "efficient
inference". Where the levels are kept differs: in memory (`MemorySource`), in the files of an index, beside
the vectors of a vector database, or nowhere (`ComputedSource`, whose levels carry gradients).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator
from gqe.aggregators.context import list_profiles
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph, knn
from gqe.neighbors.candidates import Candidates
from gqe.progress import Progress, Report
from gqe.statistics import SpaceStatistics
from gqe.transfer import to_device


class LevelSource(ABC):
    """The levels of one stack over one database.

    Attributes:
        stack: the aggregators, first level first.
        device: where aggregators run.
        dim: of the embeddings.
        statistics: of the database, for aggregators that read them.
    """

    def __init__(
        self,
        stack: Sequence[Aggregator],
        dim: int,
        device: torch.device,
        statistics: SpaceStatistics | None = None,
    ) -> None:
        if not stack:
            raise InputError("stack: an expansion needs at least one aggregator")
        self.stack = list(stack)
        self.dim = dim
        self.device = device
        self.statistics = SpaceStatistics() if statistics is None else statistics

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def rows(self, level: int, ids: Tensor) -> Tensor:
        """(p, d) rows of a level by id (p,), on any device and in any floating type."""

    @abstractmethod
    def lists(self, ids: Tensor) -> Candidates:
        """The neighbour lists (p, >= graph_k) of items by id (p,), none its own neighbour."""

    def profiles(self, ids: Tensor) -> Tensor:
        """(..., len(PLACES)) `list_profiles` of the lists of items by id, of any shape."""
        profiles = list_profiles(self.lists(ids.reshape(-1)).similarities)
        return profiles.reshape(*ids.shape, profiles.shape[1])

    def items(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The rows that hold an item, in rising order."""
        return np.arange(len(self))

    def num_neighbors(self, level: int) -> int:
        """How many neighbours the aggregator above a level reads."""
        return self.stack[level].k

    def aggregator(self, level: int) -> Aggregator:
        """The aggregator above a level, on the device and in evaluation mode."""
        aggregator = self.stack[level]
        # Asking one parameter is far cheaper than moving what is there already.
        first = next(aggregator.parameters(), None)
        if first is not None and first.device != self.device:
            aggregator.to(self.device)
        return aggregator.eval() if aggregator.training else aggregator

    @property
    def depth(self) -> int:
        """L, the number of aggregators."""
        return len(self.stack)

    @property
    def graph_k(self) -> int:
        """How many neighbours of every item must be known."""
        return max(aggregator.graph_k for aggregator in self.stack)

    @property
    def needs_context(self) -> bool:
        """Whether any aggregator reads statistics and neighbour lists."""
        return any(aggregator.needs_context for aggregator in self.stack)


class _Level(NamedTuple):
    """Rows of a level of a database.

    Attributes:
        table: (n, d) of which some rows are computed; None for none.
        missing: (n,) the others; None when all are computed.
    """

    table: Tensor | None
    missing: Tensor | None


class MemorySource(LevelSource):
    """A database in memory; graph, levels and statistics are computed when first needed.

    Of a level only the rows are computed that are asked for: a few queries need few of them.

    Args:
        stack: the aggregators, first level first.
        database: (n, d) checked embeddings (`gqe.embeddings.as_table`).
        graph: neighbours of the database items, or FAISS's lists (D, I); built when first needed if None.
        device: where aggregators run. A GPU keeps a copy of the database if it takes at most half of its free
            memory.
        recall: for building the graph, see `gqe.knn`.
        seed: for building an approximate graph.
        progress: of building the graph, see `gqe.knn`.
    """

    def __init__(
        self,
        stack: Sequence[Aggregator],
        database: Tensor,
        graph: NeighborGraph | tuple[Any, Any] | None = None,
        *,
        device: torch.device,
        recall: float | None = None,
        seed: int = 0,
        progress: Progress = False,
    ) -> None:
        super().__init__(stack, database.shape[1], device)
        if graph is not None:
            graph = checked_graph(graph, len(database), self.graph_k)
        self.database = _on_device(database, device)
        self._graph = graph
        self._wider: NeighborGraph | None = None
        self._recall = recall
        self._seed = seed
        self._progress = progress
        self._levels: dict[int, _Level] = {}
        self._profiles: Tensor | None = None

    def __len__(self) -> int:
        return len(self.database)

    @property
    def graph(self) -> NeighborGraph:
        """The neighbours of the database items that the levels are computed on."""
        return self.graph_of(self.graph_k) if self._graph is None else self._graph

    def graph_of(self, k: int, progress: Report | None = None) -> NeighborGraph:
        """The neighbours of the database items, at least k of each where there are so many.

        The graph that the levels are computed on stays as it is; a wider one is kept beside it.
        """
        for known in (self._graph, self._wider):
            if known is not None and known.k >= min(k, len(self.database) - 1):
                return known
        k = max(1, min(max(k, self.graph_k), len(self.database) - 1))
        graph = knn(
            self.database,
            k,
            recall=self._recall,
            device=self.device,
            seed=self._seed,
            progress=progress or self._progress,
        )
        if self._graph is None:
            self._graph = graph
        else:
            self._wider = graph
        return graph

    def level(self, i: int) -> Tensor:
        """(n, d) embeddings of the database after the first i aggregators, computed once."""
        return self._computed(i, None)

    def _computed(self, i: int, ids: Tensor | None, progress: Report | None = None) -> Tensor:
        """(n, d) table of a level where the rows of these items, or of all, are computed."""
        from gqe.expansion import compute_level

        if i == 0:
            return self.database
        n, device = len(self), self.database.device
        level = self._levels.get(i) or _Level(None, torch.ones(n, dtype=torch.bool, device=device))
        if level.table is not None and level.missing is None:
            return level.table
        assert level.missing is not None
        wanted = level.missing
        if ids is not None:
            wanted = torch.zeros_like(wanted)
            wanted[ids] = True
            wanted &= level.missing
        items = torch.nonzero(wanted)[:, 0]
        if level.table is None or len(items):
            rows = compute_level(self, i, items.cpu(), progress).to(device)
            if len(items) == n:
                table, missing = rows, None
            else:
                table = rows.new_empty((n, self.dim)) if level.table is None else level.table
                table[items] = rows
                missing = level.missing & ~wanted
                missing = missing if missing.any() else None
            level = self._levels[i] = _Level(table, missing)
        assert level.table is not None
        return level.table

    def augment(self, stack: Sequence[Aggregator] | None = None, progress: Report | None = None) -> Tensor:
        """(n, d) database-side augmentation: the whole stack, or another one, run on every database item."""
        stack = self.stack if stack is None else list(stack)
        graph = self.graph_of(max(aggregator.graph_k for aggregator in stack), progress)
        if stack == self.stack:
            return self._computed(self.depth, None, progress)
        other = MemorySource(stack, self.database, graph, device=self.device)
        return other.augment(progress=progress)

    def rows(self, level: int, ids: Tensor) -> Tensor:
        """See `LevelSource`."""
        ids = to_device(ids, self.database.device)
        return self._computed(level, ids).index_select(0, ids)

    def lists(self, ids: Tensor) -> Candidates:
        """See `LevelSource`."""
        chosen = ids.cpu().numpy()
        graph = self.graph
        return Candidates(
            torch.from_numpy(graph.ids[chosen].astype(np.int64)), torch.from_numpy(graph.similarities[chosen])
        )

    def profiles(self, ids: Tensor) -> Tensor:
        """See `LevelSource`."""
        if self._profiles is None:
            self._profiles = list_profiles(torch.from_numpy(self.graph.similarities)).to(self.device)
        return self._profiles[to_device(ids, self.device)]


def checked_graph(graph: object, n: int, k: int) -> NeighborGraph:
    """A graph of n items with at least k neighbours each, from one or from FAISS's lists (D, I)."""
    if isinstance(graph, tuple | list) and len(graph) == 2:
        graph = NeighborGraph.from_faiss(*graph)
    if not isinstance(graph, NeighborGraph):
        raise InputError(
            f"graph: expected a NeighborGraph of gqe.knn, or (D, I) of FAISS, got {type(graph).__name__}"
        )
    graph.check(n)
    if graph.k < min(k, n - 1):
        graph.truncate(k)  # says what is wrong
    return graph


class ComputedSource(LevelSource):
    """Levels that are computed while a model is trained, of the items that are needed, with gradients.

    Args:
        stack: the aggregators, first level first.
        table: (n, d) database embeddings, on any device.
        graph: neighbour lists (n, K) of its items.
        device: where aggregators run.
        k: how many neighbours are read, instead of each aggregator's own K.
        statistics: see `LevelSource`.
    """

    def __init__(
        self,
        stack: Sequence[Aggregator],
        table: Tensor,
        graph: Candidates,
        device: torch.device,
        *,
        k: int | None = None,
        statistics: SpaceStatistics | None = None,
    ) -> None:
        super().__init__(stack, table.shape[1], device, statistics)
        self.table = table
        self.graph = graph
        self._k = k
        # For each level (n + 1,) the row of every item, the last place for id -1; None for all in order.
        self._levels: list[tuple[Tensor | None, Tensor]] = []

    def __len__(self) -> int:
        return len(self.table)

    def set_level(self, level: int, items: Tensor | None, rows: Tensor) -> None:
        """Give the rows (p, d) of items (p,), or of all items, at a level."""
        places = None
        if items is not None:
            items = items.to(self.device)
            places = torch.full((len(self) + 1,), -1, dtype=torch.int64, device=self.device)
            places[items] = torch.arange(len(items), device=self.device)
        self._levels = [*self._levels[:level], (places, rows)]

    def rows(self, level: int, ids: Tensor) -> Tensor:
        """See `LevelSource`. Rows of items that were not given at the level are any rows."""
        places, rows = self._levels[level]
        ids = ids.to(rows.device)
        if places is not None:
            ids = places[ids].clamp(min=0)
        return rows.index_select(0, ids) if len(rows) else rows.new_zeros(len(ids), self.dim)

    def lists(self, ids: Tensor) -> Candidates:
        """See `LevelSource`."""
        return Candidates(*(part.index_select(0, ids.to(part.device)) for part in self.graph))

    def num_neighbors(self, level: int) -> int:
        """See `LevelSource`."""
        return super().num_neighbors(level) if self._k is None else self._k

    def aggregator(self, level: int) -> Aggregator:
        """The aggregator above a level as it is: in training, where it was put."""
        return self.stack[level]


def _on_device(table: Tensor, device: torch.device) -> Tensor:
    """The table in the memory of a GPU if it takes at most half of what is free there, or as it is."""
    if device.type != "cuda" or table.is_cuda:
        return table
    return table.to(device) if table.nbytes < torch.cuda.mem_get_info(device)[0] // 2 else table
