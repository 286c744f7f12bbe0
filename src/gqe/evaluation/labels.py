"""Ground truth by labels: an item is relevant to a query when both carry the same label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from gqe.errors import InputError
from gqe.evaluation.base import GroundTruth, Ids, Protocol, whole_numbers

DISTRACTOR = -1
_RELEVANT, _EXCLUDED = 0, 1


class LabelGroundTruth(GroundTruth):
    """One label per query and per database item.

    Label -1 is nobody's: a database item with it is a distractor, a query with it has no relevant item.
    Queries without a relevant item are left out of every mean.

    Args:
        query_labels: (m,) whole numbers, -1 or more.
        database_labels: (n,) whole numbers, -1 or more.
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
        self.query_labels = _read_labels(query_labels, "query_labels")
        self.database_labels = _read_labels(database_labels, "database_labels")
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


def _read_labels(value: Any, name: str) -> Ids:
    labels = whole_numbers(value, name, "number the labels, as np.unique(..., return_inverse=True) does")
    wrong = np.flatnonzero(labels < DISTRACTOR)
    if len(wrong):
        raise InputError(
            f"{name}: label {labels[wrong[0]]} in row {wrong[0]}; labels are 0 or more, or -1 for nobody's"
        )
    return labels
