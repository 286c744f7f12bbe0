"""One version of an index, opened: all its files mapped, nothing read yet."""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import DamagedError, StorageError
from gqe.index.files import MappedArray, map_array
from gqe.index.items import INT, ItemIds
from gqe.index.manifest import Manifest, read_manifest
from gqe.index.metadata import read_metadata
from gqe.index.tables import Piece, Rows, StoredGraph, Table, as_bytes, list_dtype, row_dtype

Array = np.ndarray[Any, Any]
# How often opening is tried again when a writer removes files between two reads of the manifest.
_ATTEMPTS = 20


class Snapshot:
    """The files of one manifest. They stay readable when a writer replaces them, until this is dropped.

    Args:
        folder: the index.
        manifest: its version.

    Attributes:
        vectors: (rows, d) embeddings.
        graph: their neighbour lists.
        alive: (rows,) bool, False for removed items.
        levels: stored levels by name, such as "level-1".
        stale: by the same names, (rows,) bool of rows that are out of date, or None.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._maps: list[MappedArray] = []
        n, dimension = manifest.rows, manifest.dimension
        self.vectors = Table(self.rows_of("vectors"), manifest.storage[0], dimension)
        self.graph = StoredGraph(self.rows_of("graph"), manifest.width)
        self.alive = np.ones(n, dtype=bool)
        if manifest.removed:
            self.alive[self._numbers(manifest.removed, n - manifest.items)] = False
        self.levels: dict[str, Table] = {}
        self.stale: dict[str, Array | None] = {}
        for name in level_names(manifest):
            self.levels[name] = Table(self.rows_of(name), storage_of(manifest, name), dimension)
            marks = manifest.stale.get(name)
            self.stale[name] = self._map(marks, np.dtype(bool), (n,)) if marks else None
        self._id_pieces = self.rows_of("ids").pieces
        self._text_pieces = self.rows_of("id-text").pieces if "id-text" in manifest.tables else []
        self._metadata_bytes = [self._content(name) for name in manifest.metadata]
        self.search_bytes = self._content(manifest.search.file) if manifest.search else None
        self.shard_search_bytes = [self._content(search.file) for search in manifest.shard_searches]

    @property
    def all_alive(self) -> bool:
        """Whether no row is removed."""
        return self.manifest.items == self.manifest.rows

    @cached_property
    def ids(self) -> ItemIds:
        """The items' names."""
        values = _join(self._id_pieces).view(np.int64)
        if self.manifest.id_kind == INT:
            return ItemIds(INT, values)
        return ItemIds(self.manifest.id_kind, _join(self._text_pieces), values)

    @cached_property
    def metadata(self) -> Any:
        """A pyarrow Table of all rows, or None."""
        return read_metadata(self._metadata_bytes) if self._metadata_bytes else None

    def check_sizes(self) -> None:
        """Refuse files that were cut off since they were opened, before reading them ends the process.

        They are never changed by this package. What is cut off while it is being read is not noticed.
        """
        for mapped in self._maps:
            mapped.check()

    def rows_of(self, table: str) -> Rows:
        """The rows of a table by its name in the manifest."""
        dtype, shape = row_dtype_of(self.manifest, table)
        pieces = []
        for part in self.manifest.tables[table]:
            content = as_bytes(self._map(part.file, dtype, (part.count, *shape)))
            numbers = None if part.rows is None else self._numbers(part.rows, part.count)
            pieces.append(Piece(content, part.start, numbers))
        row_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        return Rows(self.manifest.rows, row_bytes, pieces)

    def _numbers(self, name: str, count: int) -> Array:
        numbers = self._map(name, np.dtype("<i8"), (count,))
        if count and (numbers.min() < 0 or numbers.max() >= self.manifest.rows):
            raise DamagedError(f"{self.folder / name}: damaged, it names rows that are not there; restore it")
        return numbers

    def _content(self, name: str) -> Array:
        return self._map(name, np.dtype(np.uint8), (self.manifest.files[name].bytes,))

    def _map(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        mapped = map_array(self.folder / name, self.manifest.files[name], dtype, shape)
        self._maps.append(mapped)
        return mapped.array


def open_snapshot(folder: Path) -> Snapshot:
    """Open the newest version, while a writer may be replacing it."""
    for attempt in range(_ATTEMPTS):
        manifest = read_manifest(folder)
        try:
            return Snapshot(folder, manifest)
        except FileNotFoundError as error:
            missing = error
        except OSError as error:
            raise StorageError.of(error, folder, "read") from error
        if attempt and read_manifest(folder).state == manifest.state:
            break
        time.sleep(0.001 * attempt)
    raise DamagedError(f"{missing.filename}: is missing; restore it or build the index again") from missing


def level_names(manifest: Manifest) -> list[str]:
    """The stored levels, lower ones first, those of the query side before those of the database side."""
    names = [name for name in manifest.tables if name.startswith(("level-", "augmented-"))]
    return sorted(names, key=lambda name: (name.startswith("augmented-"), int(name.rpartition("-")[2])))


def storage_of(manifest: Manifest, name: str) -> str:
    """How the vectors or a level are stored."""
    level = 0 if name == "vectors" else int(name.rpartition("-")[2])
    return manifest.storage[min(level, len(manifest.storage) - 1)]


def row_dtype_of(manifest: Manifest, table: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The NumPy type and the shape of one row of a table."""
    if table == "graph":
        return list_dtype(manifest.width), ()
    if table == "ids":
        return np.dtype("<i8"), ()
    if table == "id-text":
        return np.dtype(np.uint8), ()
    return row_dtype(storage_of(manifest, table), manifest.dimension)


def _join(pieces: list[Piece]) -> Array:
    """The content of pieces that follow each other, as bytes."""
    parts = [piece.content.reshape(-1) for piece in pieces]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)
