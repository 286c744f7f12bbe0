"""Looking an index over: damaged files, and numbers about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import DamagedError, InputError
from gqe.index.files import record_of
from gqe.index.manifest import Manifest, read_manifest
from gqe.index.shards import count_built_segments, table_of
from gqe.index.snapshot import Snapshot, level_names, open_snapshot
from gqe.models import Expander


def verify(path: str | Path) -> list[str]:
    """Read every byte of an index and compare checksums.

    Args:
        path: the directory.

    Returns:
        One line for each problem, naming the file; empty if all is well.

    Example:
        >>> verify("/no/such/index")
        ['/no/such/index: no such index; check the name or make one with `gqe index build`']
    """
    folder = Path(path)
    try:
        snapshot = open_snapshot(folder)
    except InputError as error:
        return [str(error), *_find_damage(folder)]
    return _find_damage(folder, snapshot)


def _find_damage(folder: Path, snapshot: Snapshot | None = None) -> list[str]:
    try:
        manifest = snapshot.manifest if snapshot is not None else read_manifest(folder)
    except InputError:
        return []
    problems = []
    for name, expected in manifest.files.items():
        file = folder / name
        try:
            found = record_of(file)
        except OSError as error:
            problems.append(f"{file}: cannot be read: {error.strerror}")
            continue
        except DamagedError as error:
            problems.append(str(error))
            continue
        if found.bytes != expected.bytes:
            problems.append(f"{file}: has {found.bytes} bytes instead of {expected.bytes}")
        elif found.checksum != expected.checksum:
            problems.append(f"{file}: damaged, its checksum does not match")
    if problems and read_manifest(folder).state != manifest.state:
        return verify(folder)  # a writer replaced the version while it was being read
    return problems


def statistics(snapshot: Snapshot, expander: Expander) -> dict[str, Any]:
    """Numbers about an opened index, ready for JSON."""
    manifest = snapshot.manifest
    stale = {}
    for name in level_names(manifest):
        marks = snapshot.stale[name]
        stale[name] = 0.0 if marks is None else round(float(np.mean(marks)), 4)
    sizes: dict[str, int] = {}
    for name, record in manifest.files.items():
        table = table_of(name)
        sizes[table] = sizes.get(table, 0) + record.bytes
    return {
        "path": str(snapshot.folder),
        "version": manifest.state,
        "items": manifest.items,
        "removed_rows": manifest.rows - manifest.items,
        "dimension": manifest.dimension,
        "expander": expander.name,
        "k": max(level.k for level in expander.stack),
        "levels": len(expander.stack),
        "augmented": manifest.augmented,
        "storage": manifest.storage,
        "neighbors_stored": manifest.width,
        "graph_recall": manifest.recall,
        "search": _search_of(manifest),
        "stale": stale,
        "segments": max(len(parts) for parts in manifest.tables.values()),
        "shards": count_built_segments(manifest.tables["vectors"]),
        "bytes": sizes | {"all": sum(sizes.values())},
    }


def _search_of(manifest: Manifest) -> dict[str, Any] | None:
    """What is searched approximately; the recall of shards is their mean by rows."""
    searches = [manifest.search] if manifest.search else manifest.shard_searches
    if not searches:
        return None
    rows = sum(search.rows for search in searches)
    recall = sum(search.recall * search.rows for search in searches) / rows
    return {"kind": searches[0].kind, "recall": round(recall, 4)}
