"""Adding and removing items: lists and levels follow, exactly where they are affected."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from gqe.embeddings import as_table
from gqe.errors import InputError
from gqe.index.drafts import MOST_SEGMENTS, Draft
from gqe.index.finding import nearest_rows
from gqe.index.gpu import DeviceCache
from gqe.index.items import INT, check_ids, encode_text
from gqe.index.metadata import concat_metadata, conform_metadata, write_metadata
from gqe.index.refreshing import OpenLevels, mark_stale, renew_backgrounds
from gqe.index.snapshot import Snapshot
from gqe.index.tables import encode_rows, pack_lists
from gqe.neighbors.updating import SPARE_NEIGHBORS, ItemChanges, NeighborLists, first_changes, update_lists
from gqe.progress import Report
from gqe.staleness import statistics_outdated

Array = np.ndarray[Any, Any]
_BLOCK = 4096


class NewItems(NamedTuple):
    """Items to add: checked vectors (m, d), ids (m,) and metadata, a pyarrow Table or None."""

    vectors: torch.Tensor
    ids: Array
    metadata: Any


def check_new_items(before: Snapshot, vectors: Any, ids: Any, metadata: Any, replaced: Array) -> NewItems:
    """Items to add, checked against the version before; rows `replaced` are removed with the same change."""
    manifest = before.manifest
    if vectors is None:
        return NewItems(torch.empty((0, manifest.dimension)), np.empty(0, np.int64), None)
    table = as_table(vectors, "vectors", dim=manifest.dimension).cpu()
    if ids is not None:
        names = check_ids(ids, len(table), manifest.id_kind)
    elif manifest.id_kind == INT:
        names = _next_ids(before, len(table))
    else:
        raise InputError("ids: this index names its items by texts; give one for each vector")
    staying = before.alive.copy()
    staying[replaced] = False
    there = np.flatnonzero(before.ids.look_up(names, staying) >= 0)
    if len(there):
        shown = repr(names[there[0]]) if names.dtype == object else names[there[0]]
        raise InputError(f"ids: {shown} (row {there[0]}) is in the index already; use update to replace it")
    if before.metadata is None and metadata is not None:
        raise InputError("metadata: this index was built without; leave it out or build it anew")
    rows = None
    if before.metadata is not None:
        rows = conform_metadata(metadata, len(table), before.metadata.schema)
    return NewItems(table, names, rows)


def _next_ids(before: Snapshot, count: int) -> Array:
    """Numbers that follow the largest that ever was; the smallest free ones where they have run out."""
    first = before.manifest.next_id
    if first + count <= 2**63:
        return np.arange(first, first + count, dtype=np.uint64).astype(np.int64)
    taken = before.ids.take(np.flatnonzero(before.alive))
    return np.setdiff1d(np.arange(len(taken) + count), taken)[:count]


def change(
    draft: Draft,
    before: Snapshot,
    removed: Array,
    new: NewItems,
    open_levels: OpenLevels,
    device: torch.device,
    progress: Report | None,
) -> None:
    """Put removals and new items into a draft: embeddings, lists, and which levels they put out of date.

    Args:
        draft: the next version.
        before: the version it starts from.
        removed: rows to remove.
        new: items to add.
        open_levels: gives the levels of an opened version.
        device: where to search.
        progress: called with rows done, rows in all, and what is being done.
    """
    # The new version takes these over, though in other files.
    draft.check(filter(None, [*before.manifest.stale.values(), before.manifest.removed]))
    levels = {name: segments for name, segments in draft.manifest.tables.items() if name in before.levels}
    # Levels must not be read until the lists are right.
    draft.set(tables={k: v for k, v in draft.manifest.tables.items() if k not in levels}, stale={})
    _write_items(draft, before, removed, new)
    changed_at = _write_lists(draft, before, device, progress)
    draft.set(tables=draft.manifest.tables | levels)
    sources = open_levels(draft.snapshot()).by_prefix().values()
    if any(source.needs_context for source in sources) and statistics_outdated(
        draft.manifest.items, draft.manifest.background_items
    ):
        renew_backgrounds(draft, open_levels)
    else:
        mark_stale(draft, before, changed_at, open_levels)


def _write_items(draft: Draft, before: Snapshot, removed: Array, new: NewItems) -> None:
    manifest, m = before.manifest, len(new.vectors)
    if m:
        draft.append("vectors", before.vectors.rows, encode_rows(new.vectors, manifest.storage[0]))
        if manifest.id_kind == INT:
            draft.append("ids", before.rows_of("ids"), new.ids)
            draft.set(next_id=max(manifest.next_id, int(new.ids.max()) + 1))
        else:
            text, ends = encode_text(new.ids)
            last = sum(part.count for part in manifest.tables["id-text"])
            draft.append("id-text", before.rows_of("id-text"), text)
            draft.append("ids", before.rows_of("ids"), ends + last)
        if new.metadata is not None:
            _write_metadata(draft, before, new.metadata)
    alive = before.alive.copy()
    alive[removed] = False
    gone = np.flatnonzero(~alive)
    draft.set(
        rows=manifest.rows + m,
        items=int(alive.sum()) + m,
        removed=draft.array("removed", gone) if len(gone) else None,
    )


def _write_metadata(draft: Draft, before: Snapshot, rows: Any) -> None:
    """One more file, or all in one when there are many."""
    earlier = before.manifest.metadata
    if len(earlier) >= MOST_SEGMENTS:
        draft.check(earlier)
        earlier, rows = [], concat_metadata(before.metadata, rows)
    name = draft.other(draft.file("metadata", "parquet"), lambda path: write_metadata(path, rows))
    draft.set(metadata=[*earlier, name])


def _write_lists(draft: Draft, before: Snapshot, device: torch.device, progress: Report | None) -> Array:
    """Write all lists that change; returns (rows,) the first place of each that did."""
    now = draft.snapshot()
    width, old_rows = before.manifest.width, before.manifest.rows
    old = np.flatnonzero(now.alive[:old_rows])
    new = np.flatnonzero(now.alive[old_rows:]) + old_rows
    removed = ~now.alive
    new_vectors = now.vectors.index_select(0, torch.from_numpy(new)).to(torch.float32)
    changes = ItemChanges(removed, new, new_vectors, len(old))
    min_neighbors = min(width - SPARE_NEIGHBORS, max(0, len(old) + len(new) - 1))
    changed_at = np.full(len(now.alive), width)
    numbers, ids, similarities, again = [], [], [], [new]
    if len(new) > before.manifest.items:
        again.insert(0, old)  # nearly everything is new: search for all
        old = old[:0]
    for start in range(0, len(old), _BLOCK):
        rows = old[start : start + _BLOCK]
        lists = before.graph.take(rows)
        vectors = now.vectors.index_select(0, torch.from_numpy(rows)).to(torch.float32) if len(new) else None
        updated = update_lists(lists, vectors, changes, min_neighbors)
        changed = (updated.changed_at < width) & ~updated.incomplete
        numbers.append(rows[changed])
        ids.append(updated.lists.ids[changed])
        similarities.append(updated.lists.similarities[changed])
        changed_at[rows[changed]] = updated.changed_at[changed]
        again.append(rows[updated.incomplete])
        if progress is not None:
            progress(start + len(rows), len(old), "neighbours")
    searched = np.sort(np.concatenate(again)).astype(np.int64)
    allowed = None if now.all_alive else now.alive
    cache = DeviceCache(device)
    for start in range(0, len(searched), _BLOCK):
        rows = searched[start : start + _BLOCK]
        omit = torch.from_numpy(rows)
        queries = now.vectors.index_select(0, omit)
        table = cache.table("vectors", now.vectors)
        found = nearest_rows(table, queries, width, device=device, allowed=allowed, omit=omit)
        lists = NeighborLists(found.ids.cpu().numpy().astype(np.int32), found.similarities.cpu().numpy())
        known = rows < old_rows
        changed_at[rows[~known]] = 0
        old_ids = before.graph.take(rows[known]).ids
        changed_at[rows[known]] = first_changes(old_ids, lists.ids[known], removed)
        numbers.append(rows)
        ids.append(lists.ids)
        similarities.append(lists.similarities)
        if progress is not None:
            progress(start + len(rows), len(searched), "new neighbours")
    if numbers:
        lists = NeighborLists(np.concatenate(ids), np.concatenate(similarities))
        draft.patch("graph", before.graph.rows, np.concatenate(numbers), pack_lists(lists))
    return changed_at
