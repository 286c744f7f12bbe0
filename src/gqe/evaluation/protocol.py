"""Metrics of a ranking against a ground truth."""

from __future__ import annotations

import sys
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
from gqe.evaluation.judgements import JudgedGroundTruth
from gqe.evaluation.metrics import (
    average_precision,
    average_precision_at,
    check_cutoffs,
    ndcg_at,
    plain_precision_at,
    precision_at,
    recall_at,
    reciprocal_rank,
    share_found_at,
)
from gqe.evaluation.result import Evaluation
from gqe.evaluation.rows import as_rows

_MISSING = -1


def evaluate(
    scores_or_ranking: Any,
    ground_truth: Any,
    *,
    ks: Sequence[int] = (1, 5, 10),
    query_ids: Sequence[Any] | None = None,
    database_ids: Sequence[Any] | None = None,
) -> Evaluation:
    """Evaluate search results: mAP and mP@k, and with labels or judgements nDCG@k, MRR, P@k and recall@k.

    One query is ranked at a time, so m queries take the memory of one row, not of another (m, n).

    Args:
        scores_or_ranking: (m, n) floating scores, higher is better, ties go to the lower id; or (m, r)
            ids, best first, one row per query, r may be less than n, -1 (None among texts) stands for no item
            and is skipped; or a `SearchResult`. NumPy or torch. With judgements also a run {query id: {item:
            score}}, or the name of a TREC run file.
        ground_truth: a `GroundTruth`, or what `as_ground_truth` turns into one: labels, lists of relevant
            ids, qrels, the name of a file.
        ks: the list lengths of the metrics @k.
        query_ids: with qrels, which query each row of results is; by default all, in their order.
        database_ids: how the database's rows are called where results (`index.ids`, say) or qrels name items
            by ids of their own.

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
    truth = as_ground_truth(ground_truth, query_ids=query_ids, database_ids=database_ids)
    ranking = RankPositions(as_rows(scores_or_ranking, truth, database_ids), truth)
    lengths = check_cutoffs(ks)
    columns = _columns(truth, lengths)
    measured = {name: np.full((truth.queries, len(columns)), np.nan) for name in truth.protocols}
    for query in range(truth.queries):
        groups = truth.groups(query)
        found = ranking.positions(query, np.concatenate(groups))
        if isinstance(truth, JudgedGroundTruth):
            measured["judged"][query] = _measure_grades(truth, query, found, lengths)
            continue
        positions = np.split(found, np.cumsum([len(group) for group in groups])[:-1])
        for name, protocol in truth.protocols.items():
            n_positives = sum(len(groups[g]) for g in protocol.positive)
            if n_positives:
                ranks = _ranks_without_junk(positions, protocol)
                row = _measure(ranks, n_positives, lengths, isinstance(truth, LabelGroundTruth))
                measured[name][query] = row
    return _summary(truth, {name: 100 * table for name, table in measured.items()}, columns, lengths)


def _columns(truth: GroundTruth, ks: list[int]) -> list[str]:
    """What is measured of each query and protocol, in the order of `_measure` and `_measure_grades`."""
    families, single = ["mp"], ["map"]
    if isinstance(truth, LabelGroundTruth):
        families, single = ["mp", "recall", "map", "ndcg", "p"], ["map", "mrr"]
    if isinstance(truth, JudgedGroundTruth):
        families, single = ["recall", "ndcg", "p"], ["map", "mrr"]
    return [*single, *(f"{family}@{k}" for family in families for k in ks)]


def _ranks_without_junk(positions: list[Ids], protocol: Protocol) -> Ids:
    """Give the ranks of the positives found once junk is deleted: each moves up by the junk before it."""
    positive = np.concatenate([positions[g] for g in protocol.positive])
    junk = np.sort(np.concatenate([positions[g] for g in protocol.junk]))
    positive, junk = positive[positive >= 0], junk[junk >= 0]
    return positive - np.searchsorted(junk, positive)


def _measure(ranks: Ids, n_positives: int, ks: list[int], with_labels: bool) -> list[float]:
    precisions = [precision_at(ranks, k) for k in ks]
    if not with_labels:
        return [average_precision(ranks, n_positives), *precisions]
    ones = np.ones(n_positives)
    return [
        average_precision(ranks, n_positives),
        reciprocal_rank(ranks),
        *precisions,
        *(recall_at(ranks, k) for k in ks),
        *(average_precision_at(ranks, n_positives, k) for k in ks),
        *(ndcg_at(ranks, ones[: len(ranks)], ones, k) for k in ks),
        *(plain_precision_at(ranks, k) for k in ks),
    ]


def _measure_grades(truth: JudgedGroundTruth, query: int, positions: Ids, ks: list[int]) -> list[float]:
    """The metrics of trec_eval; nan of a query without a relevant item."""
    ideal, there = truth.ideal(query), positions >= 0
    ranks, gains = positions[there], truth.grades(query)[there]
    if not len(ideal):
        return [np.nan] * (2 + 3 * len(ks))
    return [
        average_precision_at(ranks, len(ideal), k=sys.maxsize),
        reciprocal_rank(ranks),
        *(share_found_at(ranks, len(ideal), k) for k in ks),
        *(ndcg_at(ranks, gains, ideal, k) for k in ks),
        *(plain_precision_at(ranks, k) for k in ks),
    ]


def _summary(
    truth: GroundTruth, measured: dict[str, NDArray[np.float64]], columns: list[str], ks: list[int]
) -> Evaluation:
    per_query = {name: table[:, 0].copy() for name, table in measured.items()}
    counted = {name: ~np.isnan(ap) for name, ap in per_query.items()}
    queries = {name: int(chosen.sum()) for name, chosen in counted.items()}
    means = {
        name: dict(zip(columns, table[counted[name]].mean(axis=0).tolist(), strict=True))
        if queries[name]
        else dict.fromkeys(columns, float("nan"))
        for name, table in measured.items()
    }
    values = {
        column if len(measured) == 1 else f"{column} {name}": table[:, i].copy()
        for name, table in measured.items()
        for i, column in enumerate(columns)
    }
    if len(measured) > 1:
        return Evaluation(
            map={name: mean["map"] for name, mean in means.items()},
            mp={k: {name: mean[f"mp@{k}"] for name, mean in means.items()} for k in ks},
            recall={},
            map_at={},
            per_query=per_query,
            queries=queries,
            values=values,
        )
    ((name, mean),) = means.items()
    mp, recall, map_at, ndcg, precision = (
        {k: mean[f"{family}@{k}"] for k in ks if f"{family}@{k}" in mean}
        for family in ("mp", "recall", "map", "ndcg", "p")
    )
    return Evaluation(
        map=mean["map"],
        mp=mp,
        recall=recall,
        map_at=map_at,
        per_query=per_query[name],
        queries=queries[name],
        ndcg=ndcg,
        precision=precision,
        mrr=mean["mrr"],
        values=values,
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
