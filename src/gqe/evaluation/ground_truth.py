"""Which database items are relevant to which query: by labels, or by lists as in the Revisited benchmarks."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from gqe.errors import InputError
from gqe.formats import read_ground_truth, read_qrels

Ids = NDArray[np.int64]

DISTRACTOR = -1
_RELEVANT, _EXCLUDED = 0, 1
_GROUPS = ("easy", "hard", "junk")
_EASY, _HARD, _JUNK = 0, 1, 2


class Protocol(NamedTuple):
    """Which groups of a query's labelled items count as positives, and which are deleted from the ranking."""

    positive: tuple[int, ...]
    junk: tuple[int, ...]


class GroundTruth(ABC):
    """Which database items are relevant to which query.

    A ground truth sorts the items it knows about each query into groups, and has one or more protocols, each
    a choice of groups. Everything else in the database is a plain negative.

    Attributes:
        queries: number of queries m.
        n: database size, or None where any size will do.
        names: the row of each item that results name by an id of its own, or None.
        names_rows: whether these are rows of the database, not only numbers of the items that are judged.
        int_names: whether whole numbers in results are such ids, not rows.
        query_ids: how the queries are called, or None.
    """

    protocols: ClassVar[Mapping[str, Protocol]]
    main_protocol: ClassVar[str]
    queries: int
    n: int | None
    names: dict[str, int] | None = None
    names_rows: bool = True
    int_names: bool = False
    query_ids: list[str] | None = None

    @abstractmethod
    def groups(self, query: int) -> tuple[Ids, ...]:
        """Give the ids of each group of one query; the groups are disjoint."""

    def relevance(self, n: int | None = None) -> sparse.csr_array:
        """Give the items relevant to each query under the main protocol.

        Args:
            n: database size, needed where the ground truth was made without one.

        Returns:
            (m, n) sparse bool matrix.
        """
        return self._matrix(self.protocols[self.main_protocol].positive, n)

    def ignored(self, n: int | None = None) -> sparse.csr_array:
        """Give the items that count neither for nor against each query: (m, n) sparse bool matrix."""
        return self._matrix(self.protocols[self.main_protocol].junk, n)

    def _matrix(self, chosen: tuple[int, ...], n: int | None) -> sparse.csr_array:
        size = self.size(n)
        rows = [np.sort(np.concatenate([self.groups(i)[g] for g in chosen])) for i in range(self.queries)]
        starts = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
        columns = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        if len(columns) and columns.max() >= size:
            raise InputError(f"n: a database of {size} items has no item {columns.max()} of the ground truth")
        return sparse.csr_array((np.ones(len(columns), bool), columns, starts), shape=(self.queries, size))

    def size(self, n: int | None = None) -> int:
        """Give the database size: the ground truth's own, which `n` may repeat, or `n`."""
        if n is None:
            n = self.n
        if n is None:
            raise InputError("n: this ground truth does not know the database size; give n")
        if self.n is not None and n != self.n:
            raise InputError(f"n: {n} differs from the ground truth's database of {self.n} items")
        return n


class LabelGroundTruth(GroundTruth):
    """One label per query and per database item.

    Label -1 is nobody's: a database item with it is a distractor, a query with it has no relevant item.
    Queries without a relevant item are left out of every mean.

    Args:
        query_labels: (m,) whole numbers, -1 or more; or texts, where "" and None are nobody's.
        database_labels: (n,) likewise.
        exclude: (m,) the database id of the query's own entry, or -1 where the query is not in the database.
            That entry is deleted from the ranking and is not a positive.

    Example:
        >>> truth = LabelGroundTruth([7, 8], [7, 8, 7, -1], exclude=[0, -1])
        >>> truth.groups(0)[0].tolist(), truth.groups(1)[0].tolist()
        ([2], [1])
    """

    protocols: ClassVar[Mapping[str, Protocol]] = {
        "labels": Protocol(positive=(_RELEVANT,), junk=(_EXCLUDED,))
    }
    main_protocol: ClassVar[str] = "labels"

    def __init__(
        self, query_labels: ArrayLike, database_labels: ArrayLike, exclude: ArrayLike | None = None
    ) -> None:
        self.query_labels, self.database_labels = _read_both_labels(query_labels, database_labels)
        self.queries, self.n = len(self.query_labels), len(self.database_labels)
        self.exclude = self._read_exclude(exclude)
        # Items grouped by label once: a query's positives are then one slice, not a pass over the database.
        self._by_label = np.argsort(self.database_labels, kind="stable")
        grouped = self.database_labels[self._by_label]
        self._first = np.searchsorted(grouped, self.query_labels, side="left")
        self._last = np.searchsorted(grouped, self.query_labels, side="right")

    def groups(self, query: int) -> tuple[Ids, ...]:
        """Give the ids relevant to one query, and its own entry where it is excluded."""
        own = self.exclude[query : query + 1]
        own = own[own >= 0]
        if self.query_labels[query] == DISTRACTOR:
            return np.zeros(0, np.int64), own
        same = self._by_label[self._first[query] : self._last[query]]
        return same[same != own[0]] if len(own) else same, own

    def _read_exclude(self, exclude: Any) -> Ids:
        if exclude is None:
            return np.full(self.queries, -1)
        ids = whole_numbers(exclude, "exclude", "give one database id per query, -1 for none")
        if len(ids) != self.queries:
            raise InputError(
                f"exclude: {len(ids)} ids for {self.queries} queries; give one per query, -1 for none"
            )
        wrong = np.flatnonzero((ids < -1) | (ids >= len(self.database_labels)))
        if len(wrong):
            raise InputError(
                f"exclude: id {ids[wrong[0]]} of query {wrong[0]} is not in the database; "
                f"ids are below {len(self.database_labels)}, -1 for none"
            )
        return ids

    def __repr__(self) -> str:
        return f"LabelGroundTruth(queries={self.queries}, n={self.n})"


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


