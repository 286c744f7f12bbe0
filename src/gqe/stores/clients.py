"""What stores have in common that talk to an engine by its client."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from gqe.stores.address import Address, collection_of
from gqe.stores.base import Array, Batch, Fields, Store
from gqe.stores.leases import insert_reserved


class CollectionStore(Store):
    """What engines with collections have in common; see there for the addresses.

    Args:
        address: of one collection, on a server or in a path of this machine.
    """

    def __init__(self, address: Address) -> None:
        self._where = address
        self.address = address.display
        self._name, self._path = collection_of(address)
        self._side, self._about = f"{self._name}_gqe", f"{self._name}_gqe_about"
        self._local = bool(self._path)
        self._fields: set[str] = set()  # that some item is known to have

    @abstractmethod
    def _exists(self, collection: str) -> bool:
        """Whether there is a collection of this name."""

    @abstractmethod
    def _drop(self, collection: str) -> None:
        """Remove a collection."""

    @abstractmethod
    def _delete(self, collection: str, ids: Array) -> None:
        """Remove points or rows."""

    def insert(self, ids: Array, vectors: Array, fields: Fields = None) -> None:
        insert_reserved(self, ids, vectors, fields)

    def delete(self, ids: Array) -> Array:
        self._delete(self._name, ids)
        return ids

    def delete_records(self, ids: Array) -> None:
        self._delete(self._side, ids)

    def has_records(self) -> bool:
        return self._exists(self._side)

    def _fetch_after(self, ids: Array, after: Any, size: int | None) -> Iterator[Batch]:
        """The items of sorted ids behind one of them; those that were removed meanwhile are left out."""
        if after is not None:
            ids = ids[np.array([name > after for name in ids.tolist()], dtype=bool)]
        for some in split_ids(ids, size or self.batch):
            batch = self.fetch(some)
            if len(batch.ids):
                yield batch

    def detach(self) -> None:
        for name in (self._about, self._side):  # records without texts about them do no harm
            if self._exists(name):
                self._drop(name)


def split_ids(ids: Array, size: int) -> Iterator[Array]:
    """Parts of some ids, none longer than a size."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


def json_value(value: Any) -> Any:
    """A value as JSON has it."""
    return value.item() if isinstance(value, np.generic) else value


class _SilencedCalls:
    """How many calls are under way, in all threads, and the levels of the loggers before the first."""

    lock = threading.Lock()
    count = 0
    levels: ClassVar[list[int]] = []
    # Milvus logs a traceback of everything that it raises, too; psycopg what a lost connection leaves undone.
    loggers = tuple(
        logging.getLogger(name)
        for name in ("pymilvus", "pymilvus.decorators", "milvus_lite", "grpc._server", "psycopg")
    )


@contextmanager
def silence_clients() -> Iterator[None]:
    """Without what clients log beside their exceptions."""
    calls = _SilencedCalls
    with calls.lock:
        calls.count += 1
        if calls.count == 1:
            calls.levels = [logger.level for logger in calls.loggers]
            for logger in calls.loggers:
                logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        with calls.lock:
            calls.count -= 1
            if not calls.count:
                for logger, level in zip(calls.loggers, calls.levels, strict=True):
                    logger.setLevel(level)
