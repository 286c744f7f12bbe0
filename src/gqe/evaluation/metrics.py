"""Ranking metrics of one query, from the ranks at which its positives were found.

Every function takes `ranks`: the 0-based ranks of the positives that were found, counted after junk was
removed from the ranking, in any order. Positives that were not found are simply absent. Results are
fractions, not percent.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gqe.errors import InputError


def average_precision(ranks: ArrayLike, n_positives: int) -> float:
    """Average precision by the trapezoid rule of the Oxford, Paris and Revisited benchmarks.

    Each positive found adds the mean of the precision just before it and at it, over `n_positives`
    (Philbin et al., CVPR 2007; Radenović et al., CVPR 2018).

    Args:
        ranks: (p,) 0-based ranks of the positives found, after junk removal.
        n_positives: how many positives the query has, found or not.

    Returns:
        A fraction in [0, 1]; nan when the query has no positive.

    Example:
        >>> average_precision([0, 1], n_positives=2)
        1.0
        >>> average_precision([1], n_positives=1)
        0.25
    """
    found = _check_ranks(ranks, n_positives)
    if n_positives == 0:
        return float("nan")
    before = np.arange(len(found))
    precision_before = np.where(found == 0, 1.0, before / np.maximum(found, 1))
    precision_at_it = (before + 1) / (found + 1)
    return float((precision_before + precision_at_it).sum() / (2 * n_positives))


def precision_at(ranks: ArrayLike, k: int) -> float:
    """Precision of the first k, the Revisited way: k is lowered to the last positive's 1-based rank.

    A query with two positives, both on top, so has precision 1 at every k. 0 when no positive was found.

    Args:
        ranks: (p,) 0-based ranks of the positives found, after junk removal.
        k: length of the list looked at, 1 or more.

    Returns:
        A fraction in [0, 1].

    Example:
        >>> precision_at([0, 1], k=10)
        1.0
        >>> precision_at([0, 9], k=5)
        0.2
    """
    found, k = _check_ranks(ranks), check_cutoff(k)
    if len(found) == 0:
        return 0.0
    cut = min(int(found[-1]) + 1, k)
    return float(np.count_nonzero(found < cut) / cut)


def recall_at(ranks: ArrayLike, k: int) -> float:
    """Recall of the first k as metric learning counts it: 1 if any positive is among them, else 0.

    This is the Recall@K of Oh Song et al. (CVPR 2016), not the share of all positives that was found.

    Example:
        >>> recall_at([3, 7], k=5)
        1.0
    """
    found, k = _check_ranks(ranks), check_cutoff(k)
    return float(len(found) > 0 and found[0] < k)


def average_precision_at(ranks: ArrayLike, n_positives: int, k: int) -> float:
    """Average precision of the first k: the precisions at the positives among them, over min(n_positives, k).

    Plain precision, no trapezoid: the mAP@100 of Google Landmarks v2 (Weyand et al., CVPR 2020). With k equal
    to `n_positives` it is the MAP@R of Musgrave et al. (ECCV 2020).

    Returns:
        A fraction in [0, 1]; nan when the query has no positive.

    Example:
        >>> average_precision_at([0, 3], n_positives=2, k=5)
        0.75
    """
    found, k = _check_ranks(ranks, n_positives), check_cutoff(k)
    if n_positives == 0:
        return float("nan")
    found = found[found < k]
    return float((np.arange(1, len(found) + 1) / (found + 1)).sum() / min(n_positives, k))


def ndcg_at(ranks: ArrayLike, gains: ArrayLike, ideal: ArrayLike, k: int) -> float:
    """Normalised discounted cumulative gain of the first k: gain / log2(rank + 1), as trec_eval's ndcg_cut.

    Args:
        ranks: (p,) 0-based ranks of the positives found.
        gains: (p,) their grades, above 0.
        ideal: (N,) the grades of all positives, found or not, best first.
        k: length of the list looked at, 1 or more.

    Returns:
        A fraction in [0, 1]; nan when the query has no positive.

    Example:
        >>> round(ndcg_at([1], [2], [2, 1], k=10), 4)
        0.4796
    """
    places, values, best = np.asarray(ranks), np.asarray(gains, np.float64), np.asarray(ideal, np.float64)
    k = check_cutoff(k)
    if not len(best):
        return float("nan")
    if not len(places):
        return 0.0
    seen = places < k
    gained = (values[seen] / np.log2(places[seen] + 2)).sum()
    return float(gained / (best[:k] / np.log2(np.arange(2, len(best[:k]) + 2))).sum())


def reciprocal_rank(ranks: ArrayLike) -> float:
    """1 over the 1-based rank of the first positive; 0 when none was found.

    Example:
        >>> reciprocal_rank([3, 7])
        0.25
    """
    found = _check_ranks(ranks)
    return float(1 / (found[0] + 1)) if len(found) else 0.0


def plain_precision_at(ranks: ArrayLike, k: int) -> float:
    """Share of positives among the first k, which counts k even where there are fewer: trec_eval's P.

    Example:
        >>> plain_precision_at([0, 3], k=5)
        0.4
    """
    k = check_cutoff(k)
    return float(np.count_nonzero(_check_ranks(ranks) < k) / k)


def share_found_at(ranks: ArrayLike, n_positives: int, k: int) -> float:
    """Share of all positives that is among the first k: trec_eval's recall.

    Example:
        >>> share_found_at([0, 9], n_positives=4, k=5)
        0.25
    """
    found = _check_ranks(ranks, n_positives)
    return float(np.count_nonzero(found < check_cutoff(k)) / n_positives) if n_positives else float("nan")


def check_cutoff(k: int) -> int:
    """Give k as a plain int, or refuse it: a list has length 1 or more."""
    try:
        number = operator.index(k)
    except TypeError:
        number = 0
    if number < 1 or isinstance(k, bool):
        raise InputError(f"k: {k!r} is not a list length; give whole numbers of 1 or more")
    return number


def check_cutoffs(ks: Sequence[int]) -> list[int]:
    """Give several list lengths as plain ints, or refuse them."""
    if isinstance(ks, (str, bytes)) or not isinstance(ks, Iterable):
        raise InputError(f"ks: {ks!r} is not a list; give list lengths such as (1, 5, 10)")
    return [check_cutoff(k) for k in ks]


def _check_ranks(ranks: ArrayLike, n_positives: int | None = None) -> NDArray[np.int64]:
    found = np.sort(np.asarray(ranks))
    if found.size == 0:
        found = np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise InputError(
            "ranks: expected a flat list of whole numbers, the 0-based ranks of the positives found"
        )
    if len(found) and found[0] < 0:
        raise InputError("ranks: negative; leave out the positives that were not found")
    if np.any(found[1:] == found[:-1]):
        raise InputError("ranks: two positives share a rank; give each item's own rank")
    if n_positives is not None and len(found) > n_positives:
        raise InputError(f"n_positives: {n_positives}, but {len(found)} ranks of positives are given")
    return found.astype(np.int64)
