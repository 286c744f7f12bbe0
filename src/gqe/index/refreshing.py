"""Bringing stored levels and statistics up to date, and rewriting an index without removed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from gqe.expansion import compute_level
from gqe.index import approximate
from gqe.index.drafts import Draft
from gqe.index.items import INT, encode_text
from gqe.index.levels import StoredLevels, StoredSource, valid_after
from gqe.index.manifest import FaissRecord, Segment
from gqe.index.metadata import write_metadata
from gqe.index.snapshot import Snapshot, level_names, row_dtype_of
from gqe.index.tables import encode_rows, pack_lists
from gqe.neighbors.updating import NeighborLists
from gqe.progress import Report
from gqe.statistics import SpaceStatistics

Array = np.ndarray[Any, Any]
OpenLevels = Callable[[Snapshot], StoredLevels]
_BLOCK = 4096
# Where more rows than this share are out of date, a level is written as a whole.
_MOST = 0.25


def mark_stale(draft: Draft, before: Snapshot, changed_at: Array, open_levels: OpenLevels) -> None:
    """Mark the rows of all levels that a change of neighbour lists has put out of date.

    Args:
        draft: with the new embeddings and lists; its levels are those of `before`.
        before: the version before the change.
        changed_at: (rows,) see `valid_after`.
        open_levels: gives the levels of an opened version.
    """
    snapshot = draft.snapshot()
    stale = {}
    for prefix, source in open_levels(snapshot).by_prefix().items():
        names = [name for name in level_names(draft.manifest) if name.startswith(f"{prefix}-")]
        valid = valid_after(source, len(names), changed_at)
        for level, name in enumerate(names, 1):
            marks = valid < level
            earlier = before.stale[name]
            if earlier is not None:
                marks[: len(earlier)] |= earlier
            stale[name] = marks & snapshot.alive
    _set_stale(draft, stale)


def renew_backgrounds(draft: Draft, open_levels: OpenLevels) -> None:
    """Measure the statistics again, which puts every stored level out of date."""
    snapshot = draft.snapshot()
    _set_stale(draft, {name: snapshot.alive.copy() for name in level_names(draft.manifest)})
    backgrounds, quantiles = {}, list[list[float]]()
    for prefix, source in open_levels(draft.snapshot()).by_prefix().items():
        if source.needs_context:
            source.statistics = SpaceStatistics()
            source.statistics.measure(min(source.stored_levels, source.depth - 1), source)
            quantiles, backgrounds[prefix] = source.statistics.to_config()
    draft.set(backgrounds=backgrounds, quantiles=quantiles, background_items=draft.manifest.items)


def refresh(draft: Draft, open_levels: OpenLevels, progress: Report | None) -> None:
    """Compute all rows of all levels that are out of date, lower levels first."""
    if draft.manifest.stale:
        _check(draft)
    for name in level_names(draft.manifest):
        snapshot = draft.snapshot()
        stale = snapshot.stale[name]
        if stale is None:
            continue
        prefix, _, i = name.rpartition("-")
        source = open_levels(snapshot).by_prefix()[prefix]
        n, numbers = draft.manifest.rows, np.flatnonzero(stale)
        if len(numbers) > _MOST * n:
            rows = _all_rows(source, snapshot, name, progress)
            draft.put(name, [Segment(draft.stream(name, n, rows), n)])
        elif len(numbers):
            storage = snapshot.levels[name].storage
            parts = [torch.from_numpy(numbers[at : at + _BLOCK]) for at in range(0, len(numbers), _BLOCK)]
            data = []
            for part in parts:
                data.append(encode_rows(compute_level(source, int(i), part), storage))
                if progress is not None:
                    progress(sum(map(len, data)), len(numbers), name)
            draft.patch(name, snapshot.rows_of(name), numbers, np.concatenate(data))
        draft.set(stale={other: file for other, file in draft.manifest.stale.items() if other != name})


def _check(draft: Draft) -> None:
    """Refuse damaged files before levels are computed from them, which would hide the damage."""
    manifest = draft.manifest
    parts = [part for name, parts in manifest.tables.items() if not name.startswith("id") for part in parts]
    names = {name for part in parts for name in (part.file, part.rows) if name is not None}
    draft.check([*sorted(names), *manifest.stale.values()])


def _all_rows(
    source: StoredSource,
    snapshot: Snapshot,
    name: str,
    progress: Report | None,
) -> Iterator[Array]:
    """A level from the first row to the last: stored or computed, 0 where removed."""
    dtype, shape = row_dtype_of(snapshot.manifest, name)
    level, n = int(name.rpartition("-")[2]), snapshot.manifest.rows
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        block = np.zeros((stop - start, *shape), dtype)
        items = np.flatnonzero(snapshot.alive[start:stop])
        rows = source.rows(level, torch.from_numpy(items + start))
        block[items] = encode_rows(rows, snapshot.levels[name].storage)
        if progress is not None:
            progress(stop, n, name)
        yield block


def _set_stale(draft: Draft, stale: dict[str, Array]) -> None:
    files = {name: draft.array(f"stale-{name}", marks) for name, marks in stale.items() if marks.any()}
    draft.set(stale=files)


def check_copied(draft: Draft) -> None:
    """Refuse damaged files before they are copied; a faiss index is built again."""
    manifest = draft.manifest
    search = {part.file for part in (manifest.search, *manifest.shard_searches) if part is not None}
    draft.check(name for name in manifest.files if name not in search)


def compact(draft: Draft, before: Snapshot) -> None:
    """Put a rewritten version into a draft; no level of `before` may be out of date."""
    items = np.flatnonzero(before.alive)
    for table in before.manifest.tables:
        if table in ("ids", "id-text"):
            continue
        rows = _renumber_lists(before, items) if table == "graph" else _copy_rows(before, table, items)
        draft.put(table, [Segment(draft.stream(table, len(items), rows), len(items))])
    ids = before.ids.take(items)
    if before.manifest.id_kind == INT:
        draft.put("ids", [Segment(draft.array("ids", ids), len(ids))])
    else:
        text, ends = encode_text(ids)
        draft.put("ids", [Segment(draft.array("ids", ends), len(ends))])
        draft.put("id-text", [Segment(draft.array("id-text", text), len(text))])
    if before.metadata is not None:
        table = before.metadata.take(items)
        draft.set(
            metadata=[
                draft.other(draft.file("metadata", "parquet"), lambda path: write_metadata(path, table))
            ]
        )
    draft.set(rows=len(items), items=len(items), removed=None, stale={}, search=None, shard_searches=[])
    _make_search(draft)


def _make_search(draft: Draft) -> None:
    manifest = draft.manifest
    if manifest.wanted_recall is None:
        return
    search = approximate.build_approximate(
        draft.snapshot().vectors, manifest.width, manifest.wanted_recall, manifest.search_kind, manifest.seed
    )
    if search is not None:
        name = draft.other(
            draft.file("search", "faiss"), lambda path: approximate.write_faiss(path, search.index)
        )
        draft.set(search=FaissRecord(name, search.kind, search.rows, search.breadth, search.recall))


def _copy_rows(before: Snapshot, table: str, items: Array) -> Iterator[Array]:
    dtype, shape = row_dtype_of(before.manifest, table)
    rows = before.rows_of(table)
    for start in range(0, len(items), _BLOCK):
        content = rows.take(items[start : start + _BLOCK])
        yield content.reshape(-1).view(dtype).reshape(-1, *shape)


def _renumber_lists(before: Snapshot, items: Array) -> Iterator[Array]:
    """The lists with the new numbers of their items; no list names a removed one."""
    number = np.full(len(before.alive) + 1, -1, dtype=np.int32)  # the last one stands for -1, "none"
    number[items] = np.arange(len(items))
    for start in range(0, len(items), _BLOCK):
        lists = before.graph.take(items[start : start + _BLOCK])
        yield pack_lists(NeighborLists(number[lists.ids], lists.similarities))
