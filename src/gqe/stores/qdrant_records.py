"""Qdrant: the connection, and what is kept beside the user's items in `NAME_gqe` and `NAME_gqe_about`."""

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

from gqe.embeddings import blocks
from gqe.errors import InputError
from gqe.stores.address import Address, collection_of
from gqe.stores.base import (
    BATCH_BYTES,
    INT,
    TEXT,
    Array,
    Records,
    Store,
    Unreachable,
    as_ids,
    install,
    no_ids,
    present,
)

try:
    from qdrant_client import QdrantClient, models
    from qdrant_client.http.exceptions import ApiException, UnexpectedResponse
except ImportError as error:
    raise install("qdrant-client", "qdrant") from error

__all__ = ["QdrantRecords", "models"]


class QdrantRecords(Store):
    """A collection, on a server or in a folder, and the records beside it.

    Args:
        address: `qdrant://host:6333/collection` (`qdrants://` for TLS; the key in `api_key=` or the variable
            QDRANT_API_KEY), or `qdrant:///folder?collection=NAME`; `vector=` names one of several vectors.
    """

    def __init__(self, address: Address) -> None:
        self._where = address
        self.address = address.shown
        self._name, path = collection_of(address)
        self._side, self._about = f"{self._name}_gqe", f"{self._name}_gqe_about"
        self._vector = address.options.get("vector", "")
        self._local = bool(path)
        self._fields: set[str] = set()
        self._key = address.options.get("api_key") or os.environ.get("QDRANT_API_KEY")
        # In local mode threads share plain arrays and take turns; a server has its own order.
        self._turn: AbstractContextManager[Any] = threading.RLock() if path else nullcontext()
        with self._explained():
            if path:
                if not Path(path).is_dir():  # the client would make an empty one
                    raise InputError(f"{self.address}: no folder {path}; check the path")
                self._client = QdrantClient(path=path)
            else:
                self._client = QdrantClient(
                    host=address.host,
                    port=address.port or 6333,
                    https=address.scheme == "qdrants",
                    api_key=self._key,
                    timeout=60,
                    check_compatibility=False,
                )
            self._look()

    def _look(self) -> None:
        """Check the collection."""
        if not self._client.collection_exists(self._name):
            there = ", ".join(sorted(c.name for c in self._client.get_collections().collections)) or "none"
            self.close()
            raise InputError(f"{self.address}: no collection {self._name!r}; there are: {there}")
        given = self._client.get_collection(self._name).config.params.vectors
        if isinstance(given, dict):
            if self._vector not in given:
                self.close()
                raise InputError(
                    f"{self.address}: name one of its vectors by vector=: {', '.join(given) or 'none'}"
                )
            given = given[self._vector]
        elif self._vector:
            self.close()
            raise InputError(f"{self.address}: its vector has no name; leave vector= out")
        assert given is not None
        if given.distance not in (models.Distance.COSINE, models.Distance.DOT):
            self.close()
            raise InputError(
                f"{self.address}: its distance is {given.distance.value}; make it anew with Cosine"
            )
        if given.multivector_config is not None:
            self.close()
            raise InputError(f"{self.address}: items have several vectors each; one is needed")
        self.metric = "cosine" if given.distance == models.Distance.COSINE else "dot"
        self.dimension = given.size
        first, _ = self._client.scroll(self._name, limit=1, with_payload=False)
        self.id_kind = TEXT if first and isinstance(first[0].id, str) else INT

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            with self._turn, warnings.catch_warnings():
                warnings.filterwarnings("ignore", module="qdrant_client")
                yield
        except InputError:
            raise
        except ApiException as error:
            away = not isinstance(error, UnexpectedResponse) or error.status_code in (502, 503, 504)
            raise (Unreachable if away else InputError)(
                f"{self.address}: Qdrant refuses or is out of reach ({self._said(error)}); check"
                " the address and that the server runs, then run the same again: it goes on where it was"
            ) from None
        except (ValueError, RuntimeError, KeyError, OSError) as error:
            raise InputError(f"{self.address}: Qdrant refuses ({self._said(error)})") from None

    def _said(self, error: Exception) -> str:
        return self._where.scrubbed(error, self._key)

    def _points(self, collection: str, ids: Array, **settings: Any) -> list[Any]:
        """Points by id that are there, in the order asked for."""
        found: list[Any] = []
        with self._explained():
            for part in blocks(len(ids), 4 * self.dimension, BATCH_BYTES):
                found += self._client.retrieve(collection, ids[part].tolist(), **settings)
        known = {point.id: point for point in found}
        return [known[name] for name in ids.tolist() if name in known]

    def _pages(self, collection: str, after: Any, size: int, **settings: Any) -> Iterator[list[Any]]:
        """Points in the order of ids, a page at a time."""
        while True:
            with self._explained():  # an offset is the id to begin with, so the last one comes again
                points, _ = self._client.scroll(collection, limit=size + 1, offset=after, **settings)
            points = [point for point in points if point.id != after][:size]
            if not points:
                return
            yield points
            after = points[-1].id

    def _put(self, collection: str, points: list[Any]) -> None:
        with self._explained():
            for part in blocks(len(points), 4 * self.dimension * 4, BATCH_BYTES):
                self._client.upsert(collection, points=points[part], wait=True)

    def prepare(self, width: int, levels: int) -> None:
        """See `Store.prepare`."""
        # Levels are fetched, never searched: without links between them they cost no index.
        unlinked = models.HnswConfigDiff(m=0)
        kept = models.VectorParams(
            size=self.dimension, distance=models.Distance.DOT, on_disk=True, hnsw_config=unlinked
        )
        with self._explained():
            if self._client.collection_exists(self._side):
                self._client.delete_collection(self._side)
            self._client.create_collection(
                self._side, vectors_config={f"level-{i}": kept for i in range(1, levels + 1)}
            )
            if not self._local:
                self._client.create_payload_index(self._side, "valid", models.PayloadSchemaType.INTEGER)

    def prepare_about(self) -> None:
        """See `Store.prepare_about`."""
        with self._explained():
            if self._client.collection_exists(self._about):
                return
            try:
                self._client.create_collection(self._about, vectors_config={})
            except (ApiException, ValueError):
                if not self._client.collection_exists(self._about):  # else another one was faster
                    raise

    def has_records(self) -> bool:
        """See `Store.has_records`."""
        with self._explained():
            return bool(self._client.collection_exists(self._side))

    def detach(self) -> None:
        """See `Store.detach`."""
        with self._explained():
            for name in (self._about, self._side):  # records that nothing tells of are no damage
                if self._client.collection_exists(name):
                    self._client.delete_collection(name)

    def read_about(self, keys: Sequence[str] | None = None, *, kind: str = "") -> dict[str, str]:
        """See `Store.read_about`."""
        with self._explained():
            if not self._client.collection_exists(self._about):
                return {}
        if keys is None:
            match = models.FieldCondition(key="kind", match=models.MatchValue(value=kind))
            chosen = models.Filter(must=[match]) if kind else None
            pages = self._pages(self._about, None, 100, with_payload=True, scroll_filter=chosen)
            points = [point for page in pages for point in page]
        else:
            points = self._points(self._about, as_ids([_named(key) for key in keys], TEXT), with_payload=True)
        return {point.payload["key"]: point.payload["value"] for point in points}

    def write_about(self, texts: Mapping[str, str]) -> None:
        """See `Store.write_about`."""
        points = [
            models.PointStruct(
                id=_named(key),
                vector={},
                payload={"key": key, "value": value, "kind": key.partition(".")[0]},
            )
            for key, value in texts.items()
        ]
        self._put(self._about, points)

    def erase_about(self, keys: Sequence[str]) -> None:
        """See `Store.erase_about`."""
        if keys:
            with self._explained():
                chosen = models.PointIdsList(points=[_named(key) for key in keys])
                self._client.delete(self._about, chosen, wait=True)

    def _records(self, points: list[Any], levels: bool) -> Records:
        width = max((len(point.payload["neighbors"]) for point in points), default=0)
        near = no_ids((len(points), width), self.id_kind)
        similarities = np.full(near.shape, -np.inf, dtype=np.float32)
        depth = max((point.payload["levels"] for point in points), default=0) if levels else 0
        vectors = np.zeros((len(points), depth, self.dimension), dtype=np.float32)
        for place, point in enumerate(points):
            count = len(point.payload["similarities"])
            near[place] = as_ids(point.payload["neighbors"], self.id_kind)
            similarities[place, :count] = point.payload["similarities"]
            for i in range(1, depth + 1):
                if point.vector and f"level-{i}" in point.vector:
                    vectors[place, i - 1] = point.vector[f"level-{i}"]
        marks = as_ids([point.payload["mark"] for point in points], TEXT)
        valid = np.array([point.payload["valid"] for point in points], dtype=np.int64)
        return Records(
            as_ids([p.id for p in points], self.id_kind), marks, valid, near, similarities, vectors
        )

    def read(self, ids: Array, *, levels: bool = True) -> Records:
        """See `Store.read`."""
        return self._records(self._points(self._side, ids, with_payload=True, with_vectors=levels), levels)

    def scan(self, *, below: int | None = None, levels: bool = False) -> Iterator[Records]:
        """See `Store.scan`."""
        lower = models.FieldCondition(key="valid", range=models.Range(lt=below))
        chosen = None if below is None else models.Filter(must=[lower])
        settings = {"scroll_filter": chosen, "with_payload": True, "with_vectors": levels}
        for points in self._pages(self._side, None, self.batch, **settings):
            yield self._records(points, levels)

    def write(self, records: Records) -> None:
        """See `Store.write`."""
        there = present(records.neighbors).sum(axis=1)
        points = []
        for place, name in enumerate(records.ids.tolist()):
            made = {
                f"level-{i}": level.tolist()
                for i, level in enumerate(records.levels[place], 1)
                if level.any()
            }
            payload = {
                "mark": records.marks[place],
                "valid": int(records.valid[place]),
                "levels": records.levels.shape[1],
                "neighbors": records.neighbors[place].tolist(),
                # JSON has no infinity: similarities end where the neighbours do.
                "similarities": records.similarities[place, : there[place]].tolist(),
            }
            points.append(models.PointStruct(id=name, vector=made, payload=payload))
        self._put(self._side, points)

    def forget(self, ids: Array) -> None:
        """See `Store.forget`."""
        if len(ids):
            with self._explained():
                self._client.delete(self._side, models.PointIdsList(points=ids.tolist()), wait=True)

    def close(self) -> None:
        """See `Store.close`."""
        self._client.close()


def _named(key: str) -> str:
    """The id of a text."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, key))
