"""Bringing stored levels and statistics up to date, and rewriting an index without removed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from gqe.expansion import compute_level
from gqe.index import approximate
from gqe.index.drafts import Draft
from gqe.index.items import INT, encoded_text
from gqe.index.levels import StoredLevels, StoredSource, valid_after
from gqe.index.manifest import Search, Segment
from gqe.index.metadata import write_metadata
from gqe.index.snapshot import Snapshot, level_names, row_type_of
from gqe.index.tables import encoded, packed
from gqe.neighbors.updating import Lists
from gqe.statistics import SpaceStatistics

Array = np.ndarray[Any, Any]
OpenLevels = Callable[[Snapshot], StoredLevels]
_BLOCK = 4096
# Where more rows than this share are out of date, a level is written anew as a whole.
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
    """Measure the backgrounds anew; every stored level is out of date then."""
    snapshot = draft.snapshot()
    _set_stale(draft, {name: snapshot.alive.copy() for name in level_names(draft.manifest)})
    backgrounds, quantiles = {}, list[list[float]]()
    for prefix, source in open_levels(draft.snapshot()).by_prefix().items():
        if source.needs_context:
            source.statistics = SpaceStatistics()
            source.statistics.measure(min(source.stored_levels, source.depth - 1), source)
            quantiles, backgrounds[prefix] = source.statistics.to_config()
    draft.set(backgrounds=backgrounds, landscape=quantiles, background_items=draft.manifest.items)


def refresh(draft: Draft, open_levels: OpenLevels, progress: Callable[[int, int, str], None] | None) -> None:
    """Compute all rows of all levels that are out of date, lower levels first."""
    if draft.manifest.stale:
        _check(draft)
    for name in level_names(draft.manifest):
        snapshot = draft.snapshot()
        marks = snapshot.stale[name]
        if marks is None:
            continue
        prefix, _, i = name.rpartition("-")
        source = open_levels(snapshot).by_prefix()[prefix]
        numbers = np.flatnonzero(np.array(marks))
        n = draft.manifest.rows
        if len(numbers) > _MOST * n:
            rows = _all_rows(source, snapshot, name, progress)
            draft.put(name, [Segment(draft.stream(name, n, rows), n)])
        elif len(numbers):
            data = [
                encoded(part, snapshot.levels[name].storage) for part in _computed(source, int(i), numbers)
            ]
            draft.patch(name, snapshot.rows_of(name), numbers, np.concatenate(data))
        draft.set(stale={other: file for other, file in draft.manifest.stale.items() if other != name})


def _check(draft: Draft) -> None:
    """Refuse damaged files before levels are computed from them: the damage would look sound from then on."""
    manifest = draft.manifest
    parts = [part for name, parts in manifest.tables.items() if not name.startswith("id") for part in parts]
    names = {name for part in parts for name in (part.file, part.rows) if name is not None}
    draft.check([*sorted(names), *manifest.stale.values()])


def _computed(source: StoredSource, i: int, numbers: Array) -> Iterator[torch.Tensor]:
    for start in range(0, len(numbers), _BLOCK):
        yield compute_level(source, i, torch.from_numpy(numbers[start : start + _BLOCK]))


def _all_rows(
    source: StoredSource,
    snapshot: Snapshot,
    name: str,
    progress: Callable[[int, int, str], None] | None,
) -> Iterator[Array]:
    """A level from the first row to the last: stored where right, computed where not, 0 where removed."""
    table, marks = snapshot.levels[name], snapshot.stale[name]
    assert marks is not None
    dtype, shape = row_type_of(snapshot.manifest, name)
    i, n = int(name.rpartition("-")[2]), len(table)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        block = np.zeros((stop - start, *shape), dtype)
        old = np.array(marks[start:stop])
        right = ~old & snapshot.alive[start:stop]
        block[right] = encoded(table[torch.from_numpy(np.flatnonzero(right) + start)], table.storage)
        if old.any():
            block[old] = encoded(
                compute_level(source, i, torch.from_numpy(np.flatnonzero(old) + start)), table.storage
            )
        if progress is not None:
            progress(stop, n, name)
        yield block


def _set_stale(draft: Draft, stale: dict[str, Array]) -> None:
    files = {name: draft.array(f"stale-{name}", marks) for name, marks in stale.items() if marks.any()}
    draft.set(stale=files)


_BLOCK = 4096


def check_copied(draft: Draft) -> None:
    """Refuse damaged files, before what is copied from them looks sound; a faiss index is made anew."""
    manifest = draft.manifest
    search = {part.file for part in (manifest.search, *manifest.shard_searches) if part is not None}
    draft.check(name for name in manifest.files if name not in search)


def compact(draft: Draft, before: Snapshot) -> None:
    """Put a rewritten version into a draft; no level of `before` may be out of date."""
    kept = np.flatnonzero(before.alive)
    for table in before.manifest.tables:
        if table in ("ids", "id-text"):
            continue
        rows = _lists(before, kept) if table == "graph" else _copied(before, table, kept)
        draft.put(table, [Segment(draft.stream(table, len(kept), rows), len(kept))])
    ids = before.ids.take(kept)
    if before.manifest.id_kind == INT:
        draft.put("ids", [Segment(draft.array("ids", ids), len(ids))])
    else:
        text, ends = encoded_text(ids)
        draft.put("ids", [Segment(draft.array("ids", ends), len(ends))])
        draft.put("id-text", [Segment(draft.array("id-text", text), len(text))])
    if before.metadata is not None:
        table = before.metadata.take(kept)
        draft.set(
            metadata=[
                draft.other(draft.file("metadata", "parquet"), lambda path: write_metadata(path, table))
            ]
        )
    draft.set(rows=len(kept), items=len(kept), removed=None, stale={}, search=None, shard_searches=[])
    _make_search(draft)


def _make_search(draft: Draft) -> None:
    manifest = draft.manifest
    if manifest.wanted_recall is None:
        return
    made = approximate.build_approximate(
        draft.snapshot().vectors, manifest.width, manifest.wanted_recall, manifest.search_kind, manifest.seed
    )
    if made is not None:
        name = draft.other(
            draft.file("search", "faiss"), lambda path: approximate.write_faiss(path, made.index)
        )
        draft.set(search=Search(name, made.kind, made.rows, made.breadth, made.recall))


def _copied(before: Snapshot, table: str, kept: Array) -> Iterator[Array]:
    dtype, shape = row_type_of(before.manifest, table)
    rows = before.rows_of(table)
    for start in range(0, len(kept), _BLOCK):
        content = rows.take(kept[start : start + _BLOCK])
        yield content.reshape(-1).view(dtype).reshape(-1, *shape)


def _lists(before: Snapshot, kept: Array) -> Iterator[Array]:
    """The lists with the new numbers of their items; no list names a removed one."""
    number = np.full(len(before.alive) + 1, -1, dtype=np.int32)  # the last one stands for -1, "none"
    number[kept] = np.arange(len(kept))
    for start in range(0, len(kept), _BLOCK):
        lists = before.graph.take(kept[start : start + _BLOCK])
        yield packed(Lists(number[lists.ids], lists.similarities))
