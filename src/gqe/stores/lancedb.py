"""LanceDB: items in a table of the user's, records beside it in `NAME_gqe` and `NAME_gqe_about`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa

from gqe.embeddings import blocks
from gqe.errors import InputError
from gqe.filters import BOUNDS, Conditions, unknown_field
from gqe.results import SearchResult, plain_value
from gqe.stores.address import Address
from gqe.stores.base import BATCH_BYTES, INT, TEXT, Array, Batch, Fields, Records, as_ids, rank_hits
from gqe.stores.clients import CollectionStore, json_value, split_ids

# How widely an index of vectors is searched, and how many times the results are ranked by whole vectors.
_NPROBES, _MIN_EF, _REFINE = 32, 128, 4
_ID, _LEVELS = "id", "levels"  # columns of records
_ABOUT = pa.schema([("key", pa.string()), ("value", pa.string())])
# Every write adds a file and a version to a table; so many are joined.
_WRITES_TO_JOIN = 64


class LanceStore(CollectionStore):
    """A table in a folder, and the records beside it.

    Every step of ours is one commit of LanceDB, and every read sees the newest version.

    Args:
        address: `lancedb:///folder?table=NAME`; `vector=` names one of several columns of vectors, `id=` that
            of the ids.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        if address.host:
            raise InputError(f"{self.address}: LanceDB is a folder; write lancedb:///path?table=NAME")
        if self._local and not Path(self._path).is_dir():
            raise InputError(f"{self.address}: no folder {self._path}; check the path")
        self._writes = 0
        with self._wrap_errors():
            self._client: Any = lancedb.connect(self._path) if address.client is None else address.client
            self._read_schema()

    def _read_schema(self) -> None:
        """Check the table."""
        if not self._exists(self._name):
            there = ", ".join(self._client.list_tables().tables) or "none"
            raise InputError(f"{self.address}: no table {self._name!r}; there are: {there}")
        table = self._table(self._name)
        self._schema: pa.Schema = table.schema
        self._id = self._where.options.get("id") or _ID
        if self._id not in self._schema.names:
            there = ", ".join(self._schema.names)
            raise InputError(f"{self.address}: no column {self._id!r}; there are {there}; give id=")
        kind = self._schema.field(self._id).type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InputError(f"{self.address}: column {self._id!r} is {kind}; ids are whole numbers or texts")
        self.id_kind = INT if pa.types.is_integer(kind) else TEXT
        vectors = [field.name for field in self._schema if _is_vector(field.type)]
        self._vector = self._where.options.get("vector") or (vectors[0] if len(vectors) == 1 else "")
        if self._vector not in vectors:
            there = ", ".join(vectors) or "none"
            raise InputError(f"{self.address}: no vectors {self._vector!r}; give vector=, one of: {there}")
        self._columns = [name for name in self._schema.names if name != self._id and name not in vectors]
        self.dimension = self._schema.field(self._vector).type.list_size
        indexes = [one for one in table.list_indices() if one.columns == [self._vector]]
        self._indexed = bool(indexes)
        distance = table.index_stats(indexes[0].name).distance_type if indexes else "cosine"
        if distance not in ("cosine", "dot"):
            raise InputError(
                f"{self.address}: the index of {self._vector!r} is for {distance}; make it anew for cosine"
            )
        self._distance, self.metric = distance, distance

    @contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        """What LanceDB raises becomes one line."""
        try:
            yield
        except (ValueError, RuntimeError, OSError, pa.ArrowException) as error:
            if isinstance(error, InputError):
                raise
            reason = self._where.redact(error)
            raise InputError(f"{self.address}: LanceDB refuses ({reason})") from None

    def _table(self, name: str) -> Any:
        """The newest version of a table."""
        return self._client.open_table(name)

    def count(self) -> int:
        with self._wrap_errors():
            return int(self._table(self._name).count_rows(self._there))

    @property
    def _there(self) -> str:
        """What is an item: a row with a vector."""
        return f"{_name(self._vector)} IS NOT NULL"

    def search(self, vectors: Array, k: int, *, filter: Conditions = (), exact: bool = False) -> SearchResult:
        condition, hits = self._compile(filter), list[list[tuple[Any, float]]]()
        with self._wrap_errors():
            table = self._table(self._name)
            for part in blocks(len(vectors), 4 * self.dimension + 32 * k, BATCH_BYTES):
                asked = table.search(vectors[part].astype(np.float32), vector_column_name=self._vector)
                asked = asked.distance_type(self._distance).limit(k).select([self._id, "_distance"])
                if condition:
                    asked = asked.where(condition, prefilter=True)
                if exact:
                    asked = asked.bypass_vector_index()
                elif self._indexed:
                    asked = asked.nprobes(_NPROBES).ef(max(k * _REFINE, _MIN_EF)).refine_factor(_REFINE)
                found = asked.to_arrow()
                rows: list[list[tuple[Any, float]]] = [[] for _ in vectors[part]]
                places = found["query_index"].to_pylist() if len(rows) > 1 else [0] * len(found)
                scores = (1 - found["_distance"].to_numpy()).tolist()
                for place, name, score in zip(places, found[self._id].to_pylist(), scores, strict=True):
                    rows[place].append((name, score))
                hits += rows
        return rank_hits(hits, k, self.id_kind)

    def _compile(self, filter: Conditions) -> str:
        parts = []
        for field, values, bounds in filter:
            if field != self._id and field not in self._columns:
                raise unknown_field(field, [self._id, *self._columns])
            if values is not None:
                parts.append(_among(field, values))
            parts += [f"{_name(field)} {BOUNDS[bound]} {_quote(value)}" for bound, value in bounds.items()]
        return " AND ".join(f"({part})" for part in parts)

    def fetch(self, ids: Array) -> Batch:
        rows = self._rows(self._name, self._id, ids, [self._vector], self._there)
        vectors = _matrix(rows[self._vector], self.dimension)
        return Batch(as_ids(rows[self._id].to_pylist(), self.id_kind), vectors)

    def fields(self, ids: Array) -> dict[Any, dict[str, Any]]:
        rows = self._rows(self._name, self._id, ids, self._columns, self._there).to_pylist()
        return {row.pop(self._id): plain_value(row) for row in rows}

    def existing_ids(self, ids: Array) -> Array:
        found = self._rows(self._name, self._id, ids, [], self._there)[self._id]
        return as_ids(found.to_pylist(), self.id_kind)

    def names(self, size: int = 10_000) -> Iterator[Array]:
        return split_ids(self._all_ids(self._name, self._id, self._there), size)

    def iterate(self, after: Any = None, size: int | None = None) -> Iterator[Batch]:
        yield from self._fetch_after(self._all_ids(self._name, self._id, self._there), after, size)

    def _select(self, table: str, condition: str, columns: list[str]) -> pa.Table:
        with self._wrap_errors():
            asked = self._table(table).search().select(columns)
            return (asked.where(condition) if condition else asked).to_arrow()

    def _rows(self, table: str, key: str, ids: Array, columns: list[str], condition: str = "") -> pa.Table:
        """Rows by id that exist, in the order of the ids."""
        wanted = [_among(key, ids.tolist()), *([condition] if condition else [])]
        found = self._select(table, " AND ".join(wanted), [key, *columns])
        places = {name: place for place, name in enumerate(found[key].to_pylist())}
        return found.take(pa.array([places[name] for name in ids.tolist() if name in places], pa.int64()))

    def _all_ids(self, table: str, key: str, condition: str) -> Array:
        """All ids, sorted: LanceDB has no order that one could go on from."""
        ids = as_ids(sorted(self._select(table, condition, [key])[key].to_pylist()), self.id_kind)
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if len(twice):
            raise InputError(f"{self.address}: item {ids[twice[0]]} is there twice; ids must be unique")
        if self.id_kind == INT and len(ids) and ids[0] < 0:
            raise InputError(f"{self.address}: item {ids[0]}: ids must not be negative; -1 means none")
        return ids

    def upsert(self, ids: Array, vectors: Array, fields: Fields = None) -> None:
        unknown = [name for name in fields or {} if name not in self._columns]
        if unknown:
            raise InputError(f"fields: no column {unknown[0]!r}; there are {', '.join(self._columns)}")
        # LanceDB replaces whole rows.
        known = self._rows(self._name, self._id, ids, [n for n in self._schema.names if n != self._id])
        before = {row[self._id]: row for row in known.to_pylist()}
        kept = vectors.astype(self._schema.field(self._vector).type.value_type.to_pandas_dtype())
        rows = []
        for place, name in enumerate(ids.tolist()):
            values = {field: json_value(column[place]) for field, column in (fields or {}).items()}
            rows.append(before.get(name, {}) | {self._id: name, self._vector: kept[place]} | values)
        with self._wrap_errors():
            self._put(self._name, self._id, pa.Table.from_pylist(rows, schema=self._schema))

    def _put(self, table: str, key: str, rows: pa.Table) -> None:
        """Write rows in one commit."""
        with self._wrap_errors():
            merge = self._table(table).merge_insert(key)
            merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def _delete(self, collection: str, ids: Array) -> None:
        with self._wrap_errors():
            key = self._id if collection == self._name else _ID
            self._table(collection).delete(_among(key, ids.tolist()))

    def _exists(self, collection: str) -> bool:
        with self._wrap_errors():
            return collection in self._client.list_tables().tables

    def _drop(self, collection: str) -> None:
        with self._wrap_errors():
            self._client.drop_table(collection)

    def prepare(self, width: int, levels: int) -> None:
        key = pa.int64() if self.id_kind == INT else pa.string()
        columns = [(_ID, key), ("mark", pa.string()), ("valid", pa.int64())]
        columns += [("neighbors", pa.list_(key)), ("similarities", pa.list_(pa.float32()))]
        if self._exists(self._side):
            self._drop(self._side)
        if levels:
            columns.append((_LEVELS, pa.list_(pa.float32(), levels * self.dimension)))
        with self._wrap_errors():
            self._client.create_table(self._side, schema=pa.schema(columns))

    def prepare_about(self) -> None:
        if not self._exists(self._about):
            with self._wrap_errors():
                self._client.create_table(self._about, schema=_ABOUT, exist_ok=True)

    def read_about(self, keys: Sequence[str] | None = None, *, kind: str = "") -> dict[str, str]:
        if not self._exists(self._about):
            return {}
        rows = self._select(self._about, "" if keys is None else _among("key", keys), ["key", "value"])
        texts = dict(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
        return {key: text for key, text in texts.items() if not kind or key.startswith(f"{kind}.")}

    def write_about(self, texts: Mapping[str, str]) -> None:
        rows = pa.table([list(texts), list(texts.values())], schema=_ABOUT)
        self._put(self._about, "key", rows)

    def erase_about(self, keys: Sequence[str]) -> None:
        if keys:
            with self._wrap_errors():
                self._table(self._about).delete(_among("key", keys))

    def read(self, ids: Array, *, levels: bool = True) -> Records:
        with self._wrap_errors():
            names = self._table(self._side).schema.names
        columns = [name for name in names if name != _ID and (levels or name != _LEVELS)]
        found = self._rows(self._side, _ID, ids, columns)
        depth = 0
        vectors: Any = [()] * len(found)
        if _LEVELS in columns:
            size = found.schema.field(_LEVELS).type.list_size
            depth = size // self.dimension
            vectors = _matrix(found[_LEVELS], size).reshape(-1, depth, self.dimension)
        plain = ("mark", "valid", "neighbors", "similarities")
        parts = [found[name].to_pylist() for name in (_ID, *plain)]
        return self.make_records(list(zip(*parts, vectors, strict=True)), depth)

    def scan(self, *, below: int | None = None, levels: bool = False) -> Iterator[Records]:
        ids = self._all_ids(self._side, _ID, "" if below is None else f"valid < {below}")
        for some in split_ids(ids, self.batch):
            yield self.read(some, levels=levels)

    def write(self, records: Records) -> None:
        if not len(records.ids):
            return
        with self._wrap_errors():
            schema = self._table(self._side).schema
            names, marks, valid, neighbors, similarities, levels = records
            columns = [part.tolist() for part in (names, marks, valid, neighbors, similarities)]
            if _LEVELS in schema.names:
                flat = pa.array(np.ascontiguousarray(levels, dtype=np.float32).reshape(-1))
                columns.append(pa.FixedSizeListArray.from_arrays(flat, levels[0].size))
            self._put(self._side, _ID, pa.table(columns, schema=schema))
            self._writes += 1
            if self._writes % _WRITES_TO_JOIN == 0:
                self._table(self._side).optimize()

    def close(self) -> None:
        """Nothing is held open between two calls."""


def _is_vector(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type))


def _matrix(column: pa.ChunkedArray, width: int) -> Array:
    """(p, width) float32 of a column of lists of one length."""
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, dtype=np.float32).reshape(-1, width)


def _among(field: str, values: Sequence[Any]) -> str:
    return f"{_name(field)} IN ({', '.join(map(_quote, values))})" if len(values) else "false"


def _name(field: str) -> str:
    """A column as SQL reads it."""
    return f"`{field}`"


def _quote(value: Any) -> str:
    """A value as SQL reads it: texts quoted, nothing of them read as an expression."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
