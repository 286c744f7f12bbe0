"""Results of searches: scores and ids, best first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class SearchResult(NamedTuple):
    """Results of a search, best first: scores (m, k) float32 and ids (m, k); -inf and -1 (None) = missing."""

    scores: Any
    ids: Any


def remove_results(found: SearchResult, unwanted: np.ndarray[Any, Any], k: int) -> SearchResult:
    """The first k results that are not marked (m, R) as unwanted; the others move up."""
    order = np.argsort(unwanted, axis=1, kind="stable")[:, :k]
    scores = np.where(unwanted, -np.inf, found.scores).astype(np.float32)
    ids = np.where(unwanted, _missing(found.ids), found.ids)
    return SearchResult(np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1))


def remove_excluded(found: SearchResult, exclude: np.ndarray[Any, Any] | None, k: int) -> SearchResult:
    """The first k results without the id (m,) that each query must not find; -1 or None for none."""
    if exclude is None:
        return SearchResult(found.scores[:, :k], found.ids[:, :k])
    named = np.asarray(exclude != _missing(exclude))
    return remove_results(found, (found.ids == exclude[:, None]) & named[:, None], k)


def _missing(ids: np.ndarray[Any, Any]) -> Any:
    """What stands for no item: None among texts, -1 among numbers."""
    return None if ids.dtype == object else -1
