"""Engines whose every call can be the last: the process dies before it, or after it and without an answer."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gqe
from gqe.stores import Connection
from stores.engines import Engine, Lance, Milvus, Postgres

HOWS = ("before", "after", "fail")
_LANCE_CALLS = (
    *("list_tables", "create_table", "drop_table"),
    *("count_rows", "to_arrow", "execute", "delete", "optimize"),
)
_number = itertools.count()


class Died(BaseException):
    """The process is gone; nobody catches this."""


class Calls:
    """Counts the calls to an engine, and ends at one of them.

    Args:
        at: the call that is the last; None for no end.
        how: "before" and "after" it the process dies; or it only "fail"s, and the process goes on.
        failure: what the client of the engine raises.
    """

    def __init__(self, at: int | None = None, how: str = "before", failure: Exception | None = None) -> None:
        self.at, self.how, self.failure = at, how, failure
        self.count, self.dead = 0, False

    def __call__(self, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if self.dead:
            raise Died
        self.count += 1
        if self.count != self.at:
            return method(*given, **named)
        if self.how == "fail":
            assert self.failure is not None
            raise self.failure
        self.dead = True
        if self.how == "after":
            method(*given, **named)
        raise Died


class Client:
    """A client of Qdrant or Milvus, all methods of which are counted."""

    def __init__(self, client: Any, calls: Calls) -> None:
        self._client, self._calls = client, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found) or name in ("create_schema", "prepare_index_params"):
            return found
        return lambda *given, **named: self._calls(found, *given, **named)


class LanceClient(Client):
    """A connection to LanceDB, or what it gives; counted is what reads or writes."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name in _LANCE_CALLS:
            return lambda *given, **named: self._calls(found, *given, **named)
        if not callable(found):
            return found
        return lambda *given, **named: LanceClient(found(*given, **named), self._calls)


class Database:
    """A connection to PostgreSQL whose statements are counted, the end of a transaction among them."""

    def __init__(self, connection: Any, calls: Calls) -> None:
        self._connection, self._calls = connection, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, *given: Any, **named: Any) -> Any:
        return self._calls(self._connection.execute, *given, **named)

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        with self._connection.cursor() as cursor:
            yield _Cursor(cursor, self._calls)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        after = False
        with self._connection.transaction() as transaction:
            yield transaction
            try:
                self._calls(lambda: None)
            except Died:
                after = self._calls.how == "after"
                if not after:
                    raise
        if after:
            raise Died


class _Cursor:
    def __init__(self, cursor: Any, calls: Calls) -> None:
        self._cursor, self._calls = cursor, calls

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)

    def executemany(self, *given: Any) -> Any:
        return self._calls(self._cursor.executemany, *given)


def failure(engine: Engine) -> Exception:
    """What the client of an engine may raise at any call."""
    if isinstance(engine, Postgres):
        import psycopg

        return psycopg.errors.DiskFull("no space left on device")
    if isinstance(engine, Milvus):
        from pymilvus import MilvusException

        return MilvusException(message="no space left on device")
    return OSError("no space left on device")


@contextmanager
def watched(engine: Engine, url: str, calls: Calls) -> Iterator[Connection]:
    """A connection whose calls are counted; at its end the process that had it is gone."""
    items = gqe.connect(url, device="cpu")
    store: Any = items.store
    if isinstance(engine, Postgres):
        real = store._database.connection
        store._database.connection = Database(real, calls)
    else:
        real = store._client
        store._client = (LanceClient if isinstance(engine, Lance) else Client)(real, calls)
    try:
        yield items
    finally:
        if not isinstance(engine, Lance):
            real.close()
        if isinstance(engine, Milvus):
            engine.release(url)


@contextmanager
def opened(engine: Engine, url: str) -> Iterator[Connection]:
    """A connection as of a process of its own."""
    with gqe.connect(url, device="cpu") as items:
        yield items
    if isinstance(engine, Milvus):
        engine.release(url)


def copied(engine: Engine, url: str) -> str:
    """The address of a copy of a collection and of all that is kept beside it."""
    number = next(_number)
    if isinstance(engine, Postgres):
        table = url.partition("table=")[2]
        for beside in ("", "_gqe", "_gqe_about"):
            if engine.run(f"SELECT to_regclass('{table}{beside}') IS NOT NULL")[0][0]:
                engine.run(f"CREATE TABLE {table}_{number}{beside} (LIKE {table}{beside} INCLUDING ALL)")
                engine.run(f"INSERT INTO {table}_{number}{beside} TABLE {table}{beside}")
        return f"{url}_{number}"
    scheme, _, rest = url.partition("://")
    path = Path(rest.partition("?")[0])
    copy = path.with_name(f"copy{number}{path.suffix}")
    shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
    return f"{scheme}://{copy}?{rest.partition('?')[2]}"
