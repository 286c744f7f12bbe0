"""PostgreSQL with pgvector: items in a table of the user's, records beside it in `NAME_gqe`."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import psycopg
from pgvector import Vector
from psycopg.sql import SQL, Composable, Identifier, Literal

from gqe.errors import InputError
from gqe.filters import BOUNDS, Conditions, unknown_field
from gqe.results import SearchResult
from gqe.stores.address import Address
from gqe.stores.base import (
    INT,
    TEXT,
    Array,
    Batch,
    ChangedItems,
    Fields,
    Records,
    Store,
    as_ids,
    rank_hits,
)
from gqe.stores.pgvector_database import Database, Schema, read_schema

# The largest hnsw.ef_search that pgvector takes.
_MAX_EF = 1000
_CREATED_BY_ANOTHER = (
    psycopg.errors.DuplicateObject,
    psycopg.errors.DuplicateTable,
    psycopg.errors.UniqueViolation,
)
# Items without a record, or with one of another vector; and records without an item.
_DIFFERENT = SQL(
    "FROM (SELECT t.{id}, r.mark IS NULL AS fresh FROM {table} t LEFT JOIN {side} r ON r.{id} = t.{id}"
    " WHERE t.{vector} IS NOT NULL AND r.mark IS DISTINCT FROM md5(vector_send(t.{vector}::vector)))"
    " AS different WHERE true"
)
_ORPHANS = SQL(
    "FROM (SELECT r.{id} FROM {side} r WHERE NOT EXISTS (SELECT FROM {table} t WHERE t.{id} = r.{id}"
    " AND t.{vector} IS NOT NULL)) AS orphans WHERE true"
)


class PgvectorStore(Store):
    """A table with a `vector` or `halfvec` column, and the records beside it.

    Args:
        address: `postgresql://user@host/db?table=items&vector=embedding&id=id`; also `ef_search=` (HNSW) and
            `probes=` (IVFFlat).
    """

    def __init__(self, address: Address) -> None:
        self.address = address.display
        self._database = Database(address)
        options = self._database.options
        parts = options["table"].split(".")
        self._table = Identifier(*parts)
        self._side = Identifier(*parts[:-1], parts[-1] + "_gqe")
        self._about = Identifier(*parts[:-1], parts[-1] + "_gqe_about")
        self._schema: Schema = read_schema(self._database, self._table)
        self.dimension = self._schema.dimension
        self.metric = self._schema.metric
        self.id_kind = INT if self._schema.id_type in ("smallint", "integer", "bigint") else TEXT
        self._id, self._vector = Identifier(options["id"]), Identifier(options["vector"])
        self._id_type = SQL(self._schema.id_type)  # of the catalogue, not the user's text
        # Ids that are no numbers are read as texts, whatever their type.
        self._selected_id = self._id if self.id_kind == INT else SQL("{}::text").format(self._id)
        self._items = SQL("FROM {} WHERE {} IS NOT NULL").format(self._table, self._vector)
        self._among = SQL("{} = ANY(%s::{}[])").format(self._id, self._id_type)
        self._known_levels: list[Composable] | None = None  # until the attachment is looked at again

    def count(self) -> int:
        return int(self._database.run(SQL("SELECT count(*) {}").format(self._items))[0][0])

    def search(self, vectors: Array, k: int, *, filter: Conditions = (), exact: bool = False) -> SearchResult:
        if not exact and self._schema.wrong_index:
            raise InputError(f"{self.address}: {self._schema.wrong_index}; or search exactly (--exact)")
        condition, values = self._compile(filter)
        query = SQL("%(query)s::{}").format(SQL(self._schema.vector_type))
        score, order = (
            ("1 - ({} <=> {})", "{} <=> {}") if self.metric == "cosine" else ("-({} <#> {})", "{} <#> {}")
        )
        if exact:
            # No index serves a sum. Forbidding scans of indexes would not do: plans are kept between calls.
            order = f"({order}) + 0"
        text = SQL("SELECT {}, {} {} AND {} ORDER BY {} LIMIT {}").format(
            self._selected_id,
            SQL(score).format(self._vector, query),
            self._items,
            condition,
            SQL(order).format(self._vector, query),
            Literal(k),
        )
        hits = []
        with self._database.open_session() as connection, connection.transaction():
            for name, value in ({} if exact else self._index_settings(k)).items():
                connection.execute("SELECT set_config(%s, %s, true)", (name, value))
            for vector in vectors:
                cursor = connection.execute(text, {"query": Vector(vector), **values}, binary=True)
                hits.append(cursor.fetchall())
        return rank_hits(hits, k, self.id_kind)

    def _index_settings(self, k: int) -> dict[str, str]:
        """How widely an index is searched in one transaction."""
        options = self._database.options
        # An HNSW scan gives at most ef_search rows; with fewer than k of them some would silently be missing.
        settings = {"hnsw.ef_search": str(min(_MAX_EF, max(k, int(options["ef_search"]))))}
        settings["ivfflat.probes"] = options["probes"]
        if self._schema.iterative:  # goes on where a filter, or a list that was probed, leaves too few
            settings |= {"hnsw.iterative_scan": "strict_order", "ivfflat.iterative_scan": "relaxed_order"}
        return settings

    def _compile(self, filter: Conditions) -> tuple[Composable, dict[str, Any]]:
        """A condition of SQL, and its values by name."""
        parts: list[Composable] = [SQL("true")]
        values: dict[str, Any] = {}
        for field, allowed, bounds in filter:
            self._check_field(field)
            comparisons = [(f"{{}} {BOUNDS[bound]} {{}}", value) for bound, value in bounds.items()]
            if allowed is not None:
                comparisons.append(("{} = ANY({})", list(allowed)))
            for text, value in comparisons:
                values[name := f"v{len(values)}"] = value
                parts.append(SQL(text).format(Identifier(field), SQL(f"%({name})s")))
        return SQL(" AND ").join(parts), values

    def _check_field(self, field: str) -> None:
        if field not in self._schema.columns:
            raise unknown_field(field, self._schema.columns)

    def _batch(self, rows: list[Any]) -> Batch:
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)
        for place, (name, vector) in enumerate(rows):
            if len(vector.to_numpy()) != self.dimension:
                raise InputError(
                    f"{self.address}: item {name} has {len(vector.to_numpy())} dimensions, not"
                    f" {self.dimension}; give the column a fixed dimension"
                )
            vectors[place] = vector.to_numpy()
        return Batch(self._ids(rows), vectors)

    def _ids(self, rows: list[Any]) -> Array:
        return as_ids([row[0] for row in rows], self.id_kind)

    def fetch(self, ids: Array) -> Batch:
        columns = SQL("{}::vector").format(self._vector)
        return self._batch(self._read(columns, self._items, ids))

    def fields(self, ids: Array) -> dict[Any, dict[str, Any]]:
        if not self._schema.fields:
            return {name: {} for name in self.existing_ids(ids).tolist()}
        # As JSON: other types would come as bytes that only PostgreSQL can read.
        columns = SQL(", ").join(SQL("t.{}").format(Identifier(name)) for name in self._schema.fields)
        text = SQL("(SELECT to_jsonb(fields) FROM (SELECT {}) AS fields)").format(columns)
        items = SQL("FROM {} AS t WHERE {} IS NOT NULL").format(self._table, self._vector)
        return dict(self._read(text, items, ids))

    def existing_ids(self, ids: Array) -> Array:
        return self._ids(self._read(SQL("1"), self._items, ids))

    def names(self, size: int = 10_000) -> Iterator[Array]:
        return map(self._ids, self._pages(SQL("1"), self._items, None, size))

    def iterate(self, after: Any = None, size: int | None = None) -> Iterator[Batch]:
        columns = SQL("{}::vector").format(self._vector)
        return map(self._batch, self._pages(columns, self._items, after, size or self.batch))

    def _read(self, columns: Composable, source: Composable, ids: Array) -> list[Any]:
        """Rows of these ids, the id first, in the order of the ids."""
        text = SQL("SELECT {}, {} {} AND {}").format(self._selected_id, columns, source, self._among)
        known = {row[0]: row for row in self._database.run(text, (ids.tolist(),))}
        return [known[name] for name in ids.tolist() if name in known]

    def _pages(self, columns: Composable, source: Composable, after: Any, size: int) -> Iterator[list[Any]]:
        """Rows in the order of ids, the id first, a page at a time."""
        while True:
            begin = SQL("true") if after is None else SQL("{} > %s::{}").format(self._id, self._id_type)
            text = SQL("SELECT {}, {} {} AND {} ORDER BY {} LIMIT {}").format(
                self._selected_id, columns, source, begin, self._id, Literal(size)
            )
            rows = self._database.run(text, () if after is None else (after,))
            if not rows:
                return
            if self.id_kind == INT and min(row[0] for row in rows) < 0:
                raise InputError(
                    f"{self.address}: item {rows[0][0]}: ids must not be negative; -1 means none"
                )
            yield rows
            after = rows[-1][0]

    def checksums(self, vectors: Array) -> Array:
        """What PostgreSQL itself computes by md5(vector_send(...))."""
        head = struct.pack(">hh", vectors.shape[1], 0)
        rows = np.ascontiguousarray(vectors, dtype=">f4")
        digests = [hashlib.md5(head + row.tobytes(), usedforsecurity=False).hexdigest() for row in rows]
        return as_ids(digests, TEXT)

    def changed_items(self) -> Iterator[ChangedItems]:
        """PostgreSQL compares the checksums, and no vector is transferred."""
        for rows in self._pages(SQL("fresh"), self._join(_DIFFERENT), None, 10_000):
            yield ChangedItems(self._ids(rows), np.array([row[1] for row in rows], dtype=bool), len(rows))

    def orphans(self) -> Iterator[Array]:
        return map(self._ids, self._pages(SQL("1"), self._join(_ORPHANS), None, 10_000))

    def count_unsynced(self) -> int:
        counts = (SQL("SELECT count(*) ") + self._join(text) for text in (_DIFFERENT, _ORPHANS))
        return sum(int(self._database.run(text)[0][0]) for text in counts)

    def _join(self, text: SQL) -> Composable:
        return text.format(id=self._id, vector=self._vector, table=self._table, side=self._side)

    def upsert(self, ids: Array, vectors: Array, fields: Fields = None) -> None:
        self._upsert(ids, vectors, fields, SQL("true"))

    def insert(self, ids: Array, vectors: Array, fields: Fields = None) -> None:
        """A row without a vector is no item yet, and gets its vector."""
        empty = SQL("{}.{} IS NULL").format(self._table, self._vector)
        if not self._upsert(ids, vectors, fields, empty, each=True):
            raise self.duplicate_error(ids)

    def _upsert(
        self, ids: Array, vectors: Array, fields: Fields, replaced: Composable, *, each: bool = False
    ) -> bool:
        """Write rows that do not exist, or may be replaced; see `Database.run_many`."""
        fields = dict(fields or {})
        for field in fields:
            self._check_field(field)
        values = [SQL("%s::{}").format(SQL(self._schema.vector_type)), *[SQL("%s")] * len(fields)]
        columns = [self._vector, *map(Identifier, fields)]
        rows = zip(ids.tolist(), map(Vector, vectors), *fields.values(), strict=True)
        # In one order, or two that write the same items could wait for each other.
        ordered = sorted(rows, key=lambda row: row[0])
        return self._database.run_many(
            self._insertion(self._table, columns, values, replaced), ordered, each=each
        )

    def _insertion(
        self,
        table: Identifier,
        columns: Sequence[Composable],
        values: Sequence[Composable],
        replaced: Composable,
    ) -> Composable:
        """A statement that inserts an id and columns, or replaces those of a row that has the id."""
        return SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) DO UPDATE SET {} WHERE {}").format(
            table,
            SQL(", ").join([self._id, *columns]),
            SQL(", ").join([SQL("%s::{}").format(self._id_type), *values]),
            self._id,
            SQL(", ").join(SQL("{0} = EXCLUDED.{0}").format(column) for column in columns),
            replaced,
        )

    def delete(self, ids: Array) -> Array:
        """All of them, or none."""
        text = SQL("DELETE {} AND {} RETURNING {}").format(self._items, self._among, self._selected_id)
        with self._database.open_session() as connection, connection.transaction() as transaction:
            rows = connection.execute(text, (ids.tolist(),)).fetchall()
            if len(rows) < len(ids):
                raise psycopg.Rollback(transaction)
        return self._ids(rows)

    def prepare(self, width: int, levels: int) -> None:
        columns = [
            SQL("{} {} PRIMARY KEY").format(self._id, self._id_type),
            SQL("mark text NOT NULL, valid integer NOT NULL"),
            SQL("neighbors {}[], similarities real[]").format(self._id_type),
            *(
                SQL("level_{} vector({})").format(Literal(i + 1), Literal(self.dimension))
                for i in range(levels)
            ),
        ]
        self._known_levels = None
        with self._database.open_session() as connection, connection.transaction():
            connection.execute(SQL("DROP TABLE IF EXISTS {}").format(self._side))
            connection.execute(SQL("CREATE TABLE {} ({})").format(self._side, SQL(", ").join(columns)))
            connection.execute(SQL("CREATE INDEX ON {} (valid)").format(self._side))

    def prepare_about(self) -> None:
        text = SQL("CREATE TABLE IF NOT EXISTS {} (key text PRIMARY KEY, value text NOT NULL)")
        with self._database.open_session() as connection, suppress(*_CREATED_BY_ANOTHER):
            connection.execute(text.format(self._about))

    def has_records(self) -> bool:
        return self._database.exists(self._side)

    def detach(self) -> None:
        self._known_levels = None
        self._database.run(SQL("DROP TABLE IF EXISTS {}, {}").format(self._side, self._about))

    def read_about(self, keys: Sequence[str] | None = None, *, kind: str = "") -> dict[str, str]:
        self._known_levels = None
        if not self._database.exists(self._about):
            return {}
        text = SQL(
            "SELECT key, value FROM {} WHERE (%s::text[] IS NULL OR key = ANY(%s)) AND starts_with(key, %s)"
        )
        chosen = None if keys is None else list(keys)
        return dict(self._database.run(text.format(self._about), (chosen, chosen, kind and f"{kind}.")))

    def write_about(self, texts: Mapping[str, str]) -> None:
        text = SQL("INSERT INTO {} VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value")
        self._database.run_many(text.format(self._about), list(texts.items()))

    def erase_about(self, keys: Sequence[str]) -> None:
        self._database.run(SQL("DELETE FROM {} WHERE key = ANY(%s)").format(self._about), (list(keys),))

    def read(self, ids: Array, *, levels: bool = True) -> Records:
        columns = self._level_columns() if levels else []
        source = SQL("FROM {} WHERE true").format(self._side)
        return self._records(self._read(self._record_columns(columns), source, ids), len(columns))

    def scan(self, *, below: int | None = None, levels: bool = False) -> Iterator[Records]:
        columns = self._level_columns() if levels else []
        limit = SQL("true") if below is None else SQL("valid < {}").format(Literal(below))
        source = SQL("FROM {} WHERE {}").format(self._side, limit)
        for rows in self._pages(self._record_columns(columns), source, None, self.batch):
            yield self._records(rows, len(columns))

    def _records(self, rows: list[Any], depth: int) -> Records:
        plain = [
            (*row[:5], [None if level is None else level.to_numpy() for level in row[5:]]) for row in rows
        ]
        return self.make_records(plain, depth)

    def _record_columns(self, levels: list[Composable]) -> Composable:
        neighbors = "neighbors" if self.id_kind == INT else "neighbors::text[]"
        return SQL(", ").join([*map(SQL, ("mark", "valid", neighbors, "similarities")), *levels])

    def _level_columns(self) -> list[Composable]:
        if self._known_levels is None:
            text = (
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attname LIKE %s"
                " AND attnum > 0 ORDER BY attnum"
            )
            rows = self._database.run(text, (self._side.as_string(None), "level\\_%"))
            self._known_levels = [Identifier(row[0]) for row in rows]
        return self._known_levels

    def write(self, records: Records) -> None:
        depth = records.levels.shape[1]
        names = ["mark", "valid", "neighbors", "similarities", *(f"level_{i + 1}" for i in range(depth))]
        neighbors = SQL("%s::{}[]").format(self._id_type)
        values = [SQL("%s"), SQL("%s"), neighbors, *[SQL("%s")] * (1 + depth)]
        rows = [
            (
                *(name, mark, valid),
                [None if other == -1 else other for other in near],
                scores,
                *(Vector(level) if level.any() else None for level in levels),
            )
            for name, mark, valid, near, scores, levels in records.rows()
        ]
        columns = [Identifier(name) for name in names]
        self._database.run_many(self._insertion(self._side, columns, values, SQL("true")), rows)

    def delete_records(self, ids: Array) -> None:
        self._database.run(SQL("DELETE FROM {} WHERE {}").format(self._side, self._among), (ids.tolist(),))

    def close(self) -> None:
        self._database.close()