def as_ground_truth(
    value: Any, *, query_ids: Sequence[Any] | None = None, database_ids: Sequence[Any] | None = None
) -> GroundTruth:
    """Turn what users hold into a ground truth.

    Args:
        value: a `GroundTruth`; the official dict `{"gnd": [...]}` or its list of dicts with easy, hard, junk;
            a tuple `(query_labels, database_labels)`; a dict (or opened .npz) with the keys
            `query_labels`, `database_labels` and, if wished, `exclude`; a list with the ids of the relevant
            items of each query, or {item: grade} of each; qrels, {query id: {item: grade}}; or a file of one
            of these, TREC, BEIR or gnd_*.pkl.
        query_ids: see `JudgedGroundTruth`, for qrels only.
        database_ids: see `JudgedGroundTruth`, for qrels only.

    Example:
        >>> as_ground_truth(([0, 1], [1, 0, 0]))
        LabelGroundTruth(queries=2, n=3)
        >>> as_ground_truth({"gnd": [{"easy": [1], "hard": [], "junk": []}]})
        RevisitedGroundTruth(queries=1, n=None)
    """
    from gqe.evaluation.judgements import JudgedGroundTruth

    if isinstance(value, str | os.PathLike):
        official = Path(value).suffix.lower() in (".pkl", ".pickle", ".json", ".mat")
        value = read_ground_truth(value) if official else read_qrels(value)
    if _is_judgements(value):
        return JudgedGroundTruth(value, query_ids=query_ids, database_ids=database_ids)
    if query_ids is not None:
        raise InputError("query_ids: go with qrels, {query id: {item: grade}}; leave them out")
    if isinstance(value, GroundTruth):
        return value
    if isinstance(value, Mapping):
        if "query_labels" in value and "database_labels" in value:
            return LabelGroundTruth(value["query_labels"], value["database_labels"], value.get("exclude"))
        if "gnd" in value:
            return RevisitedGroundTruth.from_official(value)
    elif isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], Mapping):
        return LabelGroundTruth(*value)
    elif isinstance(value, (list, tuple)) and all(isinstance(entry, Mapping) for entry in value):
        return RevisitedGroundTruth.from_official(value)
    raise InputError(
        f"ground_truth: cannot read {_describe(value)}; give (query_labels, database_labels), "
        'a dict with these keys, {"gnd": [{"easy", "hard", "junk"}, ...]}, a list of the ids relevant to each'
        " query, or {query id: {item: grade}}"
    )


def _is_judgements(value: Any) -> bool:
    """Whether these are lists of relevant items, or items with grades."""
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(items, Mapping | set | frozenset) for items in value.values())
    lists = (list, tuple, set, frozenset, np.ndarray, Mapping)
    if not isinstance(value, list) or not value or not all(isinstance(items, lists) for items in value):
        return False
    official = {"ok", *_GROUPS}
    return not any(isinstance(items, Mapping) and official & items.keys() for items in value)


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict with the keys {', '.join(str(key) for key in list(value)[:8])}"
    return f"a {type(value).__name__}"


def to_numpy(value: Any, name: str) -> NDArray[Any]:
    """Turn an array, a tensor on any device, or nested lists into a NumPy array; copy only where needed."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        try:
            return np.asarray(value.numpy())
        except TypeError:  # bfloat16, which NumPy does not have
            return np.asarray(value.float().numpy())
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}: not an array; are its rows of equal length?") from error


def whole_numbers(value: Any, name: str, remedy: str) -> Ids:
    """Read a flat list of whole numbers as int64."""
    if (
        isinstance(value, Iterable)
        and not hasattr(value, "__array__")
        and not isinstance(value, (str, bytes, list))
    ):
        value = list(value)
    array = to_numpy(value, name)
    if array.ndim != 1:
        raise InputError(f"{name}: expected a flat list, got shape {array.shape}; {remedy}")
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu" or (array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max):
        raise InputError(f"{name}: expected whole numbers, got {array.dtype}; {remedy}")
    return array.astype(np.int64)


def _read_both_labels(query_labels: Any, database_labels: Any) -> tuple[Ids, Ids]:
    """Both as numbers; texts are numbered, alike on both sides."""
    ours, theirs = _read_texts(query_labels), _read_texts(database_labels)
    if ours is None or theirs is None:
        if ours is not theirs and np.size(query_labels) and np.size(database_labels):
            raise InputError("query_labels, database_labels: one has texts, the other numbers; give the same")
        return _read_labels(query_labels, "query_labels"), _read_labels(database_labels, "database_labels")
    numbers = {text: i for i, text in enumerate(sorted({*ours, *theirs} - {""}))}
    first, second = (
        np.array([numbers.get(text, DISTRACTOR) for text in some], np.int64) for some in (ours, theirs)
    )
    return first, second


def _read_texts(labels: Any) -> list[str] | None:
    """A flat list of texts, None among them as ""; None if it is something else."""
    values = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not isinstance(values, list | tuple) or not any(isinstance(value, str) for value in values):
        return None
    if not all(value is None or isinstance(value, str) for value in values):
        return None
    return [value or "" for value in values]


def _read_labels(value: Any, name: str) -> Ids:
    labels = whole_numbers(value, name, "number the labels, as np.unique(..., return_inverse=True) does")
    wrong = np.flatnonzero(labels < DISTRACTOR)
    if len(wrong):
        raise InputError(
            f"{name}: label {labels[wrong[0]]} in row {wrong[0]}; labels are 0 or more, or -1 for nobody's"
        )
    return labels


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
