"""The next version of an index while it is being written: new files beside the old ones, then one swap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gqe.formats.atomic import flush, flush_folder
from gqe.index.files import ArrayWriter, FileRecord, check_file, create, explained, record_of, write_array
from gqe.index.leftovers import begin, clean, try_to_clean
from gqe.index.manifest import Manifest, Segment, write_manifest
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
        left: files of earlier versions that could not be removed.

    Attributes:
        manifest: the version as it stands so far.
    """

    def __init__(self, folder: Path, manifest: Manifest, left: Iterable[str] = ()) -> None:
        self.folder = folder
        self.manifest = replace(manifest, state=manifest.state + 1)
        self._before = [*manifest.files, *left]
        self.written: dict[str, FileRecord] = {}

    def set(self, **changes: Any) -> None:
        """Change fields of the manifest."""
        self.manifest = replace(self.manifest, **changes)

    def snapshot(self) -> Snapshot:
        """The version as it stands so far, opened."""
        return Snapshot(self.folder, self.manifest.with_used_files(self.written))

    @cached_property
    def _token(self) -> str:
        """Part of the name of every new file, noted on the disk before the first one is written."""
        return begin(self.folder, self._before)

    def file(self, table: str, ending: str = "npy") -> str:
        """The name of a new file of a table."""
        return file_name(table, self.manifest.state, f"{self._token}.{ending}")

    def array(self, table: str, array: Array, ending: str = "npy") -> str:
        """Write an array into a new file; returns its name."""
        name = self.file(table, ending)
        self.written[name] = write_array(self.folder / name, array)
        return name

    def other(self, name: str, write: Callable[[Path], None]) -> str:
        """Write a file of another kind; returns its name."""
        create(self.folder / name)
        write(self.folder / name)
        self.written[name] = flushed_record(self.folder / name)
        return name

    def stream(self, table: str, count: int, blocks: Iterator[Array]) -> str:
        """Write the rows of a table block by block into a new file; returns its name."""
        name = self.file(table)
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
        self._check(old[built:])
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
            self._check(old[built:])
            later = _numbers_behind(rows, built)
            kept = np.setdiff1d(later, numbers)
            dtype, shape = row_type_of(self.manifest, table)
            content = rows.take(kept).reshape(-1).view(dtype)
            numbers = np.concatenate([kept, numbers])
            data = np.concatenate([content.reshape(-1, *shape), data])
            old = old[:built]
        names = self.array(table, numbers.astype("<i8"), "rows.npy")
        self.put(table, [*old, Segment(self.array(table, data), len(data), 0, names)])

    def check(self, names: Iterable[str]) -> None:
        """Refuse old files that are not what was written, before their content goes into new ones."""
        for name in names:
            if name not in self.written:
                check_file(self.folder / name, self.manifest.files[name])

    def _check(self, segments: list[Segment]) -> None:
        self.check(name for part in segments for name in (part.file, part.rows) if name is not None)

    def commit(self) -> Snapshot:
        """Swap the manifest. All that may fail comes before; see `drafting` for what comes after."""
        manifest = self.manifest.with_used_files(self.written)
        result = Snapshot(self.folder, manifest)
        flush_folder(self.folder)
        write_manifest(self.folder, manifest)
        return result


@contextmanager
def drafting(folder: Path, manifest: Manifest) -> Iterator[Draft]:
    """A draft; whatever happens, what is left in the end are the files of the manifest on the disk."""
    with explained(folder):
        left = clean(folder)
        try:
            yield Draft(folder, manifest, left)
        finally:
            try_to_clean(folder)


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
