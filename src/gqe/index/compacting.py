"""Rewriting an index without removed rows and outdated segments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gqe.index import approximate
from gqe.index.drafts import Draft
from gqe.index.items import INT, encoded_text
from gqe.index.lists import packed
from gqe.index.manifest import Search, Segment
from gqe.index.metadata import write_metadata
from gqe.index.snapshot import Snapshot, row_type_of
from gqe.neighbors.updating import Lists

Array = np.ndarray[Any, Any]
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
