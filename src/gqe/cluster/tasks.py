"""What the workers of a cluster do for an index: each function is a task, and gives the same when run again.

A task counts the bytes that it needs from shards other than its own (`read`), gets through Ray (`sent`) and
writes to storage (`written`). A row that it needs several times counts once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gqe.cluster.session import worker_device
from gqe.cluster.storage import Storage
from gqe.embeddings import as_tensor
from gqe.expansion import compute_level
from gqe.formats.sources import VectorSource
from gqe.index import approximate
from gqe.index.building import open_unfinished_levels, with_statistics
from gqe.index.drafts import flush_and_record
from gqe.index.files import ArrayWriter, FileRecord, map_array
from gqe.index.finding import nearest_rows
from gqe.index.gpu import DeviceCache
from gqe.index.levels import StoredSource
from gqe.index.manifest import FaissRecord, Manifest
from gqe.index.plan import read_rows
from gqe.index.shards import merge_lists, shard_file
from gqe.index.snapshot import row_dtype_of, storage_of
from gqe.index.tables import Piece, Rows, Table, as_bytes, encode_rows, list_dtype, pack_lists
from gqe.models import Expander
from gqe.neighbors.candidates import Candidates, Engine
from gqe.neighbors.updating import NeighborLists

Array = np.ndarray[Any, Any]
_BLOCK = 4096


@dataclass(frozen=True)
class TaskContext:
    """What all tasks of a stage know.

    Attributes:
        storage: where files are.
        source: the vectors as given.
        manifest: of what is finished.
        expander: the stacks.
        device: "cpu" or "cuda".
        bounds: rows of the shards.
    """

    storage: Storage
    source: VectorSource
    manifest: Manifest
    expander: Expander
    device: str
    bounds: list[tuple[int, int]]

    def vectors(self, number: int) -> Table:
        """The stored embeddings of one shard."""
        start, stop = self.bounds[number]
        name = shard_file("vectors", number)
        dtype, shape = row_dtype_of(self.manifest, "vectors")
        path = self.storage.fetch({name: self.manifest.files[name]}) / name
        content = as_bytes(map_array(path, self.manifest.files[name], dtype, (stop - start, *shape)).array)
        rows = Rows(stop - start, content.shape[1], [Piece(content, 0)])
        return Table(rows, storage_of(self.manifest, "vectors"), self.manifest.dimension)

    def chain(self, prefix: str) -> StoredSource:
        """The levels that are finished."""
        # Names, metadata and faiss indexes play no part in them.
        manifest = replace(self.manifest, metadata=[], search=None, shard_searches=[])
        needed = {name: record for name, record in manifest.files.items() if name.endswith(".npy")}
        folder = self.storage.fetch(needed)
        return open_unfinished_levels(
            folder, manifest, self.expander, prefix, DeviceCache(worker_device(self.device))
        )


class FinishedFile(NamedTuple):
    """A finished file, and what was counted on the way."""

    name: str
    record: FileRecord
    counts: dict[str, Any]


def store_vectors(work: TaskContext, number: int) -> FinishedFile:
    """Check some of the given vectors, bring them to unit length, and store them."""
    clock = _Counter()
    start, stop = work.bounds[number]
    storage = storage_of(work.manifest, "vectors")

    def rows() -> Iterator[Array]:
        for at, end in _blocks(start, stop):
            yield encode_rows(read_rows(work.source, at, end), storage)

    name = shard_file("vectors", number)
    record = _store_rows(work, name, "vectors", stop - start, rows())
    return FinishedFile(name, record, clock.counts(written=record.bytes))


def make_search(
    work: TaskContext, number: int, recall: float, kind: str
) -> tuple[FinishedFile, FaissRecord] | None:
    """The faiss index of one shard; None where an exact search serves as well."""
    clock = _Counter()
    table, manifest = work.vectors(number), work.manifest
    made = approximate.build_approximate(
        table, min(manifest.width, len(table) - 1), recall, kind, manifest.seed
    )
    if made is None:
        return None
    name = shard_file("search", number, "faiss")

    def write(path: Path) -> FileRecord:
        approximate.write_faiss(path, made.index)
        return flush_and_record(path)

    record = work.storage.put(name, write)
    search = FaissRecord(name, made.kind, made.rows, made.breadth, made.recall, work.bounds[number][0])
    return FinishedFile(name, record, clock.counts(written=record.bytes)), search


def compare(
    work: TaskContext, number: int, other: int, running: tuple[Array, Array] | None, last: bool
) -> tuple[Any, tuple[Array, Array] | None]:
    """The neighbours of one shard's items in another shard, merged with those found so far.

    Args:
        work: the job.
        number: the shard whose items are the queries.
        other: the shard that is searched.
        running: (ids, similarities), (rows, width) each: the best of the shards searched before.
        last: whether this is the last one to search; then the lists are stored.

    Returns:
        What was counted, or `FinishedFile` if it was the last; and the best so far.
    """
    clock = _Counter()
    manifest, device, near = work.manifest, worker_device(work.device), work.vectors(other)
    queries = near if number == other else work.vectors(number)
    engine = _engine(work, other, near)
    place = DeviceCache(device).table("vectors", near)
    first, count, width = work.bounds[other][0], len(queries), manifest.width
    ids, similarities = np.empty((count, width), np.int32), np.empty((count, width), np.float32)
    for at, end in _blocks(0, count):
        omit = torch.arange(at, end) if number == other else None
        found = nearest_rows(place, queries[at:end], width, device=device, omit=omit, engine=engine)
        numbers = torch.where(found.ids >= 0, found.ids + first, -1).to("cpu", torch.int32)
        best = Candidates(numbers, found.similarities.cpu())
        if running is not None:
            before = Candidates(as_tensor(running[0][at:end]), as_tensor(running[1][at:end]))
            best = merge_lists(before, best, width)
        ids[at:end], similarities[at:end] = best.ids.numpy(), best.similarities.numpy()
    read = 0 if number == other else len(near) * near.rows.row_bytes
    sent = 0 if running is None else running[0].nbytes + running[1].nbytes
    if not last:
        return clock.counts(read=read, sent=sent), (ids, similarities)
    name = shard_file("graph", number)
    lists = (pack_lists(NeighborLists(ids[at:end], similarities[at:end])) for at, end in _blocks(0, count))
    record = _store_rows(work, name, "graph", count, lists)
    return FinishedFile(name, record, clock.counts(read=read, sent=sent, written=record.bytes)), None


def store_level(work: TaskContext, prefix: str, i: int, number: int) -> FinishedFile:
    """Level i of one shard, computed from the level below it of all shards."""
    clock = _Counter()
    start, stop = work.bounds[number]
    table, source = f"{prefix}-{i}", work.chain(prefix)
    storage = storage_of(work.manifest, table)

    def rows() -> Iterator[Array]:
        for at, end in _blocks(start, stop):
            yield encode_rows(compute_level(source, i, torch.arange(at, end)).cpu(), storage)

    name = shard_file(table, number)
    record = _store_rows(work, name, table, stop - start, rows())
    read = _foreign(work, source, prefix, i, number)
    return FinishedFile(name, record, clock.counts(read=read, written=record.bytes))


def measure(work: TaskContext, prefix: str, i: int) -> Manifest:
    """The manifest with what models know of the whole database."""
    measured = with_statistics(work.manifest, prefix, i, work.chain(prefix))
    return replace(work.manifest, quantiles=measured.quantiles, backgrounds=measured.backgrounds)


def clean(storage: Storage) -> None:
    """Remove the copies on a node."""
    storage.clean()


class _Counter:
    def __init__(self) -> None:
        self._begun, self._busy = time.perf_counter(), time.process_time()

    def counts(self, read: int = 0, sent: int = 0, written: int = 0) -> dict[str, Any]:
        counted = {"read": read, "sent": sent, "written": written, "tasks": 1}
        seconds, busy = time.perf_counter() - self._begun, time.process_time() - self._busy
        return counted | {"seconds": seconds, "cpu_seconds": busy}


def _foreign(work: TaskContext, source: StoredSource, prefix: str, i: int, number: int) -> int:
    """Bytes of other shards' rows that level i of a shard needs."""
    start, stop = work.bounds[number]
    aggregator, manifest = source.stack[i - 1], work.manifest
    needed = np.zeros(manifest.rows, dtype=bool)
    for at, end in _blocks(start, stop):
        ids = source.graph.block(at, end).ids[:, : aggregator.k]
        needed[ids[ids >= 0]] = True
    needed[start:stop] = False
    row = _row_bytes(manifest, f"{prefix}-{i - 1}" if i > 1 else "vectors")
    if aggregator.needs_context:  # it reads the neighbours' own lists, and where they were at first
        row += list_dtype(manifest.width).itemsize + (_row_bytes(manifest, "vectors") if i > 1 else 0)
    return int(needed.sum()) * row


