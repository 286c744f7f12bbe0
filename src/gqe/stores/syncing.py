"""Bringing attached levels up to date with items that were added, changed or deleted since.

A record carries the checksum of the vector it was made from, which shows whether the vector has changed. The
next run completes an interrupted one: records of new items are written, and those of deleted items removed,
only when all other lists are right, and every record says how many of its levels are valid.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from gqe.neighbors.updating import ItemChanges, NeighborLists, first_changes, update_lists
from gqe.staleness import reads_outdated, statistics_outdated, valid_levels
from gqe.stores.attaching import AttachJob
from gqe.stores.attachment import ANEW, CHANGES, LEVELS, LISTS, READY, Attachment
from gqe.stores.base import (
    Array,
    Batch,
    Records,
    Store,
    no_ids,
    numbers_of,
    unique_ids,
    unit_rows,
)


class SyncResult(NamedTuple):
    """What a sync found and did: numbers of items added, changed, deleted, and of lists that changed."""

    added: int
    changed: int
    deleted: int
    lists: int


class _Changes(NamedTuple):
    new: Batch  # added or changed
    added: int
    deleted: Array


class _Update(NamedTuple):
    """What all lists have to follow: new items (unit vectors), ids of all changed ones, how many others."""

    new: Batch
    changed: Array
    unchanged: int
    min_neighbors: int


def sync(work: AttachJob) -> SyncResult:
    """Update lists and levels after all changes, and complete what was interrupted."""
    if work.attachment.stage in (LISTS, ANEW):
        work.finish()
    store = work.store
    changes = _changes(work)
    count = store.count()
    if not len(changes.new.ids) and not len(changes.deleted) and work.attachment.stage in (READY, LEVELS):
        work.finish()
        return SyncResult(0, 0, 0, 0)
    work.note(stage=CHANGES)
    lists = 0
    if 2 * len(changes.new.ids) > count:  # nearly everything is new
        work.note(stage=LISTS, cursor=None, complete=False)
        lists = count
    else:
        lists = _update_lists(work, changes)
        _mark_readers(work)
        old = work.attachment.needs_context and statistics_outdated(count, work.attachment.items)
        work.note(stage=ANEW if old else LEVELS)
    store.delete_records(changes.deleted)
    work.finish()
    return SyncResult(changes.added, len(changes.new.ids) - changes.added, len(changes.deleted), lists)


def stale(store: Store, attachment: Attachment) -> int:
    """How many records have levels that are out of date."""
    return sum(len(records.ids) for records in store.scan(below=attachment.depth - 1))


def _changes(work: AttachJob) -> _Changes:
    """What differs from the records."""
    store, kind = work.store, work.store.id_kind
    ids, added, done, total = [no_ids((0,), kind)], 0, 0, work.store.count()
    for some in store.changed_items():
        ids.append(some.ids)
        added += int(some.fresh.sum())
        done += some.seen
        work.show(done, total, "looking for changes")
    changed = np.concatenate(ids)
    names, vectors = [no_ids((0,), kind)], [np.empty((0, store.dimension), np.float32)]
    for start in range(0, len(changed), store.batch):
        batch = store.fetch(changed[start : start + store.batch])
        names.append(batch.ids)
        vectors.append(batch.vectors)
    gone = np.concatenate([no_ids((0,), kind), *store.orphans()])
    return _Changes(Batch(np.concatenate(names), np.concatenate(vectors)), added, gone)


def _update_lists(work: AttachJob, changes: _Changes) -> int:
    """Bring all lists up to date; returns how many changed."""
    store = work.store
    update = _Update(
        changes.new._replace(vectors=unit_rows(store, changes.new)),
        unique_ids(changes.new.ids, changes.deleted),
        0,
        min(work.attachment.graph_k, max(0, store.count() - 1)),
    )
    items = unchanged = 0
    for records in store.scan():
        items += len(records.ids)
        unchanged += int((numbers_of(update.changed, records.ids) < 0).sum())
    update = update._replace(unchanged=unchanged)
    changed, done = 0, 0
    for records in store.scan():
        changed += _update_batch(work, records.at(numbers_of(update.changed, records.ids) < 0), update)
        done += len(records.ids)
        work.show(done, items, "neighbours")
    for start in range(0, len(update.new.ids), store.batch):
        part = slice(start, start + store.batch)
        store.write(work.fresh_records(Batch(changes.new.ids[part], changes.new.vectors[part])))
    return changed + len(update.new.ids)


def _update_batch(work: AttachJob, records: Records, update: _Update) -> int:
    """Bring the lists of unchanged items up to date; returns how many changed."""
    store, vectors = work.store, None
    if len(update.new.ids) and len(records.ids):  # else no vector has to be read
        batch = store.fetch(records.ids)
        vectors = torch.from_numpy(unit_rows(store, batch))
        records = records.at(numbers_of(records.ids, batch.ids))  # without those deleted in the meantime
    # Rising numbers for rising ids, so that ties go to the lower id.
    ids = unique_ids(records.neighbors, update.changed)
    changes = ItemChanges(
        numbers_of(update.changed, ids) >= 0,
        numbers_of(ids, update.new.ids),
        torch.from_numpy(update.new.vectors),
        update.unchanged,
    )
    lists = NeighborLists(numbers_of(ids, records.neighbors), records.similarities)
    updated = update_lists(lists, vectors, changes, update.min_neighbors)
    rows = np.flatnonzero((updated.changed_at < lists.ids.shape[1]) | updated.incomplete)
    if not len(rows):
        return 0
    full = store.read(records.ids[rows])
    neighbors = np.append(ids, no_ids((1,), store.id_kind))[updated.lists.ids[rows]]
    similarities, changed_at = updated.lists.similarities[rows], updated.changed_at[rows]
    incomplete = updated.incomplete[rows]
    if incomplete.any():
        batch = store.fetch(full.ids[incomplete])
        found, again = work.lists_of(batch), numbers_of(full.ids, batch.ids)
        neighbors[again], similarities[again] = found.ids, found.scores
        before = full.neighbors[again]
        ids = unique_ids(before, found.ids)
        removed = numbers_of(update.changed, ids) >= 0
        changed_at[again] = first_changes(numbers_of(ids, before), numbers_of(ids, found.ids), removed)
    valid = np.minimum(full.valid, valid_levels(work.attachment.expander.stack[:-1], changed_at))
    store.write(full._replace(neighbors=neighbors, similarities=similarities, valid=valid))
    return len(rows)


def _mark_readers(work: AttachJob) -> None:
    """Lower `valid` of every record that reads one whose lower levels are out of date."""
    store = work.store
    for level, aggregator in enumerate(work.attachment.expander.stack[:-1], 1):
        outdated = unique_ids(
            no_ids((0,), store.id_kind), *(records.ids for records in store.scan(below=level - 1))
        )
        for records in store.scan() if len(outdated) else ():
            neighbors = numbers_of(outdated, records.neighbors)
            readers = reads_outdated(aggregator, neighbors, np.ones(len(outdated), dtype=bool))
            readers &= records.valid >= level
            if readers.any():
                full = store.read(records.ids[readers])
                store.write(full._replace(valid=np.minimum(full.valid, level - 1)))
