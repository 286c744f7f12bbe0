"""A database with its distractors behind it, as one table: in memory if small, else on disk and mapped."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gqe.datasets.official.descriptors import DescriptorTable, find_files, read_tables
from gqe.errors import InputError
from gqe.formats.atomic import atomic_path
from gqe.formats.checks import Array

log = logging.getLogger(__name__)

DISTRACTORS = 1_001_001
_IN_MEMORY = 1 << 30
_BLOCK_ROWS = 8192
_USUAL = ("X", "db", "vecs", "database", "embeddings", "vectors")


def read_distractors(source: str | None, folder: Path, dim: int, label: str) -> list[DescriptorTable]:
    """The tables of distractors, each (n_i, dim), in the order of the numbers in their file names."""
    parts = []
    for path in find_files(source, folder, label, published=False):
        tables = read_tables(path)
        usual = [table for key in _USUAL for table in tables if table.key == key]
        if len(tables) > 1 and not usual:
            raise InputError(f"{path}: holds several tables; keep the distractors alone in a file")
        table = (usual or tables)[0]
        parts.append(DescriptorTable(path, table.key, _orient(table, dim)))
    count = sum(len(part.array) for part in parts)
    if count != DISTRACTORS:
        log.warning("%s: %d distractors, the published set has %d", label, count, DISTRACTORS)
    return parts


def join(
    database: Array, parts: Sequence[DescriptorTable], cache: Path, *, in_memory: int = _IN_MEMORY
) -> Array:
    """Database rows, then those of all parts, of unit length.

    Args:
        database: (n, d).
        parts: tables (n_i, d).
        cache: folder for the joined file, used again as long as the same files lie there.
        in_memory: bytes up to which the table is made in memory.

    Returns:
        (n + sum n_i, d) float16 if most rows are, as those of a million distractors may be, else float32;
        mapped where it is large.
    """
    tables = [database, *(part.array for part in parts)]
    # In float32 the table would be twice as large without knowing more of the distractors.
    shape = (sum(map(len, tables)), int(database.shape[1]))
    half_rows = sum(len(table) for table in tables if table.dtype == np.float16)
    dtype = np.dtype(np.float16 if 2 * half_rows > shape[0] else np.float32)
    if shape[0] * shape[1] * dtype.itemsize <= in_memory:
        in_ram: Array = np.empty(shape, dtype)
        _fill(in_ram, tables)
        return in_ram
    path = cache / f"joined-{_fingerprint(database, parts, dtype)}.npy"
    if not path.is_file():
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{cache}: cannot be made: {error.strerror}; set $GQE_DATA elsewhere") from None
        with atomic_path(path) as beside:
            table = np.lib.format.open_memmap(beside, mode="w+", dtype=dtype, shape=shape)
            _fill(table, tables)
            table.flush()
            del table
    return np.asanyarray(np.load(path, mmap_mode="r"))


def _fill(target: Array, tables: Sequence[Array]) -> None:
    # Unit length here, so that nobody has to make a second copy of a million rows to normalise them.
    place = 0
    for table in tables:
        for start in range(0, len(table), _BLOCK_ROWS):
            block = np.asarray(table[start : start + _BLOCK_ROWS], np.float32)
            lengths = np.linalg.norm(block, axis=1, keepdims=True)
            # Rows without a direction are left as they are: the check of embeddings names them.
            target[place : place + len(block)] = block / np.where(lengths > 0, lengths, 1)
            place += len(block)


def _orient(table: DescriptorTable, dim: int) -> Array:
    rows, columns = table.array.shape
    if columns == dim:
        return table.array
    if rows == dim:
        return table.array.T
    raise InputError(
        f"{table.where}: is {rows} x {columns}; the database has {dim} dimensions: use one network"
    )


def _fingerprint(database: Array, parts: Sequence[DescriptorTable], dtype: np.dtype[Any]) -> str:
    """Of the database rows, and of name, size and time of the other files, which are long to read."""
    files = [
        (str(part.path.resolve()), part.path.stat().st_size, part.path.stat().st_mtime_ns) for part in parts
    ]
    digest = hashlib.sha256(json.dumps([files, database.shape, dtype.str]).encode())
    for start in range(0, len(database), _BLOCK_ROWS):
        digest.update(np.ascontiguousarray(database[start : start + _BLOCK_ROWS]).tobytes())
    return digest.hexdigest()[:16]
