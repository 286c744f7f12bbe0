"""PostgreSQL with pgvector: items in a table of the user's."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.filters import BOUNDS, Conditions, unknown_field
from gqe.stores.base import TEXT, Array, Batch, Different, Found, as_ids, ranked, taken
from gqe.stores.pgvector_records import SQL, Composable, Identifier, Lit, PgvectorRecords, Vector, psycopg

# The most that pgvector takes.
_MOST_EF = 1000
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


class PgvectorStore(PgvectorRecords):
    """Items in a table: searching, fetching, writing; see `PgvectorRecords`."""

    def count(self) -> int:
        """See `Store.count`."""
        return int(self._run(SQL("SELECT count(*) {}").format(self._items))[0][0])

    def search(self, vectors: Array, k: int, *, filter: Conditions = (), exact: bool = False) -> Found:
        """See `Store.search`."""
        if not exact and self._schema.wrong_index:
            raise InputError(f"{self.address}: {self._schema.wrong_index}; or search exactly (--exact)")
        condition, values = self._compiled(filter)
        query = SQL("%(query)s::{}").format(SQL(self._schema.vector_type))
        score = "1 - ({} <=> {})" if self.metric == "cosine" else "-({} <#> {})"
        order = "{} <=> {}" if self.metric == "cosine" else "{} <#> {}"
        if exact:
            # No index serves a sum. Forbidding scans of indexes would not do: plans are kept between calls.
            order = f"({order}) + 0"
        text = SQL("SELECT {}, {} {} AND {} ORDER BY {} LIMIT {}").format(
            self._shown_id,
            SQL(score).format(self._vector, query),
            self._items,
            condition,
            SQL(order).format(self._vector, query),
            Lit(k),
        )
        found = []
        with self._explained():
            connection = self._open()
            with connection.transaction():
                for name, value in ({} if exact else self._settings(k)).items():
                    connection.execute("SELECT set_config(%s, %s, true)", (name, value))
                for vector in vectors:
                    given = {"query": Vector(vector), **values}
                    found.append(connection.execute(text, given, binary=True).fetchall())
        return ranked(found, k, self.id_kind)

    def _settings(self, k: int) -> dict[str, str]:
        """How widely an index is searched in one transaction."""
        # An HNSW scan gives at most ef_search rows; with fewer than k of them some would silently be missing.
        chosen = {"hnsw.ef_search": str(min(_MOST_EF, max(k, int(self._options["ef_search"]))))}
        chosen["ivfflat.probes"] = self._options["probes"]
        if self._schema.iterative:  # goes on where a filter, or a list that was probed, leaves too few
            chosen |= {"hnsw.iterative_scan": "strict_order", "ivfflat.iterative_scan": "relaxed_order"}
        return chosen

    def _compiled(self, filter: Conditions) -> tuple[Composable, dict[str, Any]]:
        parts: list[Composable] = [SQL("true")]
        values: dict[str, Any] = {}
        for field, wanted, bounds in filter:
            if field not in self._schema.columns:
                raise unknown_field(field, self._schema.columns)
            column = Identifier(field)
            if wanted is not None:
                values[name := f"v{len(values)}"] = list(wanted)
                parts.append(SQL("{} = ANY({})").format(column, SQL(f"%({name})s")))
            for bound, value in bounds.items():
                values[name := f"v{len(values)}"] = value
                parts.append(SQL("{} {} {}").format(column, SQL(BOUNDS[bound]), SQL(f"%({name})s")))
        return SQL(" AND ").join(parts), values

    def _batch(self, rows: list[Any]) -> Batch:
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)
        for place, (_, vector) in enumerate(rows):
            found = vector.to_numpy()
            if len(found) != self.dimension:
                raise InputError(
                    f"{self.address}: item {rows[place][0]} has {len(found)} dimensions, not"
                    f" {self.dimension}; give the column a fixed dimension"
                )
            vectors[place] = found
        return Batch(as_ids([row[0] for row in rows], self.id_kind), vectors)

    def fetch(self, ids: Array) -> Batch:
        """See `Store.fetch`."""
        text = SQL("SELECT {}, {}::vector {} AND {}").format(
            self._shown_id, self._vector, self._items, self._any()
        )
        known = {row[0]: row for row in self._run(text, (ids.tolist(),))}
        return self._batch([known[name] for name in ids.tolist() if name in known])

    def existing(self, ids: Array) -> Array:
        """See `Store.existing`."""
        text = SQL("SELECT {} {} AND {}").format(self._shown_id, self._items, self._any())
        return as_ids([row[0] for row in self._run(text, (ids.tolist(),))], self.id_kind)

    def names(self, size: int = 10_000) -> Iterator[Array]:
        """See `Store.names`."""
        for rows in self._pages(SQL("1"), self._items, None, size):
            yield as_ids([row[0] for row in rows], self.id_kind)

    def iterate(self, after: Any = None, size: int | None = None) -> Iterator[Batch]:
        """See `Store.iterate`."""
        what = SQL("{}::vector").format(self._vector)
        for rows in self._pages(what, self._items, after, size or self.batch):
            yield self._batch(rows)

    def marks(self, vectors: Array) -> Array:
        """See `Store.marks`: what PostgreSQL itself makes of a vector by md5(vector_send(...))."""
        head = struct.pack(">hh", vectors.shape[1], 0)
        rows = np.ascontiguousarray(vectors, dtype=">f4")
        made = [hashlib.md5(head + row.tobytes(), usedforsecurity=False).hexdigest() for row in rows]
        return as_ids(made, TEXT)

    def different(self) -> Iterator[Different]:
        """See `Store.different`: PostgreSQL compares the checksums, and no vector travels."""
        for rows in self._pages(SQL("fresh"), self._beside(_DIFFERENT), None, 10_000):
            ids = as_ids([row[0] for row in rows], self.id_kind)
            yield Different(ids, np.array([row[1] for row in rows], dtype=bool), len(ids))

    def orphans(self) -> Iterator[Array]:
        """See `Store.orphans`."""
        for rows in self._pages(SQL("1"), self._beside(_ORPHANS), None, 10_000):
            yield as_ids([row[0] for row in rows], self.id_kind)

    def unsynced(self) -> int:
        """See `Store.unsynced`."""
        counted = (SQL("SELECT count(*) ") + self._beside(part) for part in (_DIFFERENT, _ORPHANS))
        return sum(int(self._run(text)[0][0]) for text in counted)

    def _beside(self, text: SQL) -> Composable:
        return text.format(id=self._id, vector=self._vector, table=self._table, side=self._side)

    def upsert(self, ids: Array, vectors: Array, fields: Mapping[str, Sequence[Any]] | None = None) -> None:
        """See `Store.upsert`."""
        self._put(ids, vectors, fields, SQL("true"))

    def insert(self, ids: Array, vectors: Array, fields: Mapping[str, Sequence[Any]] | None = None) -> None:
        """See `Store.insert`; a row without a vector is no item yet, and gets its vector."""
        empty = SQL("{}.{} IS NULL").format(self._table, self._vector)
        if not self._put(ids, vectors, fields, empty, each=True):
            raise taken(self, ids)

    def _put(
        self,
        ids: Array,
        vectors: Array,
        fields: Mapping[str, Sequence[Any]] | None,
        replaced: Composable,
        *,
        each: bool = False,
    ) -> bool:
        """Write rows that are not there, or may be replaced; see `_many`."""
        given = dict(fields or {})
        for field in given:
            if field not in self._schema.columns:
                raise unknown_field(field, self._schema.columns)
        columns = [self._vector, *map(Identifier, given)]
        text = SQL(
            "INSERT INTO {} ({}) VALUES (%s::{}, %s::{}{}) ON CONFLICT ({}) DO UPDATE SET {} WHERE {}"
        ).format(
            self._table,
            SQL(", ").join([self._id, *columns]),
            self._id_type,
            SQL(self._schema.vector_type),
            SQL(", %s" * len(given)),
            self._id,
            SQL(", ").join(SQL("{0} = EXCLUDED.{0}").format(column) for column in columns),
            replaced,
        )
        rows = zip(ids.tolist(), map(Vector, vectors), *given.values(), strict=True)
        # In one order, or two that write the same items could wait for each other.
        return self._many(text, sorted(rows, key=lambda row: row[0]), each=each)

    def delete(self, ids: Array) -> Array:
        """See `Store.delete`: all of them, or none."""
        text = SQL("DELETE {} AND {} RETURNING {}").format(self._items, self._any(), self._shown_id)
        with self._explained():
            connection = self._open()
            with connection.transaction() as transaction:
                gone = [row[0] for row in connection.execute(text, (ids.tolist(),)).fetchall()]
                if len(gone) < len(ids):
                    raise psycopg.Rollback(transaction)
        return as_ids(gone, self.id_kind)
