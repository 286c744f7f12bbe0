"""The next version of an index while it is being written: new files beside the old ones, then one swap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gqe.formats.atomic import flush, flush_folder
from gqe.index.files import ArrayWriter, FileRecord, explained, record_of, sweep, write_array
from gqe.index.manifest import MANIFEST, Manifest, Segment, write_manifest
from gqe.index.rows import Rows
from gqe.index.shards import built_segments
from gqe.index.snapshot import Snapshot, row_type_of

Array = np.ndarray[Any, Any]
# Segments a table may have, all shards counted as one; then those that came later are joined.
MOST_SEGMENTS = 8
_BLOCK = 4096


class Draft:
    """Collects the changes of one version.

    Args:
        folder: the index.
        manifest: the version to start from.

    Attributes:
        manifest: the version as it stands so far.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = replace(manifest, state=manifest.state + 1)
        self.written: dict[str, FileRecord] = {}

    def set(self, **changes: Any) -> None:
        """Change fields of the manifest."""
        self.manifest = replace(self.manifest, **changes)

    def snapshot(self) -> Snapshot:
        """The version as it stands so far, opened."""
        return Snapshot(self.folder, self.manifest.with_used_files(self.written))

    def file(self, table: str, ending: str = "npy") -> str:
        """The name of a new file of a table."""
        return file_name(table, self.manifest.state, ending)

    def array(self, table: str, array: Array, ending: str = "npy") -> str:
        """Write an array into a new file; returns its name."""
        name = self.file(table, ending)
        self.written[name] = FileRecord(0, "")  # to be removed should writing it fail
        self.written[name] = write_array(self.folder / name, array)
        return name

    def other(self, name: str, write: Callable[[Path], None]) -> str:
        """Write a file of another kind; returns its name."""
        self.written[name] = FileRecord(0, "")
        write(self.folder / name)
        self.written[name] = flushed_record(self.folder / name)
        return name

    def stream(self, table: str, count: int, blocks: Iterator[Array]) -> str:
        """Write the rows of a table block by block into a new file; returns its name."""
        name = self.file(table)
        self.written[name] = FileRecord(0, "")
        dtype, shape = row_type_of(self.manifest, table)
        writer = ArrayWriter(self.folder / name, dtype, (count, *shape))
        try:
            for block in blocks:
                writer.append(block)
            self.written[name] = writer.close()
        finally:
            writer.abandon()
        return name

    def put(self, table: str, segments: list[Segment]) -> None:
        """Set the segments of a table."""
        self.set(tables=self.manifest.tables | {table: segments})

    def append(self, table: str, rows: Rows, data: Array) -> None:
        """Add rows that follow those there are; `rows` are the old ones."""
        old = self.manifest.tables[table]
        built = built_segments(old)
        if len(old) - built < MOST_SEGMENTS - 1:
            start = sum(part.count for part in old)
            self.put(table, [*old, Segment(self.array(table, data), len(data), start)])
            return
        dtype, shape = row_type_of(self.manifest, table)
        tail = [piece.content.reshape(-1).view(dtype) for piece in rows.pieces[built:]]
        joined = np.concatenate([*(part.reshape(-1, *shape) for part in tail), data])
        start = sum(part.count for part in old[:built])
        self.put(table, [*old[:built], Segment(self.array(table, joined), len(joined), start)])

    def patch(self, table: str, rows: Rows, numbers: Array, data: Array) -> None:
        """Replace or add rows by number; `rows` are the old ones."""
        old = self.manifest.tables[table]
        if not len(numbers):
            return
        built = built_segments(old)
        if len(old) - built >= MOST_SEGMENTS - 1:
            # Rows of the later segments, each as it is now; those replaced here are left out.
            later = _numbers_behind(rows, built)
            kept = np.setdiff1d(later, numbers)
            dtype, shape = row_type_of(self.manifest, table)
            content = rows.take(kept).reshape(-1).view(dtype)
            numbers = np.concatenate([kept, numbers])
            data = np.concatenate([content.reshape(-1, *shape), data])
            old = old[:built]
        names = self.array(table, numbers.astype("<i8"), "rows.npy")
        self.put(table, [*old, Segment(self.array(table, data), len(data), 0, names)])

    def commit(self) -> Snapshot:
        """Swap the manifest and sweep what the old version alone used."""
        manifest = self.manifest.with_used_files(self.written)
        flush_folder(self.folder)
        write_manifest(self.folder, manifest)
        result = Snapshot(self.folder, manifest)
        sweep(self.folder, {MANIFEST, *manifest.files})
        return result

    def discard(self) -> None:
        """Remove what was written."""
        for name in self.written:
            (self.folder / name).unlink(missing_ok=True)


@contextmanager
def drafting(folder: Path, manifest: Manifest) -> Iterator[Draft]:
    """A draft that leaves nothing behind when its making fails."""
    sweep(folder, {MANIFEST, *manifest.files})
    draft = Draft(folder, manifest)
    try:
        with explained(folder):
            yield draft
    except BaseException:
        draft.discard()
        raise


def file_name(table: str, state: int, ending: str = "npy") -> str:
    """The file of a table that one version wrote."""
    return f"{table}.{state:08d}.{ending}"


def flushed_record(path: Path) -> FileRecord:
    """Bring a file onto the disk; its size and checksum."""
    flush(path)
    return record_of(path)


def _numbers_behind(rows: Rows, built: int) -> Array:
    """Of the rows that came or changed after the index was built."""
    numbers = [
        np.arange(piece.start, piece.start + len(piece.content)) if piece.rows is None else piece.rows
        for piece in rows.pieces[built:]
    ]
    return np.unique(np.concatenate(numbers)) if numbers else np.empty(0, np.int64)
