"""One shard of an index in a process of its own: the actor of `gqe.cluster.serving`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gqe.cluster.session import worker_device
from gqe.embeddings import as_tensor
from gqe.errors import InputError
from gqe.index.approximate import read_approximate
from gqe.index.finding import nearest_rows
from gqe.index.gpu import DeviceCache
from gqe.index.shards import even_bounds, shard_bounds, slice_rows
from gqe.index.snapshot import Snapshot, level_names, open_snapshot
from gqe.index.tables import Table
from gqe.neighbors.candidates import Engine

Array = np.ndarray[Any, Any]
VECTORS, AUGMENTED = "vectors", "augmented"


class Shard:
    """Consecutive rows of an index, in the vectors and in the augmented database if there is one.

    Args:
        folder: of the index; mapped, so that only the rows of this shard come into memory.
        version: of the index that all shards must see.
        start: first row.
        stop: end.
        device: where to compute.
        threads: on a CPU.
    """

    def __init__(self, folder: str, version: int, start: int, stop: int, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        snapshot = open_snapshot(Path(folder))
        if snapshot.manifest.state != version:
            raise InputError(f"{folder}: was changed since it is served; start serving it again")
        self.start = start
        self.device = worker_device(device)
        place = DeviceCache(self.device)
        tables = {VECTORS: snapshot.vectors}
        if snapshot.manifest.augmented:
            tables[AUGMENTED] = augmented_table(snapshot)
        parts = {name: slice_rows(table, start, stop) for name, table in tables.items()}
        self.tables = {name: place.table(name, part) for name, part in parts.items()}
        alive = snapshot.alive[start:stop]
        self.alive = None if alive.all() else alive
        self._engine = self._approximate(snapshot, parts[VECTORS], start, stop)

    def nearest(
        self, table: str, queries: Array, k: int, omit: Array | None, allowed: Array | None, exact: bool
    ) -> tuple[Array, Array]:
        """The k nearest rows of this shard.

        Args:
            table: VECTORS or AUGMENTED.
            queries: (m, d) checked float32.
            k: how many.
            omit: (m,) a row of the whole index that each query must not find, -1 for none.
            allowed: (rows of the shard,) those that may be found; None for all.
            exact: whether to compare with every row, though there is a faiss index.

        Returns:
            (m, k) numbers in the whole index, -1 where there are fewer, and similarities.
        """
        rows = self.tables[table]
        mask = self.alive if allowed is None else allowed if self.alive is None else allowed & self.alive
        own = None
        if omit is not None:
            inside = (omit >= self.start) & (omit < self.start + len(rows))
            own = torch.from_numpy(np.where(inside, omit - self.start, -1))
        engine = None if exact or table != VECTORS or allowed is not None else self._engine
        vectors = as_tensor(queries).to(self.device)
        found = nearest_rows(rows, vectors, k, device=self.device, allowed=mask, omit=own, engine=engine)
        ids = found.ids.cpu().to(torch.int64)
        return torch.where(ids >= 0, ids + self.start, -1).numpy(), found.similarities.cpu().numpy()

    def process(self) -> int:
        """Its process; the answer comes as soon as the shard is open."""
        return os.getpid()

    def _approximate(self, snapshot: Snapshot, part: Table, start: int, stop: int) -> Engine | None:
        """The engine of the faiss index over just these rows, if there is one and it serves."""
        manifest = snapshot.manifest
        if self.device.type == "cuda":
            return None
        for search, content in zip(manifest.shard_searches, snapshot.shard_search_bytes, strict=True):
            if search.start == start and search.rows <= stop - start:
                approximate = read_approximate(search, content, manifest.files[search.file])
                return approximate.engine(part, self.alive)
        return None


def augmented_table(snapshot: Snapshot) -> Table:
    """The table that the second search goes through."""
    prefix = "augmented-" if "augmented-1" in snapshot.levels else "level-"
    name = [name for name in level_names(snapshot.manifest) if name.startswith(prefix)][-1]
    stale = snapshot.stale[name]
    if stale is not None and stale.any():
        raise InputError(f"{snapshot.folder}: its levels are out of date; run `gqe index compact` first")
    return snapshot.levels[name]


def bounds_of(snapshot: Snapshot, shards: int | None) -> list[tuple[int, int]]:
    """First row and end of each shard: as it was built, or into this many."""
    manifest = snapshot.manifest
    tables = [snapshot.vectors, *([augmented_table(snapshot)] if manifest.augmented else [])]
    if not all(table.rows.in_order for table in tables):
        raise InputError(
            f"{snapshot.folder}: some of its rows were replaced; run `gqe index compact` before serving it"
        )
    built = shard_bounds(manifest.tables[VECTORS])
    if shards is None and built:
        return [*built[:-1], (built[-1][0], manifest.rows)]  # later rows belong to the last one
    count = min(2 if shards is None else shards, max(1, manifest.rows))
    return even_bounds(manifest.rows, count)
