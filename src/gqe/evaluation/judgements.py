"""Graded judgements of some items of each query: TREC qrels, BEIR, lists of relevant ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gqe.errors import InputError, short_repr
from gqe.evaluation.ground_truth import GroundTruth, Ids, Protocol


class JudgedGroundTruth(GroundTruth):
    """The items that are relevant to each query, maybe in grades; what nobody judged is not relevant.

    Metrics are those of trec_eval. Queries without a relevant item are left out of every mean.

    Args:
        judgements: for each query its relevant items, or {item: grade}, where 0 and less is not relevant: a
            list in the order of the queries, or a dict by the ids of the queries. Items are called as in
            the results, by row numbers or ids.
        query_ids: with a dict: which query each row of results is; by default all, in the order of the dict.
        database_ids: how the rows of the database are called in the judgements. Then results and scores may
            name items by row, too. A relevant item that is not among them counts as never found.
        n: database size, where items are rows.

    Example:
        >>> truth = JudgedGroundTruth({"q1": {"d7": 2, "d9": 0}}, database_ids=["d7", "d8", "d9"])
        >>> truth.groups(0)[0].tolist(), truth.grades(0).tolist()
        ([0], [2])
    """

    protocols: ClassVar[Mapping[str, Protocol]] = {"judged": Protocol(positive=(0,), junk=())}
    main_protocol: ClassVar[str] = "judged"

    def __init__(
        self,
        judgements: Mapping[Any, Any] | Sequence[Any],
        *,
        query_ids: Sequence[Any] | None = None,
        database_ids: Sequence[Any] | None = None,
        n: int | None = None,
    ) -> None:
        if isinstance(judgements, Mapping):
            known = {str(query): items for query, items in judgements.items()}
            self.query_ids = [str(query) for query in (known if query_ids is None else query_ids)]
            if known and not set(known) & set(self.query_ids):
                raise InputError(
                    f"query_ids: none of them is judged; the judgements have {short_repr(next(iter(known)))}"
                )
            lists = [known.get(query, ()) for query in self.query_ids]
        else:
            if query_ids is not None:
                raise InputError("query_ids: go with judgements by query id; a list stands in order already")
            lists = list(judgements)
            self.query_ids = [str(query) for query in range(len(lists))]
        self.queries = len(lists)
        graded = [_graded(items, query) for query, items in zip(self.query_ids, lists, strict=True)]
        self.names = None if database_ids is None else numbered(database_ids)
        self.int_names = database_ids is not None and not isinstance(next(iter(database_ids), None), str)
        by_row = all(isinstance(item, int) for items in graded for item in items)
        if self.names is None and not by_row:
            self.names = {item: i for i, item in enumerate(dict.fromkeys(str(i) for g in graded for i in g))}
            self.names_rows = False
        self.n = n if database_ids is None else len(database_ids)
        self._items: list[Ids] = []
        self._grades: list[NDArray[np.int64]] = []
        self._ideal: list[NDArray[np.int64]] = []
        for items in graded:
            relevant = {item: grade for item, grade in items.items() if grade > 0}
            names = self.names
            rows = {
                row: grade
                for item, grade in relevant.items()
                if (row := item if names is None else names.get(str(item), -1)) >= 0
            }
            self._items.append(np.array(list(rows), dtype=np.int64))
            self._grades.append(np.array(list(rows.values()), dtype=np.int64))
            self._ideal.append(-np.sort(-np.array(list(relevant.values()), dtype=np.int64)))
        if self.n is not None:
            for query, rows_of_query in zip(self.query_ids, self._items, strict=True):
                if len(rows_of_query) and rows_of_query.max() >= self.n:
                    raise InputError(
                        f"judgements: query {query!r} names item {rows_of_query.max()}, of {self.n}"
                    )

    def groups(self, query: int) -> tuple[Ids, ...]:
        """Give the rows of the relevant items of one query that are in the database."""
        return (self._items[query],)

    def grades(self, query: int) -> NDArray[np.int64]:
        """Give the grades of these items, all above 0."""
        return self._grades[query]

    def ideal(self, query: int) -> NDArray[np.int64]:
        """Give the grades of all relevant items, best first, whether they are in the database or not."""
        return self._ideal[query]

    def relevance(self, n: int | None = None) -> sparse.csr_array:
        """See `GroundTruth.relevance`."""
        if not self.names_rows:
            raise InputError(
                "ground truth: its items are named by ids; give database_ids, the id of each database row"
            )
        return super().relevance(n)

    def __repr__(self) -> str:
        return f"JudgedGroundTruth(queries={self.queries}, n={self.n})"


def _graded(items: Any, query: str) -> dict[Any, int]:
    """Items with their grades; ids are plain ints or texts."""
    where = f"judgements: query {query!r}"
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise InputError(f"{where}: expected the relevant items, or {{item: grade}}, got {short_repr(items)}")
    pairs = items.items() if isinstance(items, Mapping) else ((item, 1) for item in items)
    result: dict[Any, int] = {}
    for given, grade in pairs:
        item = given.item() if isinstance(given, np.generic) else given
        if isinstance(item, bool) or not isinstance(item, int | str) or (isinstance(item, int) and item < 0):
            raise InputError(f"{where}: {short_repr(given)} is no id; give row numbers from 0, or texts")
        if isinstance(grade, bool | np.bool_) or not isinstance(grade, int | np.integer):
            raise InputError(f"{where}: the grade of {item!r} is {short_repr(grade)}; give whole numbers")
        if item in result:
            raise InputError(f"{where}: {item!r} stands there twice; name each item once")
        result[item] = int(grade)
    return result


def numbered(ids: Sequence[Any]) -> dict[str, int]:
    """The row of each id."""
    names = {str(name): row for row, name in enumerate(ids)}
    if len(names) != len(ids):
        raise InputError("database_ids: an id stands there twice; give one for each row, all different")
    return names
