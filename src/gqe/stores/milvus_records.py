"""Milvus: the connection, and what is kept beside the user's items in `NAME_gqe` and `NAME_gqe_about`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from gqe.stores.quiet import quiet

try:
    from pymilvus import DataType, MilvusClient, MilvusException
except ImportError as error:
    raise install("pymilvus", "milvus") from error

# How the client says that no server answers: it has one kind of exception for nearly everything.
_AWAY = ("unavailable", "connect", "deadline", "timeout", "retry run out")
LEVELS = "levels"
_MOST_DIMENSIONS = 32768
READ = {"consistency_level": "Strong"}  # what was just written must be seen


class MilvusRecords(Store):
    """A collection, on a server or in a file of Milvus Lite, and the records beside it.

    Args:
        address: `milvus://host:19530/collection` (`milvuss://` for TLS, `user:password@` or `token=`; `db=`
            for a database), or `milvus:///file.db?collection=NAME`; `vector=` names one of several vectors.
    """

    def __init__(self, address: Address) -> None:
        self._where = address
        self.address = address.shown
        self._name, path = collection_of(address)
        self._side, self._about = f"{self._name}_gqe", f"{self._name}_gqe_about"
        self._local = bool(path)
        self._fields: set[str] = set()
        self._known_levels: int | None = None  # until the attachment is looked at again
        if path and not Path(path).exists():
            raise InputError(f"{self.address}: no file {path}; check the path")
        with self._explained():
            if path:
                self._client = MilvusClient(path)
            else:
                scheme = "https" if address.scheme == "milvuss" else "http"
                token = address.options.get("token") or (
                    f"{address.user}:{address.password}" if address.user else ""
                )
                self._client = MilvusClient(
                    f"{scheme}://{address.host}:{address.port or 19530}",
                    token=token,
                    db_name=address.options.get("db", ""),
                    timeout=20,
                )
            self._look()

    def _look(self) -> None:
        """Check the collection."""
        if not self._client.has_collection(self._name):
            there = ", ".join(sorted(self._client.list_collections())) or "none"
            raise InputError(f"{self.address}: no collection {self._name!r}; there are: {there}")
        described = self._client.describe_collection(self._name)
        fields = described["fields"]
        self._dynamic = bool(described.get("enable_dynamic_field"))
        self._known = [field["name"] for field in fields]
        primary = next(field for field in fields if field.get("is_primary"))
        self._id, self._id_field = primary["name"], primary
        self.id_kind = INT if primary["type"] == DataType.INT64 else TEXT
        vectors = {field["name"]: field for field in fields if field["type"] == DataType.FLOAT_VECTOR}
        wanted = self._where.options.get("vector") or (next(iter(vectors)) if len(vectors) == 1 else "")
        there = ", ".join(vectors) or "none"
        if wanted not in vectors:
            raise InputError(f"{self.address}: no vector field {wanted!r}; give vector=, one of: {there}")
        self._vector = wanted
        self.dimension = int(vectors[wanted]["params"]["dim"])
        indexes = [
            self._client.describe_index(self._name, name) for name in self._client.list_indexes(self._name)
        ]
        index = next((one for one in indexes if one and one["field_name"] == wanted), None)
        if index is None:
            raise InputError(
                f"{self.address}: field {wanted!r} has no index; create one with metric_type COSINE"
            )
        metric = str(index["metric_type"]).upper()
        if metric not in ("COSINE", "IP"):
            raise InputError(
                f"{self.address}: its metric is {metric}; drop the index of {wanted!r}, make it with COSINE"
            )
        self.metric = "cosine" if metric == "COSINE" else "dot"
        self._index_type = str(index["index_type"]).upper()
        self._client.load_collection(self._name)
        for name in (self._side, self._about):
            if self._client.has_collection(name):
                self._client.load_collection(name)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            with quiet():
                yield
        except MilvusException as error:
            said = self._where.scrubbed(error)
            if self._local:
                raise InputError(
                    f"{self.address}: Milvus Lite refuses ({said}); no other process may have the file open"
                ) from None
            away = any(word in said.lower() for word in _AWAY)
            raise (Unreachable if away else InputError)(
                f"{self.address}: Milvus refuses or is out of reach ({said}); check the address and that the"
                " server runs, then run the same again: it goes on where it was"
            ) from None
        except (ValueError, RuntimeError, OSError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.address}: Milvus refuses ({self._where.scrubbed(error)})") from None

    def _query(
        self, collection: str, filter: str, fields: list[str], **settings: Any
    ) -> list[dict[str, Any]]:
        with self._explained():
            found = self._client.query(collection, filter=filter, output_fields=fields, **READ, **settings)
            return [dict(row) for row in found]

    def _among(self, ids: Array) -> str:
        return f"{self._id} in {as_text(ids.tolist())}"

    def _rows(self, collection: str, ids: Array, fields: list[str]) -> list[dict[str, Any]]:
        """Rows by id that are there, in the order asked for."""
        known: dict[Any, dict[str, Any]] = {}
        for start in range(0, len(ids), self.batch):
            some = self._query(collection, self._among(ids[start : start + self.batch]), [self._id, *fields])
            known |= {row[self._id]: row for row in some}
        return [known[name] for name in ids.tolist() if name in known]

    def _all_ids(self, collection: str, filter: str) -> Array:
        """All ids, sorted: Milvus gives rows in no order that one could go on from."""
        if self._local:
            rows = self._query(collection, filter, [self._id])
        else:
            rows = []
            with self._explained():
                pages = self._client.query_iterator(
                    collection, filter=filter, output_fields=[self._id], batch_size=10_000, **READ
                )
                while page := pages.next():
                    rows += page
                pages.close()
        ids = as_ids(sorted(row[self._id] for row in rows), self.id_kind)
        if self.id_kind == INT and len(ids) and ids[0] < 0:
            raise InputError(f"{self.address}: item {ids[0]}: ids must not be negative; -1 means none")
        return ids

    def _everything(self) -> str:
        return f"{self._id} >= {-(2**63) + 1}" if self.id_kind == INT else f'{self._id} != ""'

    def _put(self, collection: str, rows: list[dict[str, Any]]) -> None:
        with self._explained():
            for part in blocks(len(rows), 16 * self.dimension, BATCH_BYTES):
                self._client.upsert(collection, rows[part])

    def _drop(self, collection: str, ids: Array) -> None:
        with self._explained():
            for start in range(0, len(ids), self.batch):
                self._client.delete(collection, filter=self._among(ids[start : start + self.batch]))

    def prepare(self, width: int, levels: int) -> None:
        """See `Store.prepare`."""
        self._known_levels = None
        with self._explained():
            schema, index = self._client.create_schema(auto_id=False), self._client.prepare_index_params()
            if self.id_kind == INT:
                schema.add_field(self._id, DataType.INT64, is_primary=True)
            else:
                longest = int(self._id_field["params"].get("max_length", 512))
                schema.add_field(self._id, DataType.VARCHAR, is_primary=True, max_length=longest)
            schema.add_field("mark", DataType.VARCHAR, max_length=64)
            schema.add_field("valid", DataType.INT64)
            schema.add_field("lists", DataType.JSON)
            # All levels in one vector, one after the other: servers before 2.4 take one a row, later ones a
            # few. And a collection must have one.
            name, size = (LEVELS, levels * self.dimension) if levels else ("unused", 2)
            if size > _MOST_DIMENSIONS:
                raise InputError(
                    f"{self.address}: {levels} levels of {self.dimension} dimensions are more than the"
                    f" {_MOST_DIMENSIONS} numbers that Milvus keeps in a vector; attach fewer levels"
                )
            schema.add_field(name, DataType.FLOAT_VECTOR, dim=size)
            index.add_index(name, index_type="FLAT", metric_type="IP")
            if self._client.has_collection(self._side):
                self._client.drop_collection(self._side)
            self._client.create_collection(self._side, schema=schema, index_params=index)

    def prepare_about(self) -> None:
        """See `Store.prepare_about`."""
        with self._explained():
            if self._client.has_collection(self._about):
                return
            schema, index = self._client.create_schema(auto_id=False), self._client.prepare_index_params()
            schema.add_field("key", DataType.VARCHAR, is_primary=True, max_length=256)
            schema.add_field("value", DataType.VARCHAR, max_length=65535)
            schema.add_field("unused", DataType.FLOAT_VECTOR, dim=2)
            index.add_index("unused", index_type="FLAT", metric_type="IP")
            try:
                self._client.create_collection(self._about, schema=schema, index_params=index)
            except MilvusException:
                if not self._client.has_collection(self._about):  # else another one was faster
                    raise

    def has_records(self) -> bool:
        """See `Store.has_records`."""
        with self._explained():
            return bool(self._client.has_collection(self._side))

    def detach(self) -> None:
        """See `Store.detach`."""
        self._known_levels = None
        with self._explained():
            for name in (self._about, self._side):  # records that nothing tells of are no damage
                if self._client.has_collection(name):
                    self._client.drop_collection(name)

    def read_about(self, keys: Sequence[str] | None = None, *, kind: str = "") -> dict[str, str]:
        """See `Store.read_about`."""
        self._known_levels = None
        with self._explained():
            if not self._client.has_collection(self._about):
                return {}
        chosen = f"key in {as_text(list(keys))}" if keys is not None else 'key != ""'
        if kind:
            chosen += f" and key like {as_text(f'{kind}.%')}"
        rows = self._query(self._about, chosen, ["key", "value"])
        return {row["key"]: row["value"] for row in rows}

    def write_about(self, texts: Mapping[str, str]) -> None:
        """See `Store.write_about`."""
        rows = [{"key": key, "value": value, "unused": [0.0, 0.0]} for key, value in texts.items()]
        with self._explained():
            for part in blocks(len(rows), 64_000, BATCH_BYTES):
                self._client.upsert(self._about, rows[part])

    def erase_about(self, keys: Sequence[str]) -> None:
        """See `Store.erase_about`."""
        if keys:
            with self._explained():
                self._client.delete(self._about, filter=f"key in {as_text(list(keys))}")

    def _level_count(self) -> int:
        if self._known_levels is None:
            with self._explained():
                fields = self._client.describe_collection(self._side)["fields"]
            sizes = [int(field["params"]["dim"]) for field in fields if field["name"] == LEVELS]
            self._known_levels = sum(sizes) // self.dimension
        return self._known_levels

    def _records(self, ids: Array, levels: bool) -> Records:
        depth = self._level_count() if levels else 0
        rows = self._rows(self._side, ids, ["mark", "valid", "lists", *([LEVELS] if depth else [])])
        width = max((len(row["lists"]["neighbors"]) for row in rows), default=0)
        near = no_ids((len(rows), width), self.id_kind)
        similarities = np.full(near.shape, -np.inf, dtype=np.float32)
        vectors = np.zeros((len(rows), depth, self.dimension), dtype=np.float32)
        for place, row in enumerate(rows):
            known = row["lists"]["similarities"]
            near[place] = as_ids(row["lists"]["neighbors"], self.id_kind)
            similarities[place, : len(known)] = known
            if depth:
                vectors[place] = np.reshape(row[LEVELS], (depth, self.dimension))
        return Records(
            as_ids([row[self._id] for row in rows], self.id_kind),
            as_ids([row["mark"] for row in rows], TEXT),
            np.array([row["valid"] for row in rows], dtype=np.int64),
            near,
            similarities,
            vectors,
        )

    def read(self, ids: Array, *, levels: bool = True) -> Records:
        """See `Store.read`."""
        return self._records(ids, levels)

    def scan(self, *, below: int | None = None, levels: bool = False) -> Iterator[Records]:
        """See `Store.scan`."""
        ids = self._all_ids(self._side, self._everything() if below is None else f"valid < {below}")
        for start in range(0, len(ids), self.batch):
            yield self._records(ids[start : start + self.batch], levels)

    def write(self, records: Records) -> None:
        """See `Store.write`."""
        there = present(records.neighbors).sum(axis=1)
        rows = []
        for place, name in enumerate(records.ids.tolist()):
            lists = {
                "neighbors": records.neighbors[place].tolist(),
                "similarities": records.similarities[place, : there[place]].tolist(),
            }
            flat = records.levels[place].reshape(-1).tolist()
            levels: dict[str, Any] = {LEVELS: flat} if flat else {"unused": [0.0, 0.0]}
            fixed: dict[str, Any] = {
                "mark": records.marks[place],
                "valid": int(records.valid[place]),
                "lists": lists,
            }
            rows.append({self._id: name, **fixed, **levels})
        self._put(self._side, rows)

    def forget(self, ids: Array) -> None:
        """See `Store.forget`."""
        self._drop(self._side, ids)

    def close(self) -> None:
        """See `Store.close`."""
        with self._explained():
            self._client.close()


def as_text(value: Any) -> str:
    """A value as Milvus reads it: texts quoted, nothing of them read as an expression."""
    return json.dumps(value, ensure_ascii=False)
