"""Qdrant: items in a collection of the user's, records beside it in `NAME_gqe` and `NAME_gqe_about`."""

from __future__ import annotations

import os
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse
from qdrant_client.local.qdrant_local import QdrantLocal

from gqe.embeddings import blocks
from gqe.errors import InputError
from gqe.filters import Conditions, unknown_field
from gqe.results import SearchResult
from gqe.stores.address import Address
from gqe.stores.base import (
    BATCH_BYTES,
    INT,
    TEXT,
    Array,
    Batch,
    Fields,
    Records,
    Unreachable,
    as_ids,
    rank_hits,
)
from gqe.stores.clients import CollectionStore, json_value

# How widely the graph is searched at least.
_MIN_EF = 128


class QdrantStore(CollectionStore):
    """A collection, on a server or in a folder, and the records beside it.

    Args:
        address: `qdrant://host:6333/collection` (`qdrants://` for TLS; the key in `api_key=` or the variable
            QDRANT_API_KEY), or `qdrant:///folder?collection=NAME`; `vector=` names one of several vectors.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._vector = address.options.get("vector", "")
        self._key = address.options.get("api_key") or os.environ.get("QDRANT_API_KEY")
        if address.client is not None:
            self._local = isinstance(address.client._client, QdrantLocal)
        # In local mode threads share plain arrays and take turns; a server orders requests itself.
        self._turn: AbstractContextManager[Any] = threading.RLock() if self._local else nullcontext()
        with self._wrap_errors():
            if address.client is not None:
                self._client = address.client
            elif not self._local:
                self._client = QdrantClient(
                    host=address.host,
                    port=address.port or 6333,
                    https=address.scheme == "qdrants",
                    api_key=self._key,
                    timeout=60,
                    check_compatibility=False,
                )
            elif Path(self._path).is_dir():
                self._client = QdrantClient(path=self._path)
            else:  # the client would create an empty one
                raise InputError(f"{self.address}: no folder {self._path}; check the path")
            try:
                self._read_schema()
            except InputError:
                self.close()
                raise

    def _read_schema(self) -> None:
        """Check the collection."""
        if not self._client.collection_exists(self._name):
            there = ", ".join(sorted(c.name for c in self._client.get_collections().collections)) or "none"
            raise InputError(f"{self.address}: no collection {self._name!r}; there are: {there}")
        params = self._client.get_collection(self._name).config.params.vectors
        if isinstance(params, dict):
            if self._vector not in params:
                raise InputError(
                    f"{self.address}: name one of its vectors by vector=: {', '.join(params) or 'none'}"
                )
            params = params[self._vector]
        elif self._vector:
            raise InputError(f"{self.address}: its vector has no name; leave vector= out")
        assert params is not None
        if params.distance not in (models.Distance.COSINE, models.Distance.DOT):
            raise InputError(
                f"{self.address}: its distance is {params.distance.value}; make it anew with Cosine"
            )
        if params.multivector_config is not None:
            raise InputError(f"{self.address}: items have several vectors each; one is needed")
        self.metric = "cosine" if params.distance == models.Distance.COSINE else "dot"
        self.dimension = params.size
        first, _ = self._client.scroll(self._name, limit=1, with_payload=False)
        self.id_kind = TEXT if first and isinstance(first[0].id, str) else INT

    @contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        """What the client raises becomes one line."""
        try:
            with self._turn, warnings.catch_warnings():
                warnings.filterwarnings("ignore", module="qdrant_client")
                yield
        except InputError:
            raise
        except ApiException as error:
            away = not isinstance(error, UnexpectedResponse) or error.status_code in (502, 503, 504)
            raise (Unreachable if away else InputError)(
                f"{self.address}: Qdrant refuses or is out of reach ({self._where.redact(error, self._key)});"
                " check the address and that the server runs, then run the same again: it goes on where it"
                " was"
            ) from None
        except (ValueError, RuntimeError, KeyError, OSError) as error:
            reason = self._where.redact(error, self._key)
            raise InputError(f"{self.address}: Qdrant refuses ({reason})") from None

    def count(self) -> int:
        with self._wrap_errors():
            return int(self._client.count(self._name, exact=True).count)

    def search(self, vectors: Array, k: int, *, filter: Conditions = (), exact: bool = False) -> SearchResult:
        # Local mode is always exact, and warns whenever it is given settings.
        params = None if self._local else models.SearchParams(exact=exact, hnsw_ef=max(k, _MIN_EF))
        hits: list[list[tuple[Any, float]]] = []
        with self._wrap_errors():
            query_filter = self._compile(filter)
            for part in blocks(len(vectors), 4 * self.dimension + 64 * k, BATCH_BYTES):
                requests = [
                    models.QueryRequest(
                        query=vector.tolist(),
                        using=self._vector or None,
                        filter=query_filter,
                        params=params,
                        limit=k,
                        with_payload=False,
                    )
                    for vector in vectors[part]
                ]
                for answer in self._client.query_batch_points(self._name, requests=requests):
                    hits.append([(point.id, point.score) for point in answer.points])
        return rank_hits(hits, k, self.id_kind)

    def _compile(self, filter: Conditions) -> models.Filter | None:
        must: list[Any] = []
        for field, values, bounds in filter:
            self._check_field(field)
            if values is not None:
                must.append(_one_of(field, list(values)))
            if bounds:
                try:
                    must.append(models.FieldCondition(key=field, range=models.Range(**bounds)))
                except ValueError:
                    raise InputError(
                        f"filter: {field}: Qdrant compares numbers only, got {bounds!r}"
                    ) from None
        return models.Filter(must=must) if must else None

    def _check_field(self, field: str) -> None:
        """Refuse a field that no item has: Qdrant would find nothing without an error."""
        if field in self._fields:
            return
        empty = models.IsEmptyCondition(is_empty=models.PayloadField(key=field))
        try:
            some, _ = self._client.scroll(
                self._name, scroll_filter=models.Filter(must_not=[empty]), limit=1, with_payload=False
            )
        except ValueError:  # no name that a field could have
            some = []
        if not some:
            raise unknown_field(field, [])
        self._fields.add(field)

    def _ids(self, points: Sequence[Any]) -> Array:
        return as_ids([point.id for point in points], self.id_kind)

    def _batch(self, points: Sequence[Any]) -> Batch:
        vectors = [point.vector[self._vector] if self._vector else point.vector for point in points]
        return Batch(self._ids(points), np.array(vectors, dtype=np.float32).reshape(-1, self.dimension))

    @property
    def _vectors_only(self) -> dict[str, Any]:
        return {"with_payload": False, "with_vectors": [self._vector] if self._vector else True}

    def fetch(self, ids: Array) -> Batch:
        return self._batch(self._points(self._name, ids, **self._vectors_only))

    def fields(self, ids: Array) -> dict[Any, dict[str, Any]]:
        return {point.id: point.payload or {} for point in self._points(self._name, ids, with_payload=True)}

    def existing_ids(self, ids: Array) -> Array:
        return self._ids(self._points(self._name, ids, with_payload=False))

    def names(self, size: int = 10_000) -> Iterator[Array]:
        return map(self._ids, self._pages(self._name, None, size, with_payload=False))

    def iterate(self, after: Any = None, size: int | None = None) -> Iterator[Batch]:
        if self._local:
            # Its first search after a change normalises the stored vectors again, which moves their last bit.
            self.search(np.ones((1, self.dimension), dtype=np.float32), 1)
        for points in self._pages(self._name, after, size or self.batch, **self._vectors_only):
            yield self._batch(points)

    def _points(self, collection: str, ids: Array, **settings: Any) -> list[Any]:
        """Points by id that exist, in the order of the ids."""
        known: dict[Any, Any] = {}
        with self._wrap_errors():
            for part in blocks(len(ids), 4 * self.dimension, BATCH_BYTES):
                found = self._client.retrieve(collection, ids[part].tolist(), **settings)
                known |= {point.id: point for point in found}
        return [known[name] for name in ids.tolist() if name in known]

    def _pages(self, collection: str, after: Any, size: int, **settings: Any) -> Iterator[list[Any]]:
        """Points in the order of ids, a page at a time."""
        while True:
            with self._wrap_errors():  # an offset is the id to begin with, so the last one comes again
                points, _ = self._client.scroll(collection, limit=size + 1, offset=after, **settings)
            points = [point for point in points if point.id != after][:size]
            if not points:
                return
            yield points
            after = points[-1].id

    def upsert(self, ids: Array, vectors: Array, fields: Fields = None) -> None:
        existing = set(self.existing_ids(ids).tolist())
        new: list[Any] = []
        payloads: dict[Any, dict[str, Any]] = {}
        moved: list[Any] = []
        for place, name in enumerate(ids.tolist()):
            vector = vectors[place].tolist()
            vector = {self._vector: vector} if self._vector else vector
            payload = {field: json_value(values[place]) for field, values in (fields or {}).items()}
            if name not in existing:
                new.append(models.PointStruct(id=name, vector=vector, payload=payload))
            else:
                moved.append(models.PointVectors(id=name, vector=vector))
                payloads[name] = payload
        self._put(self._name, new)
        with self._wrap_errors():
            for part in blocks(len(moved), 16 * self.dimension, BATCH_BYTES):
                # In one call, or a process that is killed in between leaves a new field beside an old vector.
                changes: list[Any] = [
                    models.SetPayloadOperation(
                        set_payload=models.SetPayload(payload=payloads[point.id], points=[point.id])
                    )
                    for point in moved[part]
                    if payloads[point.id]
                ]
                points = models.UpdateVectors(points=moved[part])
                changes.append(models.UpdateVectorsOperation(update_vectors=points))
                self._client.batch_update_points(self._name, changes, wait=True)

    def _put(self, collection: str, points: list[Any]) -> None:
        with self._wrap_errors():
            for part in blocks(len(points), 4 * self.dimension * 4, BATCH_BYTES):
                self._client.upsert(collection, points=points[part], wait=True)

    def _delete(self, collection: str, ids: Array) -> None:
        if len(ids):
            with self._wrap_errors():
                self._client.delete(collection, models.PointIdsList(points=ids.tolist()), wait=True)

    def _exists(self, collection: str) -> bool:
        with self._wrap_errors():
            return bool(self._client.collection_exists(collection))

    def _drop(self, collection: str) -> None:
        with self._wrap_errors():
            self._client.delete_collection(collection)

    def prepare(self, width: int, levels: int) -> None:
        # Levels are fetched, never searched: without links between them they cost no index.
        unlinked = models.HnswConfigDiff(m=0)
        level = models.VectorParams(
            size=self.dimension, distance=models.Distance.DOT, on_disk=True, hnsw_config=unlinked
        )
        if self._exists(self._side):
            self._drop(self._side)
        with self._wrap_errors():
            self._client.create_collection(
                self._side, vectors_config={f"level-{i}": level for i in range(1, levels + 1)}
            )
            if not self._local:
                self._client.create_payload_index(self._side, "valid", models.PayloadSchemaType.INTEGER)

    def prepare_about(self) -> None:
        if self._exists(self._about):
            return
        with self._wrap_errors():
            try:
                self._client.create_collection(self._about, vectors_config={})
            except (ApiException, ValueError):
                if not self._client.collection_exists(self._about):  # else another process was faster
                    raise

    def read_about(self, keys: Sequence[str] | None = None, *, kind: str = "") -> dict[str, str]:
        if not self._exists(self._about):
            return {}
        if keys is None:
            match = models.FieldCondition(key="kind", match=models.MatchValue(value=kind))
            chosen = models.Filter(must=[match]) if kind else None
            pages = self._pages(self._about, None, 100, with_payload=True, scroll_filter=chosen)
            points = [point for page in pages for point in page]
        else:
            points = self._points(self._about, _about_ids(keys), with_payload=True)
        return {point.payload["key"]: point.payload["value"] for point in points}

    def write_about(self, texts: Mapping[str, str]) -> None:
        points = [
            models.PointStruct(
                id=name, vector={}, payload={"key": key, "value": value, "kind": key.partition(".")[0]}
            )
            for name, (key, value) in zip(_about_ids(list(texts)), texts.items(), strict=True)
        ]
        self._put(self._about, points)

    def erase_about(self, keys: Sequence[str]) -> None:
        self._delete(self._about, _about_ids(keys))

    def read(self, ids: Array, *, levels: bool = True) -> Records:
        return self._records(self._points(self._side, ids, with_payload=True, with_vectors=levels), levels)

    def scan(self, *, below: int | None = None, levels: bool = False) -> Iterator[Records]:
        lower = models.FieldCondition(key="valid", range=models.Range(lt=below))
        chosen = None if below is None else models.Filter(must=[lower])
        settings = {"scroll_filter": chosen, "with_payload": True, "with_vectors": levels}
        for points in self._pages(self._side, None, self.batch, **settings):
            yield self._records(points, levels)

    def _records(self, points: list[Any], levels: bool) -> Records:
        depth = max((point.payload["levels"] for point in points), default=0) if levels else 0
        keys = ("mark", "valid", "neighbors", "similarities")
        rows = []
        for point in points:
            vectors = [(point.vector or {}).get(f"level-{i + 1}") for i in range(depth)]
            rows.append((point.id, *(point.payload[key] for key in keys), vectors))
        return self.make_records(rows, depth)

    def write(self, records: Records) -> None:
        points = []
        for name, mark, valid, neighbors, similarities, levels in records.rows():
            vectors = {f"level-{i}": level.tolist() for i, level in enumerate(levels, 1) if level.any()}
            payload = {
                "mark": mark,
                "valid": valid,
                "levels": len(levels),
                "neighbors": neighbors,
                # JSON has no infinity: similarities end where the neighbours do.
                "similarities": [value for value in similarities if value > -np.inf],
            }
            points.append(models.PointStruct(id=name, vector=vectors, payload=payload))
        self._put(self._side, points)

    def close(self) -> None:
        if self._where.client is None:
            self._client.close()


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


def _about_ids(keys: Sequence[str]) -> Array:
    """The ids of texts."""
    return as_ids([str(uuid.uuid5(uuid.NAMESPACE_OID, key)) for key in keys], TEXT)
