"""Bringing attached levels up to date with items that were added, changed or deleted since.

A record carries the checksum of the vector it was made from; that is how changes are found. Whatever is
interrupted is found again by the next run: the records of new items are written, and those of deleted ones
removed, only when all other lists are right, and `valid` tells of every record which levels are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gqe.stores.attaching import Work
from gqe.stores.attachment import ANEW, CHANGES, LEVELS, LISTS, READY, Attachment
from gqe.stores.base import Array, Batch, Found, Records, Store, as_ids, no_ids, present, unit_rows


class Synced(NamedTuple):
    """What a sync found and did: numbers of items added, changed, deleted, and of lists that changed."""

    added: int
    changed: int
    deleted: int
    lists: int


class _Changes(NamedTuple):
    new: Batch  # added or changed
    added: int
    deleted: Array


def sync(work: Work) -> Synced:
    """Enter all changes and compute what they made stale; finishes what was interrupted, too."""
    if work.attachment.stage in (LISTS, ANEW):
        work.finish()
    store = work.store
    changes = _changes(work)
    count, known = store.count(), work.attachment.items
    if not len(changes.new.ids) and not len(changes.deleted) and work.attachment.stage in (READY, LEVELS):
        work.finish()
        return Synced(0, 0, 0, 0)
    work.note(stage=CHANGES)
    lists = 0
    if 2 * len(changes.new.ids) > count:  # nearly everything is new
        work.note(stage=LISTS, cursor=None, complete=False)
        lists = count
    else:
        lists = _enter(work, changes)
        _mark_listeners(work)
        # As an index does: the space is measured anew when the number of items has doubled or halved.
        old = work.attachment.needs_context and count != known and (count >= 2 * known or 2 * count <= known)
        work.note(stage=ANEW if old else LEVELS)
    store.forget(changes.deleted)
    work.finish()
    return Synced(changes.added, len(changes.new.ids) - changes.added, len(changes.deleted), lists)


def stale(store: Store, attachment: Attachment) -> int:
    """How many records have levels that are out of date."""
    return sum(len(records.ids) for records in store.scan(below=attachment.depth - 1))


def _changes(work: Work) -> _Changes:
    """What differs from the records."""
    store, kind = work.store, work.store.id_kind
    ids, added, done, total = [no_ids((0,), kind)], 0, 0, work.store.count()
    for some in store.different():
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


def _enter(work: Work, changes: _Changes) -> int:
    """Bring all lists up to date; returns how many changed."""
    store = work.store
    new = changes.new._replace(vectors=unit_rows(store, changes.new))
    touched = set(new.ids.tolist()) | set(changes.deleted.tolist())
    items = sum(len(records.ids) for records in store.scan())
    needed = min(work.attachment.graph_k, max(0, store.count() - 1))
    changed, done = 0, 0
    for records in store.scan():
        mine = np.array([name not in touched for name in records.ids.tolist()], dtype=bool)
        some = records.at(mine)
        rows, lists = _updated(store, some, new, touched, items)
        if len(rows):
            full = store.read(some.ids[rows])
            short = present(lists.ids).sum(axis=1) < needed
            if short.any():
                again = work.lists_of(store.fetch(full.ids[short]))
                lists.ids[short], lists.scores[short] = again.ids, again.scores
            graph_k = work.attachment.graph_k
            read = (full.neighbors != lists.ids)[:, :graph_k].any(axis=1)  # the rest is only kept in reserve
            read |= np.array([bool(touched.intersection(row)) for row in lists.ids[:, :graph_k].tolist()])
            valid = np.where(read, np.minimum(full.valid, work.list_changed), full.valid)
            store.write(full._replace(neighbors=lists.ids, similarities=lists.scores, valid=valid))
        changed += len(rows)
        done += len(records.ids)
        work.show(done, items, "neighbours")
    for start in range(0, len(new.ids), store.batch):
        part = slice(start, start + store.batch)
        store.write(work.fresh_records(Batch(changes.new.ids[part], changes.new.vectors[part])))
    return changed + len(new.ids)


def _updated(
    store: Store, records: Records, new: Batch, touched: set[int | str], items: int
) -> tuple[Array, Found]:
    """Lists without what is gone and with what is new, where that makes a difference.

    What stands in a list is the beginning of the true one, so a new item is entered only where it is nearer
    than the last one known, or if the list held all other items.

    Returns:
        (p,) places of the records whose lists changed, and these lists.
    """
    width = records.neighbors.shape[1]
    there = present(records.neighbors)
    lengths = there.sum(axis=1)
    last = np.take_along_axis(records.similarities, np.maximum(lengths - 1, 0)[:, None], 1)[:, 0]
    last = np.where(lengths >= items - 1, -np.inf, np.where(lengths == 0, np.inf, last))
    flat: Iterable[int | str | None] = records.neighbors.reshape(-1).tolist()
    struck = np.array([name in touched for name in flat], dtype=bool).reshape(there.shape)
    nearness = np.full((len(records.ids), len(new.ids)), -np.inf, dtype=np.float32)
    if len(new.ids):  # else no vector has to be read
        own = store.fetch(records.ids)
        place = {name: at for at, name in enumerate(records.ids.tolist())}
        nearness[[place[name] for name in own.ids.tolist()]] = unit_rows(store, own) @ new.vectors.T
    near = nearness > last[:, None]
    rows = np.flatnonzero(struck.any(axis=1) | near.any(axis=1))
    ids, scores = no_ids((len(rows), width), store.id_kind), np.full((len(rows), width), -np.inf, np.float32)
    for at, row in enumerate(rows.tolist()):
        kept = there[row] & ~struck[row]
        pairs = [
            *zip(
                records.neighbors[row, kept].tolist(), records.similarities[row, kept].tolist(), strict=True
            ),
            *zip(new.ids[near[row]].tolist(), nearness[row, near[row]].tolist(), strict=True),
        ]
        best = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:width]
        if best:
            ids[at, : len(best)] = as_ids([name for name, _ in best], store.id_kind)
            scores[at, : len(best)] = [score for _, score in best]
    return rows, Found(scores, ids)


def _mark_listeners(work: Work) -> None:
    """Lower `valid` of every record that listens to one whose lower levels are out of date."""
    store, depth = work.store, work.attachment.depth
    k = max(level.k for level in work.attachment.expander.stack)
    for _ in range(depth - 1):
        low = {
            name: valid
            for records in store.scan(below=depth - 2)
            for name, valid in zip(records.ids.tolist(), records.valid.tolist(), strict=True)
        }
        any_lowered = False
        for records in store.scan() if low else ():
            heard = [
                min((low[name] + 1 for name in row if name in low), default=depth)
                for row in records.neighbors[:, :k].tolist()
            ]
            now = np.minimum(records.valid, heard)
            lowered = now < records.valid
            if lowered.any():
                any_lowered = True
                full = store.read(records.ids[lowered])
                store.write(full._replace(valid=now[lowered]))
        if not any_lowered:
            break
