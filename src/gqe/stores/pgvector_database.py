"""PostgreSQL: the connection, and what the user's table looks like, checked once when it is opened."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import psycopg
from pgvector.psycopg import register_vector
from pgvector.psycopg.halfvec import register_halfvec_info
from pgvector.psycopg.vector import register_vector_info
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Composable, Identifier
from psycopg.types import TypeInfo

from gqe.errors import InputError
from gqe.parsing import whole_number
from gqe.stores.address import Address
from gqe.stores.base import Unreachable
from gqe.stores.clients import silence_clients

# Options of ours in an address; all others are for PostgreSQL itself.
OPTIONS = {"table": "", "vector": "embedding", "id": "id", "ef_search": "200", "probes": "10"}
_REGISTER: dict[str, Any] = {"vector": register_vector_info, "halfvec": register_halfvec_info}
_LOST = ("08", "57")  # classes of states: trouble with the connection, the server stops
_RETRY = "mend that and run the same again: it goes on where it was"
_REMEDIES: dict[type[psycopg.Error], str] = {
    psycopg.errors.InsufficientPrivilege: "give this user the right to do so, or connect as another",
    psycopg.errors.ReadOnlySqlTransaction: "give the address of the server that takes changes",
    psycopg.errors.DeadlockDetected: "another wrote the same items, and nothing of this is; run it again",
    psycopg.errors.UndefinedTable: "somebody removed it; run gqe store attach --anew",
}


class _BorrowedSession:
    """A connection of the user's: its settings, and how it reads rows and vectors, stay as they are.

    Args:
        connection: open; what it has begun is not committed.
        types: of pgvector, by name.
    """

    def __init__(self, connection: psycopg.Connection[Any], types: Mapping[str, TypeInfo]) -> None:
        self._connection = connection
        self._types = types
        self.closed = False

    def cursor(self) -> psycopg.Cursor[Any]:
        """A cursor that reads rows as tuples and vectors as ours."""
        cursor = psycopg.Cursor(self._connection, row_factory=tuple_row)
        for name, register in _REGISTER.items():
            if name in self._types:
                register(cursor, self._types[name])
        return cursor

    def execute(self, query: Any, values: Any = (), *, binary: bool = False) -> psycopg.Cursor[Any]:
        """As of a connection."""
        return self.cursor().execute(query, values, binary=binary)

    def transaction(self) -> Any:
        """As of a connection."""
        return self._connection.transaction()


class Database:
    """A connection that is opened again when it was lost; threads take turns, a transaction at a time.

    Where the user gave a connection, our transactions are part of the one that is open there, if any; where
    the user gave a pool, each transaction takes one of its connections.

    Args:
        address: see `PgvectorStore`.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.options = {key: address.options.get(key, default) for key, default in OPTIONS.items()}
        if not self.options["table"]:
            raise InputError(f"{address.display}: no table is named; add ?table=NAME")
        for name in ("ef_search", "probes"):
            if not 0 < (whole_number(self.options[name]) or 0) <= 32768:
                raise InputError(f"{address.display}: {name}: expected a whole number from 1 to 32768")
        self.connection: Any = None
        self._types: dict[str, TypeInfo] | None = None  # of a user's database, once looked up
        self._pooled = address.client is not None and not isinstance(address.client, psycopg.Connection)
        self._turn: AbstractContextManager[Any] = nullcontext() if self._pooled else threading.RLock()

    @contextmanager
    def open_session(self) -> Iterator[Any]:
        """The connection; what PostgreSQL refuses becomes one line."""
        try:
            with self._turn, silence_clients():
                if self.address.client is not None:
                    with self._borrow() as session:
                        yield session
                    return
                if self.connection is None or self.connection.closed:
                    self._open()
                yield self.connection
        except psycopg.Error as error:
            reason = self.address.redact(error)
            at = self.connection if self.address.client is None else self.address.client
            lost = at is None or bool(at.closed) or (self._pooled and (error.sqlstate or "08")[:2] in _LOST)
            if isinstance(error, psycopg.OperationalError) and lost:
                raise Unreachable(
                    f"{self.address.display}: no connection, or it was lost ({reason}); check that the server"
                    " runs and is reachable, then run the same again: it goes on where it was"
                ) from None
            remedy = next((text for kind, text in _REMEDIES.items() if isinstance(error, kind)), _RETRY)
            raise InputError(f"{self.address.display}: PostgreSQL refuses ({reason}); {remedy}") from None

    @contextmanager
    def _borrow(self) -> Iterator[_BorrowedSession]:
        client = self.address.client
        with ExitStack() as stack:
            connection = stack.enter_context(client.connection()) if self._pooled else client
            # Without this a connection that does not commit by itself would wait in a transaction of ours.
            stack.enter_context(connection.transaction())
            if self._types is None:
                found = {name: TypeInfo.fetch(connection, name) for name in _REGISTER}
                self._types = {name: info for name, info in found.items() if info is not None}
            yield _BorrowedSession(connection, self._types)

    def close(self) -> None:
        """Close the connection, unless it is the user's."""
        if self.connection is not None:
            self.connection.close()

    def _open(self) -> None:
        at = self.address
        user = quote(at.user or "", safe="") + (":" + quote(at.password, safe="") if at.password else "")
        host = at.host if ":" not in at.host else f"[{at.host}]"
        port = f":{at.port}" if at.port else ""
        options = {key: value for key, value in at.options.items() if key not in OPTIONS}
        options.setdefault("connect_timeout", "10")
        place = f"{user}@{host}{port}" if user else f"{host}{port}"
        url = f"postgresql://{place}{quote(at.path)}?{urlencode(options, quote_via=quote)}"
        self.connection = psycopg.connect(url, autocommit=True)
        if self.connection.execute("SELECT 1 FROM pg_type WHERE typname = 'vector'").fetchone():
            register_vector(self.connection)

    def run(self, query: Composable | str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """Run one statement; its rows, if it gives any."""
        with self.open_session() as connection:
            cursor = connection.execute(query, values, binary=True)
            return list(cursor.fetchall()) if cursor.description else []

    def run_many(self, query: Composable, rows: list[Any], *, each: bool = False) -> bool:
        """Write all rows, or none: False if `each` must be written and one was not."""
        with self.open_session() as connection:
            with connection.transaction() as transaction, connection.cursor() as cursor:
                cursor.executemany(query, rows)
                written = not each or cursor.rowcount >= len(rows)
                if not written:
                    raise psycopg.Rollback(transaction)
            return written

    def exists(self, table: Identifier) -> bool:
        """Whether there is a table of this name."""
        return bool(self.run("SELECT to_regclass(%s) IS NOT NULL", (table.as_string(None),))[0][0])


class Schema(NamedTuple):
    """What is known of a table.

    Attributes:
        columns: their names.
        fields: those that are neither ids nor vectors.
        id_type: SQL type of the ids.
        vector_type: "vector" or "halfvec".
        dimension: of the vectors.
        metric: "cosine", or "dot" where only an index for inner products exists.
        wrong_index: what is wrong with the only index there is, and the remedy; empty if nothing.
        iterative: whether scans of an index can go on until there are enough rows (pgvector 0.8).
    """

    columns: list[str]
    fields: list[str]
    id_type: str
    vector_type: str
    dimension: int
    metric: str
    wrong_index: str
    iterative: bool


_VECTORS = ("vector", "halfvec", "sparsevec")
_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, NULL), t.typname, a.atttypmod, a.attnum
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_UNIQUE = """
    SELECT 1 FROM pg_index
    WHERE indrelid = %s::regclass AND indkey[0] = %s
    AND indisunique AND indnkeyatts = 1 AND indpred IS NULL"""
