"""Milvus: items in a collection of the user's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gqe.embeddings import blocks
from gqe.errors import InputError
from gqe.filters import BOUNDS, Conditions, unknown_field
from gqe.stores.base import BATCH_BYTES, Array, Batch, Found, as_ids, ranked
from gqe.stores.inserting import insert_reserved
from gqe.stores.milvus_records import READ, MilvusRecords, as_text

# The most results Milvus gives at a time.
_MOST = 16384
# How widely a graph, or how many lists, are searched at least.
_LEAST_EF, _LISTS = 128, 32
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class MilvusStore(MilvusRecords):
    """Items in a collection: searching, fetching, writing; see `MilvusRecords`."""

    def count(self) -> int:
        """See `Store.count`."""
        return int(self._query(self._name, "", ["count(*)"])[0]["count(*)"])

    def search(self, vectors: Array, k: int, *, filter: Conditions = (), exact: bool = False) -> Found:
        """See `Store.search`."""
        if k > _MOST:
            raise InputError(f"k: Milvus gives at most {_MOST} results")
        if exact and self._index_type != "FLAT":
            raise InputError(
                f"{self.address}: its index is {self._index_type}, and Milvus searches exactly only with FLAT"
            )
        settings = {}
        if "HNSW" in self._index_type:
            settings = {"ef": max(k, _LEAST_EF)}  # Milvus refuses less than k
        elif self._index_type.startswith("IVF"):
            settings = {"nprobe": 32}
        chosen = self._compiled(filter)
        found: list[list[tuple[Any, float]]] = []
        with self._explained():
            for part in blocks(len(vectors), 4 * self.dimension + 32 * k, BATCH_BYTES):
                answers = self._client.search(
                    self._name,
                    data=vectors[part].tolist(),
                    anns_field=self._vector,
                    limit=k,
                    filter=chosen,
                    output_fields=[self._id],
                    search_params={"params": settings},
                    **READ,
                )
                found += [[(hit[self._id], hit["distance"]) for hit in hits] for hits in answers]
        return ranked(found, k, self.id_kind)

    def _compiled(self, filter: Conditions) -> str:
        parts = []
        for field, values, bounds in filter:
            self._check(field)
            if values is not None:
                parts.append(f"{field} in {as_text(list(values))}" if values else f"{self._id} in []")
            parts += [f"{field} {BOUNDS[bound]} {as_text(value)}" for bound, value in bounds.items()]
        return " and ".join(parts)

    def _check(self, field: str) -> None:
        """Refuse a field that no item has: Milvus would find nothing and say nothing."""
        if field in self._known or field in self._fields:
            return
        usable = self._dynamic and _NAME.fullmatch(field) is not None
        if not usable or not self._query(self._name, f"exists {field}", [self._id], limit=1):
            raise unknown_field(field, self._known)
        self._fields.add(field)

    def _batch(self, rows: list[dict[str, Any]]) -> Batch:
        vectors = np.array([row[self._vector] for row in rows], dtype=np.float32)
        return Batch(
            as_ids([row[self._id] for row in rows], self.id_kind), vectors.reshape(-1, self.dimension)
        )

    def fetch(self, ids: Array) -> Batch:
        """See `Store.fetch`."""
        return self._batch(self._rows(self._name, ids, [self._vector]))

    def existing(self, ids: Array) -> Array:
        """See `Store.existing`."""
        return as_ids([row[self._id] for row in self._rows(self._name, ids, [])], self.id_kind)

    def names(self, size: int = 10_000) -> Iterator[Array]:
        """See `Store.names`."""
        ids = self._all_ids(self._name, self._everything())
        return (ids[start : start + size] for start in range(0, len(ids), size))

    def iterate(self, after: Any = None, size: int | None = None) -> Iterator[Batch]:
        """See `Store.iterate`."""
        ids = self._all_ids(self._name, self._everything())
        if after is not None:
            ids = ids[np.array([name > after for name in ids.tolist()], dtype=bool)]
        step = size or self.batch
        for start in range(0, len(ids), step):
            batch = self.fetch(ids[start : start + step])
            if len(batch.ids):
                yield batch

    def upsert(self, ids: Array, vectors: Array, fields: Mapping[str, Sequence[Any]] | None = None) -> None:
        """See `Store.upsert`."""
        # Milvus replaces whole rows.
        known = {row[self._id]: row for row in self._rows(self._name, ids, ["*"])}
        rows = []
        for place, name in enumerate(ids.tolist()):
            given = {field: _plain(values[place]) for field, values in (fields or {}).items()}
            rows.append(known.get(name, {}) | {self._id: name, self._vector: vectors[place].tolist()} | given)
        self._put(self._name, rows)

    def insert(self, ids: Array, vectors: Array, fields: Mapping[str, Sequence[Any]] | None = None) -> None:
        """See `Store.insert`."""
        insert_reserved(self, ids, vectors, fields)

    def delete(self, ids: Array) -> Array:
        """See `Store.delete`."""
        self._drop(self._name, ids)
        return ids


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    return value.item() if isinstance(value, np.generic) else value