def _row_bytes(manifest: Manifest, table: str) -> int:
    dtype, shape = row_dtype_of(manifest, table)
    return dtype.itemsize * int(np.prod(shape, dtype=np.int64))


def _engine(work: TaskContext, number: int, table: Table) -> Engine | None:
    """Of a shard with a faiss index, unless a GPU is faster without."""
    name = shard_file("search", number, "faiss")
    search = next((search for search in work.manifest.shard_searches if search.file == name), None)
    if search is None or work.device != "cpu":
        return None
    files = {name: work.manifest.files[name]}
    content = np.fromfile(work.storage.fetch(files) / name, dtype=np.uint8)
    return approximate.read_approximate(search, content, files[name]).engine(table, None)


def _store_rows(work: TaskContext, name: str, table: str, count: int, blocks: Iterator[Array]) -> FileRecord:
    """Write the rows of one shard of a table."""
    dtype, shape = row_dtype_of(work.manifest, table)

    def write(path: Path) -> FileRecord:
        writer = ArrayWriter(path, dtype, (count, *shape))
        try:
            for block in blocks:
                writer.append(block)
            return writer.close()
        finally:
            writer.abandon()

    return work.storage.put(name, write)


def _blocks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    return ((at, min(at + _BLOCK, stop)) for at in range(start, stop, _BLOCK))
