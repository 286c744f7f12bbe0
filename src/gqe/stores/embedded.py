"""The index directory as a store: it carries its own lists and levels."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from gqe.errors import InputError
from gqe.filters import Conditions, filter_mask
from gqe.index import Index
from gqe.index.snapshot import Snapshot
from gqe.progress import Progress
from gqe.results import SearchResult
from gqe.stores.address import Address
from gqe.stores.attachment import READY, Attachment
from gqe.stores.base import Array, Batch, Records, Store, no_ids, vector_checksums


class EmbeddedStore(Store):
    """An index on this machine.

    Args:
        address: `index:/folder`, or the folder.
    """

    def __init__(self, address: Address) -> None:
        self.address = address.display
        self.index = Index.open(address.path, device="cpu")
        if self.index.augmented:
            raise InputError(
                f"{self.address}: searches of an index with dba go to its augmented database; open it by"
                " gqe.Index.open"
            )
        self.dimension = self.index.dimension
        self.id_kind = self.index.id_kind

    def count(self) -> int:
        """See `Store.count`."""
        return len(self.index)

    def search(self, vectors: Array, k: int, *, filter: Conditions = (), exact: bool = False) -> SearchResult:
        """See `Store.search`."""
        index = copy.copy(self.index)  # stays at its version while another thread changes it
        count = min(k, len(index))
        scores = np.full((len(vectors), k), -np.inf, dtype=np.float32)
        ids = no_ids((len(vectors), k), self.id_kind)
        if count and len(vectors):
            chosen = partial(filter_mask, filter) if filter else None
            found = index.search(vectors, count, expand=False, filter=chosen, exact=exact)
            scores[:, :count], ids[:, :count] = found.scores, found.ids
        return SearchResult(scores, ids)

    def fetch(self, ids: Array) -> Batch:
        """See `Store.fetch`."""
        snapshot = self.index._checked_snapshot()
        names, rows = _find(snapshot, ids)
        return Batch(names, _vectors(snapshot, rows))

    def fields(self, ids: Array) -> dict[Any, dict[str, Any]]:
        """See `Store.fields`."""
        index = copy.copy(self.index)
        names, _ = _find(index._checked_snapshot(), ids)
        return dict(zip(names.tolist(), index.get(names), strict=True))

    def existing_ids(self, ids: Array) -> Array:
        """See `Store.existing`."""
        return _find(self.index._checked_snapshot(), ids)[0]

    def names(self, size: int = 10_000) -> Iterator[Array]:
        """See `Store.names`."""
        ids = self.index.ids
        return (ids[start : start + size] for start in range(0, len(ids), size))

    def iterate(self, after: Any = None, size: int | None = None) -> Iterator[Batch]:
        """See `Store.iterate`."""
        snapshot = self.index._checked_snapshot()
        rows = np.flatnonzero(snapshot.alive)
        names = snapshot.ids.take(rows)
        if after is not None:
            last = np.flatnonzero(names == after)
            if not len(last):
                raise InputError(f"{self.address}: no item {after!r} to go on from; start anew")
            rows, names = rows[last[0] + 1 :], names[last[0] + 1 :]
        step = size or self.batch
        for start in range(0, len(rows), step):
            snapshot.check_sizes()
            yield Batch(names[start : start + step], _vectors(snapshot, rows[start : start + step]))

    def upsert(self, ids: Array, vectors: Array, fields: Mapping[str, Sequence[Any]] | None = None) -> None:
        """See `Store.upsert`."""
        there = set(self.existing_ids(ids).tolist())
        known = np.array([name in there for name in ids.tolist()], dtype=bool)
        columns = {name: np.asarray(values) for name, values in (fields or {}).items()}
        for chosen, change in ((known, self.index.update), (~known, self._add)):
            if chosen.any():
                metadata = {name: values[chosen] for name, values in columns.items()} or None
                change(vectors[chosen], ids[chosen], metadata=metadata)

    def _add(self, vectors: Array, ids: Array, *, metadata: Any) -> None:
        self.index.add(vectors, ids=ids, metadata=metadata)

    def insert(self, ids: Array, vectors: Array, fields: Mapping[str, Sequence[Any]] | None = None) -> None:
        """See `Store.insert`."""
        self.index.add(vectors, ids=ids, metadata=dict(fields) if fields else None)

    def delete(self, ids: Array) -> Array:
        """See `Store.delete`."""
        there = self.existing_ids(ids)
        if len(there):
            self.index.remove(there)
        return there

    def attachment(self) -> Attachment:
        """See `Store.attachment`."""
        manifest, expander = self.index._snapshot.manifest, self.index.expander
        backgrounds = tuple(tuple(pair) for pair in manifest.backgrounds.get("level", []))
        quantiles = tuple(tuple(row) for row in manifest.quantiles or [])
        exact = manifest.recall is None
        return Attachment(
            expander,
            self.dimension,
            manifest.width,
            exact,
            READY,
            None,
            manifest.background_items,
            backgrounds,
            quantiles,
            "",
            True,
        )

    def stale_rows(self) -> int:
        """How many rows have levels that are out of date."""
        marks = [marks for marks in self.index._checked_snapshot().stale.values() if marks is not None]
        return max((int(np.sum(mark)) for mark in marks), default=0)

    def count_unsynced(self) -> int:
        """See `Store.count_unsynced`: an index has seen all its changes."""
        return 0

    def refresh(self, progress: Progress = False) -> int:
        """Compute what is stale; returns how many rows that were."""
        count = self.stale_rows()
        self.index.refresh(progress=progress)
        return count

    def read(self, ids: Array, *, levels: bool = True) -> Records:
        """See `Store.read`."""
        index = copy.copy(self.index)
        snapshot, source = index._checked_snapshot(), index._target.levels.query
        names, rows = _find(snapshot, ids)
        lists = snapshot.graph.take(rows)
        depth = len(self.index.expander.stack) if levels else 1
        numbers = torch.from_numpy(rows)
        stored = np.empty((len(rows), depth - 1, self.dimension), dtype=np.float32)
        for i in range(1, depth):
            stored[:, i - 1] = source.rows(i, numbers).to(torch.float32).cpu().numpy()
        valid = np.full(len(rows), depth - 1)
        near = snapshot.ids.take(lists.ids.astype(np.int64))
        return Records(
            names, vector_checksums(_vectors(snapshot, rows)), valid, near, lists.similarities, stored
        )

    def scan(self, *, below: int | None = None, levels: bool = False) -> Iterator[Records]:
        """See `Store.scan`."""
        for batch in self.iterate() if below is None else ():
            yield self.read(batch.ids, levels=levels)

    def has_records(self) -> bool:
        """See `Store.has_records`."""
        return True

    def read_about(self, keys: Sequence[str] | None = None, *, kind: str = "") -> dict[str, str]:
        """See `Store.read_about`."""
        return {}

    def _refuse(self, *_: Any, **__: Any) -> Any:
        """For all that writes an attachment."""
        raise InputError(
            f"{self.address}: an index keeps the levels it was built with; build another with gqe index build"
        )

    prepare = prepare_about = erase_about = detach = write_about = write = delete_records = _refuse

    def close(self) -> None:
        """Nothing is held open but mapped files."""


def _find(snapshot: Snapshot, ids: Array) -> tuple[Array, Array]:
    """Of some ids those that are there, and where they stand."""
    rows = snapshot.ids.look_up(ids, snapshot.alive)
    return ids[rows >= 0], rows[rows >= 0]


def _vectors(snapshot: Snapshot, rows: Array) -> Array:
    found = snapshot.vectors.index_select(0, torch.from_numpy(rows))
    return np.asarray(found.to(torch.float32).numpy())
