"""One version of an index, as a search sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators import Aggregator
from gqe.errors import DamagedError, InputError, StorageError
from gqe.index.approximate import Approximate, read_approximate
from gqe.index.building import AUGMENTER, EXPANDER
from gqe.index.files import wrap_os_errors
from gqe.index.finding import nearest_rows
from gqe.index.gpu import CudaGraphRunner, DeviceCache
from gqe.index.items import INT
from gqe.index.levels import StoredLevels, StoredSource, open_levels
from gqe.index.metadata import allowed_by
from gqe.index.shards import ShardedApproximate
from gqe.index.snapshot import Snapshot
from gqe.model_files import Model, load_model
from gqe.models import Expander
from gqe.neighbors import NeighborGraph, knn
from gqe.neighbors.candidates import Candidates, Engine
from gqe.query_options import QueryOptions
from gqe.results import SearchResult
from gqe.retrieval import expand_once
from gqe.source import LevelSource
from gqe.targets import SearchTarget, WholeDatabase

Array = np.ndarray[Any, Any]


class IndexTarget(SearchTarget):
    """An opened version. Keys are row numbers.

    Args:
        snapshot: the version.
        device: where to compute.
        expander: the one the index was built with, if it has been loaded before.
    """

    def __init__(self, snapshot: Snapshot, device: torch.device, expander: Expander | None = None) -> None:
        super().__init__()
        self.snapshot = snapshot
        self.device = device
        self.dim = snapshot.manifest.dimension
        self.loaded = expander

    @property
    def expander(self) -> Expander:
        """The expander the index was built with, loaded when first needed."""
        if self.loaded is None:
            folder = self.snapshot.folder
            with wrap_os_errors(folder, "read"):
                model = _model(folder / EXPANDER)
                other = _model(folder / AUGMENTER).stack if (folder / AUGMENTER).is_dir() else None
            self.loaded = Expander(
                model.stack, model.name, database_stack=other, query_options=model.query_options
            )
        return self.loaded

    @property
    def stack(self) -> list[Aggregator]:
        """See `SearchTarget`."""
        return self.expander.stack

    @property
    def options(self) -> QueryOptions:
        """See `SearchTarget`."""
        return self.expander.query_options

    @property
    def size(self) -> int:
        """See `SearchTarget`."""
        return self.snapshot.manifest.items

    def levels_of(self, snapshot: Snapshot) -> StoredLevels:
        """The levels of any version of this index."""
        return open_levels(snapshot, self.expander, DeviceCache(self.device))

    @cached_property
    def levels(self) -> StoredLevels:
        """The levels of this version."""
        return self.levels_of(self.snapshot)

    @contextmanager
    def wrap_read_errors(self) -> Iterator[None]:
        """See `SearchTarget`."""
        self.snapshot.check_sizes()
        try:
            yield
        except IndexError as error:
            raise DamagedError(
                f"{self.snapshot.folder}: a list names an item that is not there; run `gqe index verify`"
            ) from error

    def resolve_exclude(self, ids: Any, count: int) -> Array:
        """See `SearchTarget`."""
        values = [None if value is None or value == -1 else value for value in _as_list(ids)]
        if len(values) != count:
            raise InputError(
                f"exclude: {len(values)} ids for {count} queries; give one for each, None for nothing"
            )
        rows = np.full(count, -1, dtype=np.int64)
        for name in {value for value in values if value is not None}:
            row = self.snapshot.ids.find([name], self.snapshot.alive, "exclude")[0]
            rows[[place for place, value in enumerate(values) if value == name]] = row
        return rows

    def resolve_filter(self, filter: Any) -> Array:
        """See `SearchTarget`."""
        if self.snapshot.metadata is None:
            raise InputError("filter: this index has no metadata; build it with metadata")
        return np.asarray(self.snapshot.alive & allowed_by(filter, self.snapshot.metadata))

    def metadata_of(self, keys: list[Any]) -> list[dict[str, Any] | None]:
        """See `SearchTarget`; rows of an index without metadata have no columns."""
        if self.snapshot.metadata is None:
            return [{} for _ in keys]
        found: list[dict[str, Any] | None] = self.snapshot.metadata.take(keys).to_pylist() if keys else []
        return found

    def resolve_dba(self, dba: bool | None) -> bool:
        """See `SearchTarget`."""
        augmented = self.snapshot.manifest.augmented
        if dba and not augmented:
            raise InputError(
                "dba: this index was built without augmentation; build it with dba=True or by"
                " gqe index build --dba"
            )
        return augmented if dba is None else dba

    def neighbors(
        self, queries: Tensor, k: int, exclude: Array | None, exact: bool | None, *, lists: bool = False
    ) -> tuple[LevelSource, Candidates]:
        """See `SearchTarget`."""
        allowed = None if self.snapshot.all_alive else self.snapshot.alive
        source = self.levels.query
        return source, self._search(
            source.table(0), queries, k, exclude, allowed, self._engine(exact, allowed)
        )

    def nearest(
        self, queries: Tensor, k: int, exclude: Array | None, allowed: Any, exact: bool | None, dba: bool
    ) -> SearchResult:
        """See `SearchTarget`."""
        if allowed is None and not self.snapshot.all_alive:
            allowed = self.snapshot.alive
        engine = None if dba else self._engine(exact, allowed)
        found = self._search(self._search_table(dba), queries, k, exclude, allowed, engine)
        return SearchResult(found.similarities.cpu().numpy(), found.ids.cpu().numpy())

    def cuda_graph(self, source: LevelSource, contrast: float) -> CudaGraphRunner | None:
        """See `SearchTarget`."""
        if not isinstance(source, StoredSource) or not source.cuda_graph_safe:
            return None
        if contrast not in self._runners:

            def work(queries: Tensor, ids: Tensor, similarities: Tensor) -> Tensor:
                return expand_once(source, queries, Candidates(ids, similarities), contrast)

            self._runners[contrast] = CudaGraphRunner(work)
        return self._runners[contrast]

    def ids_of(self, keys: Array) -> Array:
        """See `SearchTarget`."""
        return self.snapshot.ids.take(np.asarray(keys, dtype=np.int64))

    def with_tensor_ids(self) -> bool:
        """See `SearchTarget`."""
        return self.snapshot.manifest.id_kind == INT

    def places_of(self, keys: Array) -> Array:
        """See `SearchTarget`."""
        return np.asarray(np.cumsum(self.snapshot.alive)[keys] - 1)

    def whole_database(self, k: int, dba: bool) -> WholeDatabase:
        """See `SearchTarget`."""
        width = self.snapshot.manifest.width
        if not dba and k > width:
            raise InputError(
                f"reads {k} neighbours an item, the index keeps {width}; choose smaller settings"
            )
        rows, table = np.flatnonzero(self.snapshot.alive), self._search_table(dba)
        numbers = torch.from_numpy(rows).to(table.device)
        database = table.index_select(0, numbers).cpu().to(torch.float32)
        if dba:
            return WholeDatabase(database, knn(database, k, device=self.device), rows)
        places = np.full(len(self.snapshot.alive) + 1, -1, dtype=np.int64)  # the last one serves id -1
        places[rows] = np.arange(len(rows))
        lists = self.snapshot.graph.take(rows)
        return WholeDatabase(database, NeighborGraph(places[lists.ids], lists.similarities), rows)

    def is_allowed(self, keys: Array, allowed: Any, found: Array) -> Array:
        """See `SearchTarget`."""
        there = keys >= 0
        return there if allowed is None else there & allowed[keys.clip(min=0)]

    @cached_property
    def _runners(self) -> dict[float, CudaGraphRunner]:
        return {}

    @cached_property
    def _approximate(self) -> Approximate | ShardedApproximate | None:
        manifest, content = self.snapshot.manifest, self.snapshot.search_bytes
        search, files = manifest.search, manifest.files
        if search is not None and content is not None:
            return read_approximate(search, content, files[search.file])
        shards = zip(manifest.shard_searches, self.snapshot.shard_search_bytes, strict=True)
        parts = [(part.start, read_approximate(part, content, files[part.file])) for part, content in shards]
        return ShardedApproximate(parts) if parts else None

    def _engine(self, exact: bool | None, allowed: Array | None) -> Engine | None:
        if exact or self.device.type == "cuda" or self._approximate is None:
            return None
        return self._approximate.engine(self.snapshot.vectors, allowed)

    def _search_table(self, dba: bool) -> Any:
        """The table that the second search goes through."""
        database = self.levels.database
        if not dba or database is None:
            return self.levels.query.table(0)
        return database.table(database.depth)

    def _search(
        self,
        table: Any,
        queries: Tensor,
        k: int,
        exclude: Array | None,
        allowed: Array | None,
        engine: Engine | None,
    ) -> Candidates:
        omit = None if exclude is None else torch.from_numpy(exclude)
        return nearest_rows(table, queries, k, device=self.device, allowed=allowed, omit=omit, engine=engine)


def _model(folder: Path) -> Model:
    """A model that was written with the index; whatever is wrong with it came later."""
    try:
        return load_model(folder)
    except StorageError:
        raise
    except InputError as error:
        raise DamagedError(str(error)) from error


def _as_list(values: Any) -> list[Any]:
    if isinstance(values, Tensor | np.ndarray):
        return list(values.tolist()) if values.ndim == 1 else []
    try:
        return [] if isinstance(values, str) else list(values)
    except TypeError:
        raise InputError(f"exclude: expected one id for each query, got {values!r}") from None
