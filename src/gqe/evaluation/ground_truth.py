"""One door for ground truth: the two kinds, and whatever converts to one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gqe.errors import InputError
from gqe.evaluation.base import GroundTruth
from gqe.evaluation.labels import LabelGroundTruth
from gqe.evaluation.revisited import RevisitedGroundTruth

__all__ = ["GroundTruth", "LabelGroundTruth", "RevisitedGroundTruth", "as_ground_truth"]


def as_ground_truth(value: Any) -> GroundTruth:
    """Turn what users hold into a ground truth.

    Args:
        value: a `GroundTruth`; the official dict `{"gnd": [...]}` or its list of dicts with easy, hard, junk;
            a tuple `(query_labels, database_labels)`; or a dict (or opened .npz) with the keys
            `query_labels`, `database_labels` and, if wished, `exclude`.

    Example:
        >>> as_ground_truth(([0, 1], [1, 0, 0]))
        LabelGroundTruth(queries=2, n=3)
        >>> as_ground_truth({"gnd": [{"easy": [1], "hard": [], "junk": []}]})
        RevisitedGroundTruth(queries=1, n=None)
    """
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
        f"ground_truth: cannot read {_described(value)}; give (query_labels, database_labels), "
        'a dict with these keys, or {"gnd": [{"easy", "hard", "junk"}, ...]}'
    )


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict with the keys {', '.join(str(key) for key in list(value)[:8])}"
    return f"a {type(value).__name__}"
