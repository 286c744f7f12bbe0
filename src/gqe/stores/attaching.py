"""Writing neighbour lists and levels beside the vectors of a store, batch by batch.

Every batch is written whole and then noted, so a killed process loses at most one batch, and the next one
continues from there: lists first (a cursor says how far), then level by level (each record says how many
levels it has).
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from gqe.aggregators.context import list_profiles
from gqe.errors import InputError
from gqe.models import Expander
from gqe.progress import Report
from gqe.results import SearchResult, remove_excluded
from gqe.statistics import ListSample, background, sample_places
from gqe.stores.attachment import ANEW, LEVELS, LISTS, READY, Attachment, new_attachment, state_text
from gqe.stores.base import Array, Batch, Records, Store, as_ids, unit_rows
from gqe.stores.leases import LEASE_PREFIX, RESERVATION_PREFIX, Lease, hold_lease
from gqe.stores.partial import next_level

log = logging.getLogger(__name__)


class AttachJob:
    """An attachment that is being written.

    Args:
        store: where.
        attachment: as it stands.
        device: where aggregators run.
        progress: called with items done, items in all, and what is being done.
        lease: excludes other writers; renewed with every batch.
    """

    def __init__(
        self,
        store: Store,
        attachment: Attachment,
        device: torch.device,
        progress: Report | None = None,
        lease: Lease | None = None,
    ) -> None:
        self.store = store
        self.attachment = attachment
        self.device = device
        self.progress = progress
        self.lease = lease

    def note(self, **changes: Any) -> None:
        """Write down how far the work is."""
        self.attachment = self.attachment.replace(**changes)
        self.store.write_about(state_text(self.attachment))

    def show(self, done: int, total: int, what: str) -> None:
        """Report the progress, and renew the lease."""
        if self.lease is not None:
            self.lease.renew()
        if self.progress is not None:
            self.progress(min(done, total), total, what)

    def finish(self) -> Attachment:
        """Do what is left of a first attachment, or of the levels after a change."""
        if self.attachment.stage == LISTS:
            self._write_lists()
            self.note(stage=LEVELS, cursor=None, backgrounds=(), quantiles=(), items=self.store.count())
        if self.attachment.stage == ANEW:
            self._invalidate_levels()
            self.note(stage=LEVELS, backgrounds=(), quantiles=(), items=self.store.count())
        if self.attachment.stage == LEVELS:
            self._write_levels()
            self.note(stage=READY, complete=True)
        return self.attachment

    def lists_of(self, batch: Batch) -> SearchResult:
        """The neighbour lists (p, width) of some items, none its own neighbour."""
        width = self.attachment.width
        vectors = unit_rows(self.store, batch)
        found = self.store.search(vectors, width + 1, exact=self.attachment.exact)
        return remove_excluded(found, batch.ids, width)

    def fresh_records(self, batch: Batch) -> Records:
        """Records of items with their lists, and no levels yet."""
        lists, count = self.lists_of(batch), len(batch.ids)
        valid = np.zeros(count, dtype=np.int64)
        levels = np.zeros((count, self.attachment.depth - 1, self.store.dimension), dtype=np.float32)
        return Records(batch.ids, self.store.checksums(batch.vectors), valid, lists.ids, lists.scores, levels)

    def _write_lists(self) -> None:
        store, total, done = self.store, self.store.count(), 0
        for batch in store.iterate(self.attachment.cursor):
            store.write(self.fresh_records(batch))
            done += len(batch.ids)
            self.note(cursor=batch.ids[-1:].tolist()[0])
            self.show(done, total, "neighbours")

    def _invalidate_levels(self) -> None:
        for records in self.store.scan(levels=True):
            some = records.at(records.valid > 0)
            if len(some.ids):
                self.store.write(some._replace(valid=np.zeros(len(some.ids), dtype=np.int64)))

    def _write_levels(self) -> None:
        depth, total = self.attachment.depth, self.store.count()
        self._measure(0)
        for i in range(1, depth):
            done = 0
            for records in self.store.scan(below=i, levels=True):
                self.store.write(next_level(self.store, self.attachment, records, i, self.device))
                done += len(records.ids)
                self.show(done, max(done, total), f"level {i}")
            self._measure(i)

    def _measure(self, i: int) -> None:
        """What is usual at a level, measured once on a sample of items that is always the same one."""
        known = self.attachment.backgrounds
        if not self.attachment.needs_context or len(known) > i:
            return
        sample = ListSample.of(*self._profiles(self._at(sample_places(self.store.count()))))
        if i == 0:
            rows = unit_rows(self.store, self.store.fetch(sample.items))
            self.attachment = self.attachment.replace(quantiles=tuple(map(tuple, sample.quantiles.tolist())))
        else:
            some = self.store.read(sample.items)
            # Without any record nobody says how many levels there are.
            rows = some.levels[:, i - 1] if len(some.ids) else np.empty((0, self.store.dimension))
        measured = background(torch.from_numpy(np.ascontiguousarray(rows)))
        self.note(backgrounds=(*known[:i], tuple(measured.tolist())))

    def _profiles(self, ids: Array) -> tuple[Array, torch.Tensor]:
        """Those of the items that have a record, and the profiles of their lists."""
        size = self.store.batch
        parts = [
            self.store.read(ids[start : start + size], levels=False) for start in range(0, len(ids), size)
        ]
        found = [part.ids for part in parts] or [ids]
        lists = [part.similarities for part in parts] or [np.empty((0, self.attachment.width), np.float32)]
        return np.concatenate(found), list_profiles(torch.from_numpy(np.concatenate(lists)))

    def _at(self, places: Array) -> Array:
        """Ids of the items at these places of the store's order."""
        wanted, start, found = np.sort(places), 0, []
        for names in self.store.names():
            first, last = np.searchsorted(wanted, [start, start + len(names)])
            found.extend(names[wanted[first:last] - start].tolist())
            start += len(names)
        return as_ids(found, self.store.id_kind)


def attach(
    store: Store,
    expander: Expander,
    *,
    exact: bool,
    anew: bool,
    device: torch.device,
    progress: Report | None,
) -> Attachment:
    """Attach the levels of an expander, or go on with that where it was interrupted."""
    fresh, texts = new_attachment(expander, store.dimension, exact)
    with hold_lease(store) as lease:
        before = None if anew else store.attachment()
        if before is not None and before.model != fresh.model:
            raise InputError(
                f"{store.address}: {before.expander.name} is attached, with other weights or settings; use"
                f" --anew to replace it by {expander.name}"
            )
        if before is None:
            # From here on nothing is attached, until the state is written.
            store.erase_about(
                [key for key in store.read_about() if not key.startswith((LEASE_PREFIX, RESERVATION_PREFIX))]
            )
            store.prepare(fresh.width, len(expander.stack) - 1)
            store.write_about(texts)
            work = AttachJob(store, fresh, device, progress, lease)
            work.note()
        else:
            log.info("%s: going on with an attachment at stage %s", store.address, before.stage)
            work = AttachJob(store, before, device, progress, lease)
        return work.finish()
