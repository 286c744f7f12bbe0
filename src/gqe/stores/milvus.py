"""Milvus: items in a collection of the user's, records beside it in `NAME_gqe` and `NAME_gqe_about`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pymilvus import DataType, MilvusClient, MilvusException

from gqe.embeddings import blocks
from gqe.errors import InputError
from gqe.filters import BOUNDS, Conditions, unknown_field
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
from gqe.stores.clients import CollectionStore, json_value, silence_clients, split_ids

# The most results Milvus gives at a time, and numbers that it keeps in a vector.
_MAX_RESULTS, _MAX_DIMENSIONS = 16384, 32768
# How widely a graph, and how many lists, are searched at least.
_MIN_EF, _NPROBE = 128, 32
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# How the client says that no server answers: it has one kind of exception for nearly everything.
_AWAY = ("unavailable", "connect", "deadline", "timeout", "retry run out")
_LEVELS, _UNUSED = "levels", "unused"
_READ = {"consistency_level": "Strong"}  # what was just written must be seen


class MilvusStore(CollectionStore):
    """A collection, on a server or in a file of Milvus Lite, and the records beside it.

    Args:
        address: `milvus://host:19530/collection` (`milvuss://` for TLS, `user:password@` or `token=`; `db=`
            for a database), or `milvus:///file.db?collection=NAME`; `vector=` names one of several vectors.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._known_levels: int | None = None  # until the attachment is looked at again
        if self._local and not Path(self._path).exists():
            raise InputError(f"{self.address}: no file {self._path}; check the path")
        with self._wrap_errors():
            if address.client is not None:
                self._client = address.client
                self._local = "lite" in str(self._client.get_server_version())
            elif self._local:
                self._client = MilvusClient(self._path)
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
            self._read_schema()

    def _read_schema(self) -> None:
        """Check the collection."""
        if not self._client.has_collection(self._name):
            there = ", ".join(sorted(self._client.list_collections())) or "none"
            raise InputError(f"{self.address}: no collection {self._name!r}; there are: {there}")
        schema = self._client.describe_collection(self._name)
        self._dynamic = bool(schema.get("enable_dynamic_field"))
        self._columns = [field["name"] for field in schema["fields"]]
        self._id_field = next(field for field in schema["fields"] if field.get("is_primary"))
        self._id = self._id_field["name"]
        self.id_kind = INT if self._id_field["type"] == DataType.INT64 else TEXT
        self._vectors = {f["name"] for f in schema["fields"] if "VECTOR" in DataType(f["type"]).name}
        vectors = {f["name"]: f for f in schema["fields"] if f["type"] == DataType.FLOAT_VECTOR}
        self._vector = self._where.options.get("vector") or (next(iter(vectors)) if len(vectors) == 1 else "")
        if self._vector not in vectors:
            there = ", ".join(vectors) or "none"
            raise InputError(
                f"{self.address}: no vector field {self._vector!r}; give vector=, one of: {there}"
            )
        self.dimension = int(vectors[self._vector]["params"]["dim"])
        names = self._client.list_indexes(self._name)
        indexes = [self._client.describe_index(self._name, name) for name in names]
        index = next((one for one in indexes if one and one["field_name"] == self._vector), None)
        if index is None:
            raise InputError(
                f"{self.address}: field {self._vector!r} has no index; create one with metric_type COSINE"
            )
        metric = str(index["metric_type"]).upper()
        if metric not in ("COSINE", "IP"):
            raise InputError(
                f"{self.address}: its metric is {metric}; drop the index of {self._vector!r}, make it with"
                " COSINE"
            )
        self.metric = "cosine" if metric == "COSINE" else "dot"
        self._index_type = str(index["index_type"]).upper()
        for name in (self._name, self._side, self._about):
            if self._client.has_collection(name):
                self._client.load_collection(name)

    @contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        """What the client raises becomes one line."""
        try:
            with silence_clients():
                yield
        except MilvusException as error:
            reason = self._where.redact(error)
            if self._local:
                raise InputError(
                    f"{self.address}: Milvus Lite refuses ({reason}); no other process may have the file open"
                ) from None
            away = any(word in reason.lower() for word in _AWAY)
            raise (Unreachable if away else InputError)(
                f"{self.address}: Milvus refuses or is out of reach ({reason}); check the address and that"
                " the server runs, then run the same again: it goes on where it was"
            ) from None
        except (ValueError, RuntimeError, OSError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.address}: Milvus refuses ({self._where.redact(error)})") from None

    def count(self) -> int:
        return int(self._query(self._name, "", ["count(*)"])[0]["count(*)"])

    def search(self, vectors: Array, k: int, *, filter: Conditions = (), exact: bool = False) -> SearchResult:
        if k > _MAX_RESULTS:
            raise InputError(f"k: Milvus gives at most {_MAX_RESULTS} results")
        if exact and self._index_type != "FLAT":
            raise InputError(
                f"{self.address}: its index is {self._index_type}, and Milvus searches exactly only with FLAT"
            )
        params = {}
        if "HNSW" in self._index_type:
            params = {"ef": max(k, _MIN_EF)}  # Milvus refuses less than k
        elif self._index_type.startswith("IVF"):
            params = {"nprobe": _NPROBE}
        expression = self._compile(filter)
        hits: list[list[tuple[Any, float]]] = []
        with self._wrap_errors():
            for part in blocks(len(vectors), 4 * self.dimension + 32 * k, BATCH_BYTES):
                answers = self._client.search(
                    self._name,
                    data=vectors[part].tolist(),
                    anns_field=self._vector,
                    limit=k,
                    filter=expression,
                    output_fields=[self._id],
                    search_params={"params": params},
                    **_READ,
                )
                hits += [[(hit[self._id], hit["distance"]) for hit in row] for row in answers]
        return rank_hits(hits, k, self.id_kind)

    def _compile(self, filter: Conditions) -> str:
        parts = []
        for field, values, bounds in filter:
            self._check_field(field)
            if values is not None:
                parts.append(f"{field} in {_quote(list(values))}" if values else f"{self._id} in []")
            parts += [f"{field} {BOUNDS[bound]} {_quote(value)}" for bound, value in bounds.items()]
        return " and ".join(parts)

    def _check_field(self, field: str) -> None:
        """Refuse a field that no item has: Milvus would find nothing without an error."""
        if field in self._columns or field in self._fields:
            return
        usable = self._dynamic and _FIELD_NAME.fullmatch(field) is not None
        if not usable or not self._query(self._name, f"exists {field}", [self._id], limit=1):
            raise unknown_field(field, self._columns)
        self._fields.add(field)

    def _ids(self, rows: list[dict[str, Any]]) -> Array:
        return as_ids([row[self._id] for row in rows], self.id_kind)

    def fetch(self, ids: Array) -> Batch:
        rows = self._rows(self._name, ids, [self._vector])
        vectors = np.array([row[self._vector] for row in rows], dtype=np.float32)
        return Batch(self._ids(rows), vectors.reshape(-1, self.dimension))

    def fields(self, ids: Array) -> dict[Any, dict[str, Any]]:
        # Fields outside of the schema come only with all of them.
        plain = [name for name in self._columns if name not in self._vectors and name != self._id]
        unwanted = {self._id, *self._vectors}
        return {
            row[self._id]: {name: value for name, value in row.items() if name not in unwanted}
            for row in self._rows(self._name, ids, ["*"] if self._dynamic else plain)
        }

    def existing_ids(self, ids: Array) -> Array:
        return self._ids(self._rows(self._name, ids, []))

    def names(self, size: int = 10_000) -> Iterator[Array]:
        return split_ids(self._all_ids(self._name), size)

    def iterate(self, after: Any = None, size: int | None = None) -> Iterator[Batch]:
        yield from self._fetch_after(self._all_ids(self._name), after, size)

    def _query(
        self, collection: str, filter: str, fields: list[str], **settings: Any
    ) -> list[dict[str, Any]]:
        with self._wrap_errors():
            rows = self._client.query(collection, filter=filter, output_fields=fields, **_READ, **settings)
            return [dict(row) for row in rows]

    def _among(self, ids: Array) -> str:
        return f"{self._id} in {_quote(ids.tolist())}"

    def _rows(self, collection: str, ids: Array, fields: list[str]) -> list[dict[str, Any]]:
        """Rows by id that exist, in the order of the ids."""
        known: dict[Any, dict[str, Any]] = {}
        for some in split_ids(ids, self.batch):
            rows = self._query(collection, self._among(some), [self._id, *fields])
            known |= {row[self._id]: row for row in rows}
        return [known[name] for name in ids.tolist() if name in known]

    def _all_ids(self, collection: str, filter: str | None = None) -> Array:
        """All ids, sorted: Milvus gives rows in no order that one could go on from."""
        if filter is None:
            filter = f"{self._id} >= {-(2**63) + 1}" if self.id_kind == INT else f'{self._id} != ""'
        if self._local:
            rows = self._query(collection, filter, [self._id])
        else:
            rows = []
            with self._wrap_errors():
                pages = self._client.query_iterator(
                    collection, filter=filter, output_fields=[self._id], batch_size=10_000, **_READ
                )
                while page := pages.next():
                    rows += page
                pages.close()
        ids = as_ids(sorted(row[self._id] for row in rows), self.id_kind)
        if self.id_kind == INT and len(ids) and ids[0] < 0:
            raise InputError(f"{self.address}: item {ids[0]}: ids must not be negative; -1 means none")
        return ids

    def upsert(self, ids: Array, vectors: Array, fields: Fields = None) -> None:
        # Milvus replaces whole rows.
        known = {row[self._id]: row for row in self._rows(self._name, ids, ["*"])}
        rows = []
        for place, name in enumerate(ids.tolist()):
            values = {field: json_value(column[place]) for field, column in (fields or {}).items()}
            item = {self._id: name, self._vector: vectors[place].tolist()}
            rows.append(known.get(name, {}) | item | values)
        self._put(self._name, rows, 16 * self.dimension)

    def _put(self, collection: str, rows: list[dict[str, Any]], row_bytes: int) -> None:
        with self._wrap_errors():
            for part in blocks(len(rows), row_bytes, BATCH_BYTES):
                self._client.upsert(collection, rows[part])

    def _delete(self, collection: str, ids: Array) -> None:
        with self._wrap_errors():
            for some in split_ids(ids, self.batch):
                self._client.delete(collection, filter=self._among(some))

    def _exists(self, collection: str) -> bool:
        with self._wrap_errors():
            return bool(self._client.has_collection(collection))

    def _drop(self, collection: str) -> None:
        self._known_levels = None
        with self._wrap_errors():
            self._client.drop_collection(collection)

    def _create(self, collection: str, fields: Sequence[tuple[Any, ...]], vector: str, size: int) -> None:
        """Create a collection of fields (name, type, settings), the first of them the key, and a vector."""
        schema, index = self._client.create_schema(auto_id=False), self._client.prepare_index_params()
        for name, kind, settings in fields:
            schema.add_field(name, kind, is_primary=name == fields[0][0], **settings)
        schema.add_field(vector, DataType.FLOAT_VECTOR, dim=size)
        index.add_index(vector, index_type="FLAT", metric_type="IP")
        self._client.create_collection(collection, schema=schema, index_params=index)

    def prepare(self, width: int, levels: int) -> None:
        # All levels in one vector: servers before 2.4 take one per row, later ones a few, none zero.
        name, size = (_LEVELS, levels * self.dimension) if levels else (_UNUSED, 2)
        if size > _MAX_DIMENSIONS:
            raise InputError(
                f"{self.address}: {levels} levels of {self.dimension} dimensions are more than the"
                f" {_MAX_DIMENSIONS} numbers that Milvus keeps in a vector; attach fewer levels"
            )
        key: tuple[Any, ...] = (self._id, DataType.INT64, {})
        if self.id_kind == TEXT:
            length = int(self._id_field["params"].get("max_length", 512))
            key = (self._id, DataType.VARCHAR, {"max_length": length})
        mark = ("mark", DataType.VARCHAR, {"max_length": 64})
        fields = [key, mark, ("valid", DataType.INT64, {}), ("lists", DataType.JSON, {})]
        self._known_levels = None
        if self._exists(self._side):
            self._drop(self._side)
        with self._wrap_errors():
            self._create(self._side, fields, name, size)

    def prepare_about(self) -> None:
        if self._exists(self._about):
            return
        key = ("key", DataType.VARCHAR, {"max_length": 256})
        value = ("value", DataType.VARCHAR, {"max_length": 65535})
        with self._wrap_errors():
            try:
                self._create(self._about, [key, value], _UNUSED, 2)
            except MilvusException:
                if not self._client.has_collection(self._about):  # else another process was faster
                    raise

    def read_about(self, keys: Sequence[str] | None = None, *, kind: str = "") -> dict[str, str]:
        self._known_levels = None
        if not self._exists(self._about):
            return {}
        expression = f"key in {_quote(list(keys))}" if keys is not None else 'key != ""'
        if kind:
            expression += f" and key like {_quote(f'{kind}.%')}"
        rows = self._query(self._about, expression, ["key", "value"])
        return {row["key"]: row["value"] for row in rows}

    def write_about(self, texts: Mapping[str, str]) -> None:
        rows = [{"key": key, "value": value, _UNUSED: [0.0, 0.0]} for key, value in texts.items()]
        self._put(self._about, rows, 64_000)

    def erase_about(self, keys: Sequence[str]) -> None:
        if keys:
            with self._wrap_errors():
                self._client.delete(self._about, filter=f"key in {_quote(list(keys))}")

    def read(self, ids: Array, *, levels: bool = True) -> Records:
        depth = self._num_levels() if levels else 0
        rows = []
        for row in self._rows(self._side, ids, ["mark", "valid", "lists", *([_LEVELS] if depth else [])]):
            vectors = np.reshape(row[_LEVELS], (depth, self.dimension)) if depth else ()
            lists = row["lists"]["neighbors"], row["lists"]["similarities"]
            rows.append((row[self._id], row["mark"], row["valid"], *lists, vectors))
        return self.make_records(rows, depth)

    def _num_levels(self) -> int:
        if self._known_levels is None:
            with self._wrap_errors():
                fields = self._client.describe_collection(self._side)["fields"]
            sizes = [int(field["params"]["dim"]) for field in fields if field["name"] == _LEVELS]
            self._known_levels = sum(sizes) // self.dimension
        return self._known_levels

    def scan(self, *, below: int | None = None, levels: bool = False) -> Iterator[Records]:
        ids = self._all_ids(self._side, None if below is None else f"valid < {below}")
        for some in split_ids(ids, self.batch):
            yield self.read(some, levels=levels)

    def write(self, records: Records) -> None:
        rows: list[dict[str, Any]] = []
        for name, mark, valid, neighbors, similarities, levels in records.rows():
            # JSON has no infinity: similarities end where the neighbours do.
            lists = {
                "neighbors": neighbors,
                "similarities": [value for value in similarities if value > -np.inf],
            }
            vector = {_LEVELS: levels.reshape(-1).tolist()} if levels.size else {_UNUSED: [0.0, 0.0]}
            rows.append({self._id: name, "mark": mark, "valid": valid, "lists": lists, **vector})
        self._put(self._side, rows, 16 * self.dimension)

    def close(self) -> None:
        if self._where.client is None:
            with self._wrap_errors():
                self._client.close()


def _quote(value: Any) -> str:
    """A value as Milvus reads it: texts quoted, nothing of them read as an expression."""
    return json.dumps(value, ensure_ascii=False)
