"""Where given items stand in a query's ranking, from scores or from ranked ids, one query at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gqe.errors import InputError
from gqe.evaluation.base import GroundTruth, Ids, to_numpy

MISSING = -1


class Ranking:
    """The search results to judge: scores of every item, or ids best first; one row per query.

    Args:
        value: (m, n) floating scores, higher is better, ties go to the lower id; or (m, r) integer ids best
            first, where -1 stands for no item and is skipped.
        truth: the ground truth, whose number of queries and database size the rows must fit.
    """

    def __init__(self, value: Any, truth: GroundTruth) -> None:
        self.rows = to_numpy(value, "scores_or_ranking")
        self.n = truth.n
        if self.rows.dtype.kind not in "iuf":
            raise InputError(
                f"scores_or_ranking: dtype {self.rows.dtype}; give floating scores, or integer ids best first"
            )
        self.is_scores = self.rows.dtype.kind == "f"
        self.name = "scores" if self.is_scores else "ranking"
        _check_shape(self.rows, self.name, truth)

    def positions(self, query: int, items: Ids) -> Ids:
        """Give the 0-based position of each of (p,) distinct items in one query's ranking, -1 if absent."""
        if self.is_scores:
            return self._positions_by_score(query, items)
        return self._positions_by_id(query, items)

    def _positions_by_score(self, query: int, items: Ids) -> Ids:
        scores = self.rows[query]
        if scores.dtype == np.float16:  # sorts slowly, and float32 orders it the same
            scores = scores.astype(np.float32)
        n = len(scores)
        if len(items) and items.max() >= n:
            raise InputError(
                f"scores: {n} columns, but the ground truth of query {query} names item {items.max()}; "
                "give one column per database item"
            )
        # Sorting values alone is several times faster than sorting ids by value, and NaN would come last.
        ascending = np.sort(scores)
        if n and np.isnan(ascending[-1]):
            column = int(np.flatnonzero(np.isnan(scores))[0])
            raise InputError(
                f"scores: NaN in row {query}, column {column}; every item needs a number, -inf for none"
            )
        values = scores[items]
        not_above = np.searchsorted(ascending, values, side="right")
        positions: Ids = n - not_above
        ties = not_above - np.searchsorted(ascending, values, side="left")
        for value in np.unique(values[ties > 1]):
            tied = np.flatnonzero(scores == value)
            here = values == value
            positions[here] += np.searchsorted(tied, items[here])
        return positions

    def _positions_by_id(self, query: int, items: Ids) -> Ids:
        ids = self.rows[query]
        ids = ids[ids != MISSING] if ids.dtype.kind == "i" else ids
        _check_ids(ids, query, self.n)
        ids = ids.astype(np.int64, copy=False)
        positions = np.full(len(items), MISSING)
        if len(items):
            by_id = np.argsort(items)
            found = np.flatnonzero(np.isin(ids, items))
            positions[by_id[np.searchsorted(items, ids[found], sorter=by_id)]] = found
        return positions


def _check_shape(rows: NDArray[Any], name: str, truth: GroundTruth) -> None:
    if rows.ndim != 2:
        raise InputError(f"{name}: shape {rows.shape}; give two dimensions, one row per query")
    height, width = rows.shape
    if height != truth.queries:
        advice = "give one row per query"
        if width == truth.queries:
            advice = f"it looks transposed, one column per query: pass {name}.T"
        raise InputError(f"{name}: {height} rows for {truth.queries} queries; {advice}")
    if name == "ranking" or truth.n is None or width == truth.n:
        return
    advice = "give one column per database item, or integer ids best first"
    if width > truth.n and hasattr(truth, "with_distractors"):
        advice += (
            f"; if distractors follow the database, use ground_truth.with_distractors({width - truth.n})"
        )
    raise InputError(f"scores: {width} columns for a database of {truth.n} items; {advice}")


def _check_ids(ids: NDArray[Any], query: int, n: int | None) -> None:
    if len(ids) == 0:
        return
    ascending = np.sort(ids)
    lowest, highest = int(ascending[0]), int(ascending[-1])
    if lowest < 0 or (n is not None and highest >= n):
        wrong = lowest if lowest < 0 else highest
        allowed = "0 or more" if n is None else f"below {n}"
        raise InputError(
            f"ranking: row {query} names item {wrong}; ids are {allowed}, -1 for none (scores are floating)"
        )
    repeated = ascending[1:][ascending[1:] == ascending[:-1]]
    if len(repeated):
        raise InputError(
            f"ranking: row {query} names item {repeated[0]} twice; name each once (scores are floating)"
        )
