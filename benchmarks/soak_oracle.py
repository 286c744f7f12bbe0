"""What an index must hold and answer, from the changes that were sent to it. Used by soak.py.

Every change that was stored has a version. One that was not acknowledged, but is there, has a range of
versions: it came after those that were known when it was sent, and not after the one in which it was found.
An answer is right if one version that the service could be at while it was asked gives that answer.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

_MOST = 1_000_000  # rows; memory that is not used costs nothing
_NEVER = 0  # number of a change that is never applied
_BUILD = 1
# Scores are sums of float32 products in another order.
_ROUNDING = 2e-5


class Items(NamedTuple):
    """Items of a change: ids, unit vectors (m, d), and a number for each to filter by."""

    ids: list[int]
    vectors: np.ndarray
    years: list[int]


class Sent(NamedTuple):
    """A change that is under way."""

    number: int
    begun: float
    after: int


class Content(NamedTuple):
    """All that an index held at a version."""

    version: int
    ids: np.ndarray
    vectors: np.ndarray


class Query(NamedTuple):
    """A search by vector or by id; its answer is known exactly, or only which items may be in it."""

    k: int
    vector: np.ndarray | None = None
    id: int | None = None
    years: Sequence[int] | None = None
    exact: bool = True
    few: bool = False  # whether fewer than k items may come


class Answer(NamedTuple):
    """What came back: ids and scores, or ids None if the service said that the item is not there."""

    ids: list[int] | None
    scores: list[float]


class Oracle:
    """The changes so far, and checks of what was read.

    Args:
        items: what the index was built with.
        grace: seconds after which the service must have seen what another process changed.
    """

    def __init__(self, items: Items, grace: float) -> None:
        self._lock = threading.RLock()
        self._grace = grace
        self._ids = np.zeros(_MOST, np.int64)
        self._vectors = np.zeros((_MOST, items.vectors.shape[1]), np.float32)
        self._years = np.zeros(_MOST, np.int64)
        # By row: the change that brought it and the one that removed it; by change: its range of versions.
        self._born, self._died = np.zeros(_MOST, np.int64), np.zeros(_MOST, np.int64)
        self._low, self._high = np.full(_MOST, 2**62), np.full(_MOST, 2**62)
        self._begun = np.zeros(_MOST)
        self._row: dict[int, int] = {}  # the newest row of each id
        self._rows, self._changes = 0, _BUILD
        self._under_way: dict[int, Sent] = {}
        self._numbers = itertools.count()
        self._others: deque[tuple[float, int]] = deque()  # what the service need not have seen yet
        self._floor = self.newest = 1
        self._insert(items, _BUILD)
        self._low[_BUILD] = self._high[_BUILD] = 1

    def send(self) -> Sent:
        """A change is about to be sent."""
        with self._lock:
            sent = Sent(next(self._numbers), time.monotonic(), self.newest)
            self._under_way[sent.number] = sent
            return sent

    def drop(self, sent: Sent) -> None:
        """It was not stored."""
        with self._lock:
            del self._under_way[sent.number]

    def store(
        self, sent: Sent, added: Items | None, removed: list[int], version: int, *, known: bool, service: bool
    ) -> None:
        """It was stored: in this version if it is known, in this or an earlier one if not.

        Args:
            sent: see `send`.
            added: items that came; None for none.
            removed: ids of items that went, also of those that came anew.
            version: that has it.
            known: whether this version is the first that has it.
            service: whether the service stored it.
        """
        with self._lock:
            self._changes += 1
            number = self._changes
            self._low[number] = version if known else sent.after + 1
            self._high[number] = version
            self._begun[number] = sent.begun
            for item in removed:
                self._died[self._row.pop(item)] = number
            if added is not None:
                self._insert(added, number)
            self.drop(sent)
            self.see(version, service=service and known)

    def see(self, version: int, *, service: bool) -> None:
        """This version is there; the service has it from now on, or will have it soon."""
        with self._lock:
            self.newest = max(self.newest, version)
            if service:
                self._floor = max(self._floor, version)
            else:
                self._others.append((time.monotonic(), version))

    def floor(self, calm_since: float) -> int:
        """The oldest version that a request sent now may be answered from."""
        with self._lock:
            now = time.monotonic()
            if calm_since + self._grace < now:
                while self._others and self._others[0][0] + self._grace < now:
                    self._floor = max(self._floor, self._others.popleft()[1])
            return self._floor

    def is_decided(self, until: float) -> bool:
        """Whether all changes that were sent before a moment have ended."""
        with self._lock:
            return all(sent.begun > until for sent in self._under_way.values())

    def some_ids(self) -> list[int]:
        """Ids that are there if nothing is under way."""
        with self._lock:
            return list(self._row)

    def is_right(self, query: Query, answer: Answer, floor: int, until: float) -> bool:
        """Whether a version from the floor to what was sent until the answer came gives this answer."""
        with self._lock:
            rows, vectors = self._rows, self._vectors[: self._rows]
            ids, years = self._ids[:rows], self._years[:rows]
            scores = None if query.vector is None else vectors @ query.vector
            known = np.ones(rows, bool) if query.years is None else np.isin(years, query.years)
            for alive in self._states(floor, until):
                own = np.flatnonzero(alive & (ids == query.id))
                if query.id is not None and not len(own):
                    if answer.ids is None:
                        return True
                    continue
                if answer.ids is None:
                    continue
                given = scores if query.id is None else vectors @ vectors[own[0]]
                allowed = alive & known & (ids != query.id)
                if _fits(query, answer, np.flatnonzero(allowed), ids, given):
                    return True
            return False

    def differences(self, content: Content) -> dict[str, int]:
        """What is missing, still there, or another vector, in the content of an index."""
        with self._lock:
            found = dict(zip(content.ids.tolist(), content.vectors, strict=True))
            best: dict[str, int] | None = None
            for alive in self._at(content.version):
                rows = np.flatnonzero(alive)
                wanted = dict(zip(self._ids[rows].tolist(), self._vectors[rows], strict=True))
                shared = wanted.keys() & found.keys()
                wrong = sum(not np.allclose(wanted[i], found[i], atol=1e-6) for i in shared)
                now = {
                    "missing": len(wanted.keys() - found.keys()),
                    "still there": len(found.keys() - wanted.keys()),
                    "wrong vector": wrong,
                }
                if best is None or sum(now.values()) < sum(best.values()):
                    best = now
            assert best is not None
            return best

    def _insert(self, items: Items, number: int) -> None:
        start, stop = self._rows, self._rows + len(items.ids)
        self._ids[start:stop], self._vectors[start:stop] = items.ids, items.vectors
        self._years[start:stop], self._born[start:stop] = items.years, number
        self._row |= zip(items.ids, range(start, stop), strict=True)
        self._rows = stop

    def _states(self, floor: int, until: float) -> Iterator[np.ndarray]:
        """Which rows were there at each version that can have been read."""
        changes = slice(1, self._changes + 1)
        low, high = self._low[changes], self._high[changes]
        sent = self._begun[changes] <= until
        for version in np.unique(np.concatenate([[floor], low[sent], high[sent]])):
            if version >= floor:
                yield from self._at(int(version))

    def _at(self, version: int) -> Iterator[np.ndarray]:
        """Which rows were there at a version, for every choice of changes that it may have or not."""
        applied = self._high[: self._changes + 1] <= version
        maybe = np.flatnonzero((self._low[: self._changes + 1] <= version) & ~applied)
        for choice in itertools.product((False, True), repeat=min(len(maybe), 10)):
            applied[maybe[:10]] = choice
            yield applied[self._born[: self._rows]] & ~applied[self._died[: self._rows]]


def _fits(query: Query, answer: Answer, rows: np.ndarray, ids: np.ndarray, scores: Any) -> bool:
    """Whether an answer is that of a search among these rows."""
    assert answer.ids is not None
    places = dict(zip(ids[rows].tolist(), rows, strict=True))
    count = len(answer.ids)
    if len(set(answer.ids)) < count or not all(item in places for item in answer.ids):
        return False
    if count > min(query.k, len(rows)) or (count < min(query.k, len(rows)) and not query.few):
        return False
    if not query.exact or not count:
        return True
    found = scores[[places[item] for item in answer.ids]]
    rest = scores[np.setdiff1d(rows, [places[item] for item in answer.ids])]
    return bool(
        np.abs(found - answer.scores).max() < _ROUNDING
        and (np.diff(answer.scores) <= 0).all()
        and (not len(rest) or rest.max() <= found.min() + _ROUNDING)
    )
