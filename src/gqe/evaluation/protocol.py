"""Metrics of a ranking against a ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gqe.errors import InputError
from gqe.evaluation.ground_truth import (
    GroundTruth,
    Ids,
    LabelGroundTruth,
    Protocol,
    as_ground_truth,
    to_numpy,
)
from gqe.evaluation.metrics import (
    average_precision,
    average_precision_at,
    check_cutoffs,
    precision_at,
    recall_at,
)
from gqe.evaluation.result import Evaluation

_MISSING = -1


def evaluate(scores_or_ranking: Any, ground_truth: Any, *, ks: Sequence[int] = (1, 5, 10)) -> Evaluation:
    """Evaluate search results: mAP and mP@k, and with labels recall@k and mAP@k.

    One query is ranked at a time, so m queries take the memory of one row, not of another (m, n).

    Args:
        scores_or_ranking: (m, n) floating scores, higher is better, ties go to the lower id; or (m, r)
            integer ids, best first, one row per query, r may be less than n, -1 stands for no item and is
            skipped. NumPy or torch.
        ground_truth: a `RevisitedGroundTruth` or `LabelGroundTruth`, or what `as_ground_truth` turns into
            one.
        ks: the list lengths of mP@k, recall@k and mAP@k.

    Returns:
        The numbers, in percent.

    Raises:
        InputError: the shapes do not fit, a score is NaN, an id is repeated or not in the database.

    Example:
        >>> result = evaluate([[0.9, 0.1, 0.8]], ([4], [4, 5, 4]), ks=(1,))
        >>> result.map, result.mp[1]
        (100.0, 100.0)
        >>> evaluate([[2, 0, 1]], [{"easy": [0], "hard": [1], "junk": [2]}]).map["hard"]
        100.0
    """
    truth = as_ground_truth(ground_truth)
    ranking = RankPositions(scores_or_ranking, truth)
    lengths = check_cutoffs(ks)
    with_labels = isinstance(truth, LabelGroundTruth)
    # Per query and protocol: AP, then P@k for each k, then with labels recall@k and AP@k for each k.
    width = 1 + len(lengths) * (3 if with_labels else 1)
    measured = {name: np.full((truth.queries, width), np.nan) for name in truth.protocols}
    for query in range(truth.queries):
        groups = truth.groups(query)
        found = ranking.positions(query, np.concatenate(groups))
        positions = np.split(found, np.cumsum([len(group) for group in groups])[:-1])
        for name, protocol in truth.protocols.items():
            n_positives = sum(len(groups[g]) for g in protocol.positive)
            if n_positives:
                ranks = _ranks_without_junk(positions, protocol)
                measured[name][query] = _measure(ranks, n_positives, lengths, with_labels)
    return _summary(truth, {name: 100 * table for name, table in measured.items()}, lengths)


def _ranks_without_junk(positions: list[Ids], protocol: Protocol) -> Ids:
    """Give the ranks of the positives found once junk is deleted: each moves up by the junk before it."""
    positive = np.concatenate([positions[g] for g in protocol.positive])
    junk = np.sort(np.concatenate([positions[g] for g in protocol.junk]))
    positive, junk = positive[positive >= 0], junk[junk >= 0]
    return positive - np.searchsorted(junk, positive)


def _measure(ranks: Ids, n_positives: int, ks: list[int], with_labels: bool) -> list[float]:
    row = [average_precision(ranks, n_positives)] + [precision_at(ranks, k) for k in ks]
    if with_labels:
        row += [recall_at(ranks, k) for k in ks] + [average_precision_at(ranks, n_positives, k) for k in ks]
    return row


def _summary(truth: GroundTruth, measured: dict[str, NDArray[np.float64]], ks: list[int]) -> Evaluation:
    per_query = {name: table[:, 0].copy() for name, table in measured.items()}
    counted = {name: ~np.isnan(ap) for name, ap in per_query.items()}
    queries = {name: int(chosen.sum()) for name, chosen in counted.items()}
    means = {
        name: table[counted[name]].mean(axis=0).tolist() if queries[name] else [float("nan")] * table.shape[1]
        for name, table in measured.items()
    }
    if isinstance(truth, LabelGroundTruth):
        (mean,) = means.values()
        families = [dict(zip(ks, mean[1 + i * len(ks) :], strict=False)) for i in range(3)]
        return Evaluation(
            mean[0], families[0], families[1], families[2], per_query["labels"], queries["labels"]
        )
    return Evaluation(
        map={name: mean[0] for name, mean in means.items()},
        mp={k: {name: mean[1 + i] for name, mean in means.items()} for i, k in enumerate(ks)},
        recall={},
        map_at={},
        per_query=per_query,
        queries=queries,
    )


class RankPositions:
    """Where given items stand in the ranking of a query, from scores of all items or from ids best first.

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
        ids = ids[ids != _MISSING] if ids.dtype.kind == "i" else ids
        _check_ids(ids, query, self.n)
        ids = ids.astype(np.int64, copy=False)
        positions = np.full(len(items), _MISSING)
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