_INDEXES = """
    SELECT c.relname, o.opcname
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
    JOIN pg_opclass o ON o.oid = i.indclass[0]
    WHERE i.indrelid = %s::regclass AND i.indkey[0] = %s
    AND m.amname IN ('hnsw', 'ivfflat') AND i.indisvalid"""


def read_schema(database: Database, table: Identifier) -> Schema:
    """Look a table up; whatever is missing is one line with the remedy."""
    where, options, name = database.address.display, database.options, table.as_string(None)
    version = database.run("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    if not version:
        raise InputError(f"{where}: the database lacks pgvector; run CREATE EXTENSION vector in it")
    if not database.exists(table):
        raise InputError(f"{where}: no table {options['table']!r}; check table=, the name of the table")
    columns = {row[0]: row[1:] for row in database.run(_COLUMNS, (name,))}
    for option in ("id", "vector"):
        if options[option] not in columns:
            there = ", ".join(columns)
            raise InputError(f"{where}: no column {options[option]!r}; there are {there}; give {option}=NAME")
    id_type, _, _, id_number = columns[options["id"]]
    declared_type, vector_type, dimension, number = columns[options["vector"]]
    if vector_type not in ("vector", "halfvec"):
        raise InputError(
            f"{where}: column {options['vector']!r} is {declared_type}; it must be vector or halfvec"
        )
    if not database.run(_UNIQUE, (name, id_number)):
        raise InputError(
            f"{where}: ids in column {options['id']!r} may repeat; run ALTER TABLE {options['table']}"
            f" ADD PRIMARY KEY ({options['id']})"
        )
    if dimension < 1:
        text = SQL("SELECT vector_dims({0}) FROM {1} WHERE {0} IS NOT NULL LIMIT 1")
        rows = database.run(text.format(Identifier(options["vector"]), table))
        if not rows:
            raise InputError(f"{where}: column {options['vector']!r} has no dimension yet; declare vector(d)")
        dimension = rows[0][0]
    indexes = dict(database.run(_INDEXES, (name, number)))
    kinds = {opclass.removeprefix(f"{vector_type}_") for opclass in indexes.values()}
    wrong = ""
    if kinds and not kinds & {"cosine_ops", "ip_ops"}:
        wrong = (
            f"its index {next(iter(indexes))} does not serve cosines; run CREATE INDEX ON {options['table']}"
            f" USING hnsw ({options['vector']} {vector_type}_cosine_ops)"
        )
    metric = "dot" if "ip_ops" in kinds and "cosine_ops" not in kinds else "cosine"
    major, minor = (int(part) for part in version[0][0].split(".")[:2])
    fields = [name for name, kind in columns.items() if name != options["id"] and kind[1] not in _VECTORS]
    iterative = (major, minor) >= (0, 8)
    return Schema(list(columns), fields, id_type, vector_type, dimension, metric, wrong, iterative)
