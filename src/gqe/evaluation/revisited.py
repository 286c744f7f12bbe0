"""Ground truth of the Revisited Oxford and Paris benchmarks: easy, hard and junk items of each query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gqe.errors import InputError
from gqe.evaluation.base import GroundTruth, Ids, Protocol, whole_numbers

_GROUPS = ("easy", "hard", "junk")
_EASY, _HARD, _JUNK = 0, 1, 2


class RevisitedGroundTruth(GroundTruth):
    """Easy, hard and junk items of each query (Radenović et al., Revisiting Oxford and Paris, CVPR 2018).

    Easy counts the easy items, Hard the hard ones, Medium both. What a protocol neither counts nor takes for
    a plain negative is deleted from the ranking before anything is measured: junk always, hard items under
    Easy, easy items under Hard.

    Args:
        easy: m lists of 0-based database ids.
        hard: m lists of 0-based database ids.
        junk: m lists of 0-based database ids.
        n: database size; None leaves it open, and then only negative ids are refused.

    Example:
        >>> truth = RevisitedGroundTruth(easy=[[1]], hard=[[4, 5]], junk=[[0]], n=10)
        >>> truth.relevance().nonzero()[1].tolist()
        [1, 4, 5]
    """

    protocols: ClassVar[Mapping[str, Protocol]] = {
        "easy": Protocol(positive=(_EASY,), junk=(_HARD, _JUNK)),
        "medium": Protocol(positive=(_EASY, _HARD), junk=(_JUNK,)),
        "hard": Protocol(positive=(_HARD,), junk=(_EASY, _JUNK)),
    }
    main_protocol: ClassVar[str] = "medium"

    def __init__(
        self,
        easy: Sequence[Iterable[int]],
        hard: Sequence[Iterable[int]],
        junk: Sequence[Iterable[int]],
        n: int | None = None,
    ) -> None:
        lists = [_read_lists(value, name) for name, value in zip(_GROUPS, (easy, hard, junk), strict=True)]
        lengths = [len(group) for group in lists]
        if len(set(lengths)) != 1:
            raise InputError(f"easy, hard, junk: {lengths} lists; give each one list per query")
        if n is not None and n < 0:
            raise InputError(f"n: {n} is no database size; give 0 or more, or None where it is open")
        self.queries, self.n = lengths[0], n
        self.easy, self.hard, self.junk = (
            [_read_ids(ids, name, query, n) for query, ids in enumerate(group)]
            for name, group in zip(_GROUPS, lists, strict=True)
        )
        for query in range(self.queries):
            _check_disjoint(self.groups(query), query)

    @classmethod
    def from_official(cls, gnd: Any, n: int | None = None) -> RevisitedGroundTruth:
        """Read the published form: `{"gnd": [...], "imlist": [...]}`, or the list itself.

        Args:
            gnd: one dict per query with `easy`, `hard` and `junk`, or a dict that holds this list under
                "gnd".
            n: database size; by default the length of `imlist` where there is one.

        Example:
            >>> RevisitedGroundTruth.from_official([{"easy": [0], "hard": [], "junk": [2]}])
            RevisitedGroundTruth(queries=1, n=None)
        """
        if isinstance(gnd, Mapping):
            if "gnd" not in gnd:
                raise InputError(
                    'ground truth: no "gnd" in it; expected {"gnd": [{"easy", "hard", "junk"}, ...]}'
                )
            if n is None and gnd.get("imlist") is not None:
                n = len(_read_lists(gnd["imlist"], "imlist"))
            gnd = gnd["gnd"]
        entries = _read_lists(gnd, "ground truth")
        for query, entry in enumerate(entries):
            for name in _GROUPS:
                if not isinstance(entry, Mapping) or name not in entry:
                    raise InputError(
                        f'ground truth: query {query} has no list "{name}"; give it easy, hard and junk'
                    )
        easy, hard, junk = ([entry[name] for entry in entries] for name in _GROUPS)
        return cls(easy, hard, junk, n)

    def with_distractors(self, count: int) -> RevisitedGroundTruth:
        """Give the same ground truth over a database followed by `count` more items, all plain negatives.

        Example:
            >>> RevisitedGroundTruth([[0]], [[]], [[]], n=4993).with_distractors(1_001_001).n
            1005994
        """
        if count < 0:
            raise InputError(f"count: {count} distractors; give 0 or more")
        return RevisitedGroundTruth(
            self.easy, self.hard, self.junk, None if self.n is None else self.n + count
        )

    def groups(self, query: int) -> tuple[Ids, ...]:
        """Give the easy, hard and junk ids of one query."""
        return self.easy[query], self.hard[query], self.junk[query]

    def __repr__(self) -> str:
        return f"RevisitedGroundTruth(queries={self.queries}, n={self.n})"


def _read_lists(value: Any, name: str) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InputError(f"{name}: expected a list, got {type(value).__name__}")
    return list(value)


def _read_ids(ids: Any, name: str, query: int, n: int | None) -> Ids:
    where = f'ground truth: query {query}, list "{name}"'
    found = whole_numbers(ids, where, "give 0-based database ids")
    wrong = found < 0 if n is None else (found < 0) | (found >= n)
    if wrong.any():
        allowed = "0 or more" if n is None else f"below {n}"
        raise InputError(f"{where}: id {found[wrong][0]} is not in the database; ids are {allowed}")
    return found


def _check_disjoint(groups: tuple[Ids, ...], query: int) -> None:
    ids = np.concatenate(groups)
    distinct, counts = np.unique(ids, return_counts=True)
    if len(distinct) == len(ids):
        return
    repeated = distinct[counts > 1][0]
    lists = [
        name
        for name, group in zip(_GROUPS, groups, strict=True)
        for _ in range(int((group == repeated).sum()))
    ]
    raise InputError(
        f"ground truth: query {query}, id {repeated} is listed more than once ({', '.join(lists)}); keep one"
    )
