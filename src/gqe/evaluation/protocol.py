"""Judging a ranking against a ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gqe.evaluation.base import GroundTruth, Ids, Protocol
from gqe.evaluation.ground_truth import as_ground_truth
from gqe.evaluation.labels import LabelGroundTruth
from gqe.evaluation.metrics import (
    average_precision,
    average_precision_at,
    checked_ks,
    precision_at,
    recall_at,
)
from gqe.evaluation.ranking import Ranking
from gqe.evaluation.result import Evaluation


def evaluate(scores_or_ranking: Any, ground_truth: Any, *, ks: Sequence[int] = (1, 5, 10)) -> Evaluation:
    """Judge search results: mAP and mP@k, and with labels recall@k and mAP@k.

    One query is ranked at a time, so judging m queries takes the memory of one row, not of another (m, n).

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
    ranking = Ranking(scores_or_ranking, truth)
    lengths = checked_ks(ks)
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
