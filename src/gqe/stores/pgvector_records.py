"""PostgreSQL: the connection, and what is kept in `NAME_gqe` and `NAME_gqe_about` beside the user's table."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np

from gqe.errors import InputError
from gqe.parsing import whole_number
from gqe.stores.address import Address
from gqe.stores.base import INT, TEXT, Array, Records, Store, Unreachable, as_ids, install, no_ids, present
from gqe.stores.pgvector_schema import Schema, read_schema
from gqe.stores.quiet import quiet

try:
    import psycopg
    from pgvector import Vector
    from pgvector.psycopg import register_vector
    from psycopg.sql import SQL, Composable, Identifier
    from psycopg.sql import Literal as Lit
except ImportError as error:
    raise install("psycopg and pgvector", "pgvector") from error

# What an address may say; all else is for PostgreSQL itself.
OWN = {"table": "", "vector": "embedding", "id": "id", "ef_search": "200", "probes": "10"}

_ANOTHER_WAS_FASTER = (
    psycopg.errors.DuplicateObject,
    psycopg.errors.DuplicateTable,
    psycopg.errors.UniqueViolation,
)
_MEND = "mend that and run the same again: it goes on where it was"
_REMEDIES: dict[type[psycopg.Error], str] = {
    psycopg.errors.InsufficientPrivilege: "give this user the right to do so, or connect as another",
    psycopg.errors.ReadOnlySqlTransaction: "give the address of the server that takes changes",
    psycopg.errors.DeadlockDetected: "another wrote the same items, and nothing of this is; run it again",
    psycopg.errors.UndefinedTable: "somebody removed it; run gqe store attach --anew",
}

__all__ = ["SQL", "Composable", "Identifier", "Lit", "PgvectorRecords", "Vector", "psycopg"]


class PgvectorRecords(Store):
    """A table with a `vector` or `halfvec` column, and the records beside it.

    Args:
        address: `postgresql://user@host/db?table=items&vector=embedding&id=id`; also `ef_search=` (HNSW) and
            `probes=` (IVFFlat).
    """

    def __init__(self, address: Address) -> None:
        self._where = address
        self.address = address.shown
        self._options = {key: address.options.get(key, default) for key, default in OWN.items()}
        if not self._options["table"]:
            raise InputError(f"{self.address}: no table is named; add ?table=NAME")
        for name in ("ef_search", "probes"):
            if not 0 < (whole_number(self._options[name]) or 0) <= 32768:
                raise InputError(f"{self.address}: {name}: expected a whole number from 1 to 32768")
        self._connection: Any = None
        self._known_levels: list[Composable] | None = None  # until the attachment is looked at again
        # One transaction at a time: threads take turns.
        self._turn = threading.RLock()
        with self._explained():
            self._schema: Schema = read_schema(self._open(), self._options, self.address)
        self.dimension = self._schema.dimension
        self.metric = self._schema.metric
        self.id_kind = INT if self._schema.id_type in ("smallint", "integer", "bigint") else TEXT
        parts = self._options["table"].split(".")
        self._table = Identifier(*parts)
        self._side = Identifier(*parts[:-1], parts[-1] + "_gqe")
        self._about = Identifier(*parts[:-1], parts[-1] + "_gqe_about")
        self._id, self._vector = Identifier(self._options["id"]), Identifier(self._options["vector"])
        self._id_type = SQL(self._schema.id_type)  # of the catalogue, not the user's text
        # Ids that are no numbers travel as texts, whatever their type.
        self._shown_id = self._id if self.id_kind == INT else SQL("{}::text").format(self._id)
        self._items = SQL("FROM {} WHERE {} IS NOT NULL").format(self._table, self._vector)

    def _open(self) -> Any:
        """The connection; a new one where the last was lost."""
        if self._connection is None or self._connection.closed:
            at = self._where
            user = quote(at.user or "", safe="") + (":" + quote(at.password, safe="") if at.password else "")
            host = at.host if ":" not in at.host else f"[{at.host}]"
            port = f":{at.port}" if at.port else ""
            rest = {key: value for key, value in at.options.items() if key not in OWN}
            rest.setdefault("connect_timeout", "10")
            place = f"{user}@{host}{port}" if user else f"{host}{port}"
            url = f"postgresql://{place}{quote(at.path)}?{urlencode(rest, quote_via=quote)}"
            self._connection = psycopg.connect(url, autocommit=True)
            with_type = self._connection.execute("SELECT 1 FROM pg_type WHERE typname = 'vector'").fetchone()
            if with_type:
                register_vector(self._connection)
        return self._connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            with self._turn, quiet():
                yield
        except psycopg.Error as error:
            said = self._where.scrubbed(error)
            if isinstance(error, psycopg.OperationalError) and self._lost:
                raise Unreachable(
                    f"{self.address}: no connection, or it was lost ({said}); check that the server runs and"
                    " is reachable, then run the same again: it goes on where it was"
                ) from None
            remedy = next((text for kind, text in _REMEDIES.items() if isinstance(error, kind)), _MEND)
            raise InputError(f"{self.address}: PostgreSQL refuses ({said}); {remedy}") from None

    @property
    def _lost(self) -> bool:
        return self._connection is None or bool(self._connection.closed)

    def _run(self, query: Composable | str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        with self._explained():
            cursor = self._open().execute(query, values, binary=True)
            return list(cursor.fetchall()) if cursor.description else []

    def _many(self, query: Composable, rows: list[Any], *, each: bool = False) -> bool:
        """Write all rows, or none: False if `each` is asked for and one could not be written."""
        with self._explained():
            connection = self._open()
            with connection.transaction() as transaction, connection.cursor() as cursor:
                cursor.executemany(query, rows)
                written = not each or cursor.rowcount >= len(rows)
                if not written:
                    raise psycopg.Rollback(transaction)
            return written

    def _any(self) -> Composable:
        return SQL("{} = ANY(%s::{}[])").format(self._id, self._id_type)

    def _pages(self, what: Composable, source: Composable, after: Any, size: int) -> Iterator[list[Any]]:
        """Rows in the order of ids, the id first, a page at a time."""
        while True:
            begin = SQL("true") if after is None else SQL("{} > %s::{}").format(self._id, self._id_type)
            text = SQL("SELECT {}, {} {} AND {} ORDER BY {} LIMIT {}").format(
                self._shown_id, what, source, begin, self._id, Lit(size)
            )
            rows = self._run(text, () if after is None else (after,))
            if not rows:
                return
            if self.id_kind == INT and min(row[0] for row in rows) < 0:
                raise InputError(
                    f"{self.address}: item {rows[0][0]}: ids must not be negative; -1 means none"
                )
            yield rows
            after = rows[-1][0]

    def prepare(self, width: int, levels: int) -> None:
        """See `Store.prepare`."""
        columns = [
            SQL("level_{} vector({})").format(Lit(i), Lit(self.dimension)) for i in range(1, levels + 1)
        ]
        parts = SQL(
            "{} {} PRIMARY KEY, mark text NOT NULL, valid integer NOT NULL,"
            " neighbors {}[], similarities real[]"
        )
        fixed = parts.format(self._id, self._id_type, self._id_type)
        self._known_levels = None
        with self._explained():
            connection = self._open()
            with connection.transaction():
                connection.execute(SQL("DROP TABLE IF EXISTS {}").format(self._side))
                connection.execute(
                    SQL("CREATE TABLE {} ({})").format(self._side, SQL(", ").join([fixed, *columns]))
                )
                connection.execute(SQL("CREATE INDEX ON {} (valid)").format(self._side))

    def prepare_about(self) -> None:
        """See `Store.prepare_about`."""
        text = SQL("CREATE TABLE IF NOT EXISTS {} (key text PRIMARY KEY, value text NOT NULL)")
        with self._explained(), suppress(*_ANOTHER_WAS_FASTER):
            self._open().execute(text.format(self._about))

    def has_records(self) -> bool:
        """See `Store.has_records`."""
        return self._exists(self._side)

    def _exists(self, table: Identifier) -> bool:
        return bool(self._run("SELECT to_regclass(%s) IS NOT NULL", (table.as_string(None),))[0][0])

    def detach(self) -> None:
        """See `Store.detach`."""
        self._known_levels = None
        self._run(SQL("DROP TABLE IF EXISTS {}, {}").format(self._side, self._about))

    def read_about(self, keys: Sequence[str] | None = None, *, kind: str = "") -> dict[str, str]:
        """See `Store.read_about`."""
        self._known_levels = None
        if not self._exists(self._about):
            return {}
        text = SQL(
            "SELECT key, value FROM {} WHERE (%s::text[] IS NULL OR key = ANY(%s)) AND starts_with(key, %s)"
        )
        chosen = None if keys is None else list(keys)
        return dict(self._run(text.format(self._about), (chosen, chosen, kind and f"{kind}.")))

    def write_about(self, texts: Mapping[str, str]) -> None:
        """See `Store.write_about`."""
        text = SQL("INSERT INTO {} VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value")
        self._many(text.format(self._about), list(texts.items()))

    def erase_about(self, keys: Sequence[str]) -> None:
        """See `Store.erase_about`."""
        self._run(SQL("DELETE FROM {} WHERE key = ANY(%s)").format(self._about), (list(keys),))

    def _records(self, rows: list[Any], levels: int) -> Records:
        """From rows of id, mark, valid, neighbors, similarities and some levels."""
        count, width = len(rows), max((len(row[3]) for row in rows), default=0)
        attached = levels if rows else 0
        neighbors = no_ids((count, width), self.id_kind)
        similarities = np.full((count, width), -np.inf, dtype=np.float32)
        vectors = np.zeros((count, attached, self.dimension), dtype=np.float32)
        for place, row in enumerate(rows):
            neighbors[place] = as_ids(_without_none(row[3], self.id_kind), self.id_kind)
            similarities[place] = row[4]
            for i, vector in enumerate(row[5:]):
                if vector is not None:
                    vectors[place, i] = vector.to_numpy()
        valid = np.array([row[2] for row in rows], dtype=np.int64)
        names, marks = as_ids([row[0] for row in rows], self.id_kind), as_ids([row[1] for row in rows], TEXT)
        return Records(names, marks, valid, neighbors, similarities, vectors)

    def _level_columns(self) -> list[Composable]:
        if self._known_levels is not None:
            return self._known_levels
        text = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attname LIKE %s"
        found = self._run(text + " AND attnum > 0 ORDER BY attnum", (self._side.as_string(None), "level\\_%"))
        self._known_levels = [Identifier(row[0]) for row in found]
        return self._known_levels

    def _columns(self, levels: list[Composable]) -> Composable:
        fixed = [SQL(name) for name in ("mark", "valid", "neighbors::text[]", "similarities")]
        if self.id_kind == INT:
            fixed[2] = SQL("neighbors")
        return SQL(", ").join([*fixed, *levels])

    def read(self, ids: Array, *, levels: bool = True) -> Records:
        """See `Store.read`."""
        columns = self._level_columns() if levels else []
        text = SQL("SELECT {}, {} FROM {} WHERE {}").format(
            self._shown_id, self._columns(columns), self._side, self._any()
        )
        known = {row[0]: row for row in self._run(text, (ids.tolist(),))}
        return self._records([known[name] for name in ids.tolist() if name in known], len(columns))

    def scan(self, *, below: int | None = None, levels: bool = False) -> Iterator[Records]:
        """See `Store.scan`."""
        columns = self._level_columns() if levels else []
        limit = SQL("true") if below is None else SQL("valid < {}").format(Lit(below))
        source = SQL("FROM {} WHERE {}").format(self._side, limit)
        for rows in self._pages(self._columns(columns), source, None, self.batch):
            yield self._records(rows, len(columns))

    def write(self, records: Records) -> None:
        """See `Store.write`."""
        names = [f"level_{i}" for i in range(1, records.levels.shape[1] + 1)]
        columns = [Identifier(name) for name in ("mark", "valid", "neighbors", "similarities", *names)]
        text = SQL(
            "INSERT INTO {} ({}) VALUES (%s::{}, %s, %s, %s::{}[], %s{}) ON CONFLICT ({}) DO UPDATE SET {}"
        )
        query = text.format(
            self._side,
            SQL(", ").join([self._id, *columns]),
            self._id_type,
            self._id_type,
            SQL(", %s" * len(names)),
            self._id,
            SQL(", ").join(SQL("{0} = EXCLUDED.{0}").format(column) for column in columns),
        )
        there = present(records.neighbors)
        rows = []
        for place, name in enumerate(records.ids.tolist()):
            near = [
                other if known else None
                for other, known in zip(records.neighbors[place].tolist(), there[place], strict=True)
            ]
            vectors = [Vector(level) if level.any() else None for level in records.levels[place]]
            fixed = (name, records.marks[place], int(records.valid[place]), near)
            rows.append((*fixed, records.similarities[place].tolist(), *vectors))
        self._many(query, rows)

    def forget(self, ids: Array) -> None:
        """See `Store.forget`."""
        self._run(SQL("DELETE FROM {} WHERE {}").format(self._side, self._any()), (ids.tolist(),))

    def close(self) -> None:
        """See `Store.close`."""
        if self._connection is not None:
            self._connection.close()


def _without_none(ids: list[Any], kind: str) -> list[Any]:
    return [-1 if name is None and kind == INT else name for name in ids]
