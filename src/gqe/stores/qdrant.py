"""Qdrant: items in a collection of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gqe.embeddings import blocks
from gqe.errors import InputError
from gqe.filters import Conditions, unknown_field
from gqe.stores.base import BATCH_BYTES, Array, Batch, Found, as_ids, ranked
from gqe.stores.inserting import insert_reserved
from gqe.stores.qdrant_records import QdrantRecords, models

# How widely the graph is searched at least.
_LEAST_EF = 128


class QdrantStore(QdrantRecords):
    """Items in a collection: searching, fetching, writing; see `QdrantRecords`."""

    def count(self) -> int:
        """See `Store.count`."""
        with self._explained():
            return int(self._client.count(self._name, exact=True).count)

    def search(self, vectors: Array, k: int, *, filter: Conditions = (), exact: bool = False) -> Found:
        """See `Store.search`."""
        # Local mode is always exact, and says so whenever it is given settings.
        settings = None if self._local else models.SearchParams(exact=exact, hnsw_ef=max(k, _LEAST_EF))
        found: list[list[tuple[Any, float]]] = []
        with self._explained():
            chosen = self._compiled(filter)
            for part in blocks(len(vectors), 4 * self.dimension + 64 * k, BATCH_BYTES):
                requests = [
                    models.QueryRequest(
                        query=vector.tolist(),
                        using=self._vector or None,
                        filter=chosen,
                        params=settings,
                        limit=k,
                        with_payload=False,
                    )
                    for vector in vectors[part]
                ]
                for answer in self._client.query_batch_points(self._name, requests=requests):
                    found.append([(point.id, point.score) for point in answer.points])
        return ranked(found, k, self.id_kind)

    def _compiled(self, filter: Conditions) -> models.Filter | None:
        must: list[Any] = []
        for field, values, bounds in filter:
            self._check(field)
            if values is not None:
                must.append(_one_of(field, list(values)))
            if bounds:
                try:
                    must.append(models.FieldCondition(key=field, range=_range(bounds)))
                except ValueError:
                    raise InputError(
                        f"filter: {field}: Qdrant compares numbers only, got {bounds!r}"
                    ) from None
        return models.Filter(must=must) if must else None

    def _check(self, field: str) -> None:
        """Refuse a field that no item has: Qdrant would find nothing and say nothing."""
        if field in self._fields:
            return
        empty = models.IsEmptyCondition(is_empty=models.PayloadField(key=field))
        try:
            some, _ = self._client.scroll(
                self._name, scroll_filter=models.Filter(must_not=[empty]), limit=1, with_payload=False
            )
        except ValueError:  # no name that a field could have
            raise unknown_field(field, []) from None
        if not some:
            raise unknown_field(field, [])
        self._fields.add(field)

    def _batch(self, points: Sequence[Any]) -> Batch:
        vectors = [point.vector[self._vector] if self._vector else point.vector for point in points]
        rows = np.array(vectors, dtype=np.float32).reshape(-1, self.dimension)
        return Batch(as_ids([point.id for point in points], self.id_kind), rows)

    def fetch(self, ids: Array) -> Batch:
        """See `Store.fetch`."""
        wanted = [self._vector] if self._vector else True
        return self._batch(self._points(self._name, ids, with_payload=False, with_vectors=wanted))

    def existing(self, ids: Array) -> Array:
        """See `Store.existing`."""
        return as_ids([p.id for p in self._points(self._name, ids, with_payload=False)], self.id_kind)

    def names(self, size: int = 10_000) -> Iterator[Array]:
        """See `Store.names`."""
        for points in self._pages(self._name, None, size, with_payload=False):
            yield as_ids([point.id for point in points], self.id_kind)

    def iterate(self, after: Any = None, size: int | None = None) -> Iterator[Batch]:
        """See `Store.iterate`."""
        if self._local:
            # Its first search after a change normalises the stored vectors again, which moves their last bit.
            self.search(np.ones((1, self.dimension), dtype=np.float32), 1)
        wanted = [self._vector] if self._vector else True
        settings = {"with_payload": False, "with_vectors": wanted}
        for points in self._pages(self._name, after, size or self.batch, **settings):
            yield self._batch(points)

    def upsert(self, ids: Array, vectors: Array, fields: Mapping[str, Sequence[Any]] | None = None) -> None:
        """See `Store.upsert`."""
        given = dict(fields or {})
        there = set(self.existing(ids).tolist())
        made, moved = [], {}
        for place, name in enumerate(ids.tolist()):
            vector: Any = vectors[place].tolist()
            if self._vector:
                vector = {self._vector: vector}
            payload = {field: _plain(values[place]) for field, values in given.items()}
            if name not in there:
                made.append(models.PointStruct(id=name, vector=vector, payload=payload))
                continue
            moved[name] = models.PointVectors(id=name, vector=vector), payload
        self._put(self._name, made)
        names = list(moved)
        with self._explained():
            for part in blocks(len(names), 16 * self.dimension, BATCH_BYTES):
                # In one call, or whoever is killed in between leaves a new field beside an old vector.
                changes: list[Any] = [
                    models.SetPayloadOperation(
                        set_payload=models.SetPayload(payload=moved[name][1], points=[name])
                    )
                    for name in names[part]
                    if moved[name][1]
                ]
                points = models.UpdateVectors(points=[moved[name][0] for name in names[part]])
                changes.append(models.UpdateVectorsOperation(update_vectors=points))
                self._client.batch_update_points(self._name, changes, wait=True)

    def insert(self, ids: Array, vectors: Array, fields: Mapping[str, Sequence[Any]] | None = None) -> None:
        """See `Store.insert`."""
        insert_reserved(self, ids, vectors, fields)

    def delete(self, ids: Array) -> Array:
        """See `Store.delete`."""
        with self._explained():
            self._client.delete(self._name, models.PointIdsList(points=ids.tolist()), wait=True)
        return ids


def _range(bounds: dict[str, Any]) -> models.Range:
    return models.Range(**bounds)


def _one_of(field: str, values: list[Any]) -> Any:
    """A field is one of these values."""
    if not values:
        return models.HasIdCondition(has_id=[])  # nothing is
    if all(isinstance(v, str) for v in values) or all(type(v) is int for v in values):
        return models.FieldCondition(key=field, match=models.MatchAny(any=values))
    same: list[Any] = [
        models.FieldCondition(key=field, range=models.Range(gte=value, lte=value))
        if isinstance(value, float)
        else models.FieldCondition(key=field, match=models.MatchValue(value=value))
        for value in values
    ]
    return models.Filter(should=same)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    return value.item() if isinstance(value, np.generic) else value
