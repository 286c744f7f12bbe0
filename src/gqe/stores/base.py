"""What every vector database must be able to do, and nothing more.

A store keeps the user's items (an id, a vector, maybe fields to filter by). Beside them, in structures of its
own named `NAME_gqe`, it keeps one record for each item: its neighbour list and its levels. All orders of ids
are the engine's own; what matters is only that it stays the same.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gqe.embeddings import LENGTH_TOLERANCE
from gqe.errors import InputError
from gqe.filters import Conditions
from gqe.results import SearchResult
from gqe.stores.attachment import Attachment, attachment_from

Array = np.ndarray[Any, Any]
# Values to filter by, one for each vector.
Fields = Mapping[str, Sequence[Any]] | None
INT, TEXT = "int", "text"
# Bytes of vectors that travel at a time.
BATCH_BYTES = 8 << 20
_MOST_ITEMS = 1000


class Batch(NamedTuple):
    """Some items: ids (p,) and vectors (p, d) float32 as they are stored, not necessarily of unit length."""

    ids: Array
    vectors: Array


class Records(NamedTuple):
    """What is stored beside some items.

    Attributes:
        ids: (p,).
        checksums: (p,) texts: the checksum of the vector that the record was made from.
        valid: (p,) how many levels are up to date, see `gqe.staleness`.
        neighbors: (p, width) ids, see `no_ids`.
        similarities: (p, width) falling, -inf = missing.
        levels: (p, L-1, d) float32, zeros where not computed yet; (p, 0, d) where not asked for.
    """

    ids: Array
    checksums: Array
    valid: Array
    neighbors: Array
    similarities: Array
    levels: Array

    def at(self, places: Any) -> Records:
        """The records at these places."""
        return Records(*(part[places] for part in self))

    def rows(self) -> Iterator[tuple[Any, str, int, list[Any], list[float], Array]]:
        """Each record as plain values, in the order of the attributes; its levels are an array."""
        return zip(*(part.tolist() for part in self[:5]), self.levels, strict=True)


class ChangedItems(NamedTuple):
    """Items whose records are missing, or were made from other vectors.

    Attributes:
        ids: (p,).
        fresh: (p,) bool, those without a record.
        seen: how many items were looked at to find these.
    """

    ids: Array
    fresh: Array
    seen: int


class Unreachable(InputError):
    """The engine does not answer; later it may."""


class Store(ABC):
    """One collection of vectors in some engine, with cosine or inner product as its similarity.

    Attributes:
        address: how to call it in messages, without secrets.
        dimension: of the vectors.
        id_kind: "int" or "text".
        metric: "cosine", or "dot", which serves only vectors of unit length.
    """

    address: str
    dimension: int
    id_kind: str
    metric: str = "cosine"

    @abstractmethod
    def count(self) -> int:
        """How many items there are."""

    @abstractmethod
    def search(self, vectors: Array, k: int, *, filter: Conditions = (), exact: bool = False) -> SearchResult:
        """The k nearest items of each vector (m, d), as the engine ranks them."""

    @abstractmethod
    def fetch(self, ids: Array) -> Batch:
        """The items of these ids that are there, in the order of the ids."""

    @abstractmethod
    def fields(self, ids: Array) -> dict[Any, dict[str, Any]]:
        """What is kept of items beside their ids and vectors, by the ids of those that are there."""

    @abstractmethod
    def existing_ids(self, ids: Array) -> Array:
        """Those of these ids that are there, in any order."""

    @abstractmethod
    def names(self, size: int = 10_000) -> Iterator[Array]:
        """The ids of all items, always in the same order, some at a time."""

    @abstractmethod
    def iterate(self, after: Any = None, size: int | None = None) -> Iterator[Batch]:
        """All items in the order of `names`, or those after an id, some at a time."""

    @abstractmethod
    def upsert(self, ids: Array, vectors: Array, fields: Fields = None) -> None:
        """Write items, new ones or in the place of those with the same id, whose other fields stay."""

    @abstractmethod
    def insert(self, ids: Array, vectors: Array, fields: Fields = None) -> None:
        """Write new items; refuses, and writes nothing, if one exists, even if another adds it right now."""

    @abstractmethod
    def delete(self, ids: Array) -> Array:
        """Remove items that are there; returns those that were, and where some were not may remove none."""

    @abstractmethod
    def prepare(self, width: int, levels: int) -> None:
        """Create empty structures for records with lists of this width and so many levels."""

    @abstractmethod
    def prepare_about(self) -> None:
        """Create the structure for texts about the attachment, unless it exists."""

    @abstractmethod
    def has_records(self) -> bool:
        """Whether the structures for records exist."""

    @abstractmethod
    def detach(self) -> None:
        """Remove all that is kept beside the items."""

    @abstractmethod
    def read_about(self, keys: Sequence[str] | None = None, *, kind: str = "") -> dict[str, str]:
        """The texts kept about the attachment, or some: of these keys, or of keys that begin with `kind.`."""

    @abstractmethod
    def erase_about(self, keys: Sequence[str]) -> None:
        """Remove some of these texts."""

    @abstractmethod
    def write_about(self, texts: Mapping[str, str]) -> None:
        """Write some of these texts (each shorter than 64,000 bytes), leaving the others."""

    @abstractmethod
    def read(self, ids: Array, *, levels: bool = True) -> Records:
        """The records of these ids that are there, in the order of the ids."""

    @abstractmethod
    def write(self, records: Records) -> None:
        """Write whole records."""

    @abstractmethod
    def delete_records(self, ids: Array) -> None:
        """Remove records."""

    @abstractmethod
    def scan(self, *, below: int | None = None, levels: bool = False) -> Iterator[Records]:
        """All records, or those with fewer valid levels, some at a time; they may be rewritten meanwhile."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def checksums(self, vectors: Array) -> Array:
        """(p,) checksums of vectors (p, d), as records keep them."""
        return vector_checksums(vectors)

    def changed_items(self) -> Iterator[ChangedItems]:
        """Items that changed since their records were written; reads all where the engine cannot compare."""
        for batch in self.iterate():
            records = self.read(batch.ids, levels=False)
            known = dict(zip(records.ids.tolist(), records.checksums.tolist(), strict=True))
            now = zip(batch.ids.tolist(), self.checksums(batch.vectors).tolist(), strict=True)
            changed = np.array([known.get(name) != mark for name, mark in now], dtype=bool)
            fresh = [name not in known for name in batch.ids[changed].tolist()]
            yield ChangedItems(batch.ids[changed], np.array(fresh, dtype=bool), len(batch.ids))

    def orphans(self) -> Iterator[Array]:
        """Ids of records whose items are gone, some at a time."""
        for records in self.scan():
            there = set(self.existing_ids(records.ids).tolist())
            yield as_ids([name for name in records.ids.tolist() if name not in there], self.id_kind)

    def count_unsynced(self) -> int | None:
        """How many items came, changed or went since the last sync; None if only a sync can find out."""
        return None

    def attachment(self) -> Attachment | None:
        """What was attached, or None."""
        found = attachment_from(self.read_about(), self.address)
        if found is not None and not self.has_records():
            raise InputError(
                f"{self.address}: {found.expander.name} was attached, but somebody removed its lists and"
                " levels; attach again with --anew"
            )
        return found

    @property
    def batch(self) -> int:
        """How many items are transferred at a time."""
        return max(1, min(_MOST_ITEMS, BATCH_BYTES // (4 * self.dimension)))

    def duplicate_error(self, ids: Array) -> InputError:
        """The error for new items of which some exist."""
        there = self.existing_ids(ids).tolist()
        named = repr(there[0]) if there else "one of them"  # it may have been removed again
        return InputError(f"ids: {named} is there already; remove it first, or choose another id")

    def make_records(self, rows: Sequence[Sequence[Any]], depth: int) -> Records:
        """Records from `Records.rows`; lists may end early, and None is a missing neighbour or level."""
        ids, marks, valid, lists, scores, levels = zip(*rows, strict=True) if rows else ((),) * 6
        shape = len(rows), max(map(len, lists), default=0)
        neighbors, similarities = no_ids(shape, self.id_kind), np.full(shape, -np.inf, dtype=np.float32)
        vectors = np.zeros((len(rows), depth if rows else 0, self.dimension), dtype=np.float32)
        for place in range(len(rows)):
            for i, name in enumerate(lists[place]):
                if name is not None:
                    neighbors[place, i] = name
            similarities[place, : len(scores[place])] = scores[place]
            for i, vector in enumerate(levels[place]):
                if vector is not None:
                    vectors[place, i] = vector
        names, checksums = as_ids(ids, self.id_kind), as_ids(marks, TEXT)
        return Records(names, checksums, np.array(valid, dtype=np.int64), neighbors, similarities, vectors)


def as_ids(values: Sequence[Any], kind: str) -> Array:
    """(p,) int64, or objects."""
    if kind == INT:
        return np.asarray(values, dtype=np.int64).reshape(-1)
    result = np.empty(len(values), dtype=object)
    result[:] = list(values)
    return result


def no_ids(shape: tuple[int, ...], kind: str) -> Array:
    """Room for ids in which all are missing: -1, or None for texts."""
    return np.full(shape, -1, dtype=np.int64) if kind == INT else np.full(shape, None, dtype=object)


def no_records(store: Store) -> Records:
    """None at all."""
    return store.make_records([], 0)


def is_present(ids: Array) -> Array:
    """Which entries of an array of ids name an item, for any shape."""
    missing: Any = None
    return np.asarray(ids >= 0) if ids.dtype != object else np.not_equal(ids, missing).astype(bool)


def unique_ids(*ids: Array) -> Array:
    """Every id of some arrays once, rising, without the missing ones."""
    flat = np.concatenate([part[is_present(part)].reshape(-1) for part in ids])
    if flat.dtype != object:
        return np.unique(flat)
    return as_ids(sorted(set(flat.tolist())), TEXT)


def numbers_of(known: Array, ids: Array) -> Array:
    """Where ids of any shape stand among known ones (u,), all different; -1 for what is not there."""
    if ids.dtype == object:
        places = {name: place for place, name in enumerate(known.tolist())}
        flat = [places.get(name, -1) for name in ids.reshape(-1).tolist()]
        return np.array(flat, dtype=np.int64).reshape(ids.shape)
    if not len(known):
        return np.full(ids.shape, -1, dtype=np.int64)
    order = np.argsort(known)
    places = order[np.searchsorted(known, ids, sorter=order).clip(max=len(known) - 1)]
    return np.where(known[places] == ids, places, -1)


def rank_hits(rows: Sequence[Sequence[tuple[Any, float]]], k: int, kind: str) -> SearchResult:
    """Results (m, k) from (id, score) pairs of each query: falling scores, ties by rising id."""
    scores = np.full((len(rows), k), -np.inf, dtype=np.float32)
    ids = no_ids((len(rows), k), kind)
    for place, row in enumerate(rows):
        for i, (name, score) in enumerate(sorted(row, key=lambda pair: (-pair[1], pair[0]))[:k]):
            ids[place, i], scores[place, i] = name, score
    return SearchResult(scores, ids)


def vector_checksums(vectors: Array) -> Array:
    """(p,) checksums of vectors (p, d)."""
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    return as_ids([hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest() for row in rows], TEXT)


def unit_rows(store: Store, batch: Batch) -> Array:
    """Vectors (p, d) of unit length; refuses what has no direction, or a length that the metric minds."""
    vectors = batch.vectors.astype(np.float32, copy=False)
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    odd = np.flatnonzero(~np.isfinite(lengths) | (lengths < 1e-30))
    if len(odd):
        what = "is all zeros" if lengths[odd[0]] < 1e-30 else "holds NaN or an infinite value"
        raise InputError(
            f"{store.address}: the vector of item {batch.ids[odd[0]]} {what}; repair or remove it"
        )
    off = np.abs(lengths - 1)
    if store.metric == "dot" and (off > 1e-2).any():
        worst = int(off.argmax())
        raise InputError(
            f"{store.address}: item {batch.ids[worst]} has length {lengths[worst]:.3g}, and inner products"
            " rank only unit vectors by direction; normalise them or use the cosine metric"
        )
    from torch import float32

    scale = np.where(off <= LENGTH_TOLERANCE[float32], 1.0, lengths)
    return (vectors / scale[:, None]).astype(np.float32)
