"""One thread writes: a change is acknowledged when it is safely stored, changes that wait go together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from gqe.errors import StorageError
from gqe.server.batching import Busy
from gqe.server.engine import Engine, ItemId

Array = np.ndarray[Any, Any]


class Add(NamedTuple):
    """Items to add: checked vectors (m, d), their ids, and columns of metadata."""

    vectors: Array
    ids: list[ItemId] | None
    metadata: dict[str, list[Any]] | None


class Remove(NamedTuple):
    """Items to remove."""

    ids: list[ItemId]


class Reload(NamedTuple):
    """Others changed the engine: see it."""


class Written(NamedTuple):
    """A change that is stored: which items, how many there are now, and the version that has it."""

    ids: list[ItemId]
    items: int
    version: int


Change = Add | Remove | Reload


def size(change: Change) -> int:
    """How many items it touches."""
    if isinstance(change, Reload):
        return 0
    return len(change.vectors) if isinstance(change, Add) else len(change.ids)


def write(engine: Engine, changes: Sequence[Change]) -> list[Written | Exception]:
    """Store changes in their order; those of one kind that follow each other as one, if that is possible."""
    answers: list[Written | Exception] = []
    for _, group in groupby(changes, _kind):
        members = list(group)
        together = _stored(engine, members)
        if isinstance(together, Busy | StorageError | OSError):  # nobody is to blame
            answers += [together] * len(members)
        elif isinstance(together, Exception) and len(members) > 1:
            # Nothing was changed. One by one, only those fail that are to blame.
            answers += [_one(_stored(engine, [member])) for member in members]
        elif isinstance(together, Exception):
            answers.append(together)
        else:
            answers += together
    return answers


def _one(stored: list[Written] | Exception) -> Written | Exception:
    return stored if isinstance(stored, Exception) else stored[0]


def _kind(change: Change) -> tuple[Any, ...]:
    """What changes must share to be stored as one."""
    if not isinstance(change, Add):
        return (type(change),)
    return (Add, change.ids is None, None if change.metadata is None else tuple(sorted(change.metadata)))


def _stored(engine: Engine, members: list[Change]) -> list[Written] | Exception:
    try:
        first = members[0]
        ids: list[ItemId] = []
        if isinstance(first, Reload):
            engine.reload()
        elif isinstance(first, Remove):
            ids = [each for member in members if isinstance(member, Remove) for each in member.ids]
            engine.remove(ids)
        else:
            adds = [member for member in members if isinstance(member, Add)]
            given = None if first.ids is None else [each for add in adds for each in add.ids or []]
            vectors = np.concatenate([add.vectors for add in adds])
            ids = engine.add(vectors, given, _joined(adds))
    except Exception as error:
        return error
    items, version, start, result = len(engine), engine.version, 0, []
    for member in members:
        stop = start + size(member)
        result.append(Written(ids[start:stop], items, version))
        start = stop
    return result


def _joined(adds: list[Add]) -> dict[str, list[Any]] | None:
    if adds[0].metadata is None:
        return None
    tables = [add.metadata or {} for add in adds]
    return {column: [value for table in tables for value in table[column]] for column in tables[0]}
