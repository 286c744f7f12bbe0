"""Results of searches: scores and ids, best first."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np


class _ScoresAndIds(NamedTuple):
    scores: Any
    ids: Any


class SearchResult(_ScoresAndIds):
    """Results of a search, best first: scores (m, k) float32 and ids (m, k); -inf and -1 (None) = missing.

    Attributes:
        metadata: of a search with `with_metadata=True`: for each query a list of k dictionaries, None =
            missing. Not a part of the tuple: `scores, ids = index.search(...)`.
    """

    metadata: list[Any] | None = None


def plain_value(value: Any) -> Any:
    """A value of metadata as JSON has it; dates and the like as texts.

    Example:
        >>> import datetime
        >>> plain_value({"year": 2024, "day": datetime.date(2024, 5, 1), "size": float("inf")})
        {'year': 2024, 'day': '2024-05-01', 'size': 'inf'}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        return [plain_value(part) for part in value]
    if isinstance(value, dict):
        return {str(name): plain_value(part) for name, part in value.items()}
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


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
