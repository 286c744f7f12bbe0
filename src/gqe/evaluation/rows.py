"""Results of any kind as a table: scores of all items, or row numbers of items, best first."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gqe.errors import InputError, short_repr
from gqe.evaluation.ground_truth import GroundTruth, to_numpy
from gqe.evaluation.judgements import numbered
from gqe.formats.trec import as_run, read_run
from gqe.results import SearchResult


def as_rows(value: Any, truth: GroundTruth, database_ids: Sequence[Any] | None = None) -> NDArray[Any]:
    """(m, n) scores, or (m, r) rows of items, best first.

    Args:
        value: what `gqe.evaluate` takes.
        truth: whose queries the rows are.
        database_ids: how the database's rows are called, if the truth does not know it.
    """
    if isinstance(value, str | os.PathLike):
        value = read_run(value)
    if isinstance(value, Mapping):
        table = _run_table(value, truth)
    else:
        table = to_numpy(value.ids if isinstance(value, SearchResult) else value, "scores_or_ranking")
    names, rows, int_names = truth.names, truth.names_rows, truth.int_names
    if names is None and database_ids is not None:
        names, int_names = numbered(database_ids), not isinstance(next(iter(database_ids), None), str)
    if table.dtype.kind == "f":
        if not rows:
            raise InputError("scores: give database_ids too, how each column is called in the ground truth")
        return table
    if table.dtype.kind in "iu" and (names is None or (rows and not int_names)):
        return table
    if table.dtype.kind not in "iuUO" or table.ndim != 2:
        return table  # is refused with its shape or type
    return _look_up(table, names, rows)


def _run_table(run: Mapping[Any, Any], truth: GroundTruth) -> NDArray[Any]:
    """(m, r) texts, None = missing."""
    if not all(isinstance(items, Mapping) for items in run.values()):
        raise InputError("scores_or_ranking: a run is {query id: {item: score}}")
    queries = truth.query_ids or [str(query) for query in range(truth.queries)]
    ranked = as_run(run)
    if ranked and not set(queries) & set(ranked):
        raise InputError(
            f"run: none of its queries is in the ground truth; the run has {short_repr(next(iter(ranked)))},"
            f" the ground truth {short_repr(queries[0] if queries else None)}"
        )
    lists = [ranked.get(query, []) for query in queries]
    table = np.array(list(zip_longest(*lists)), dtype=object).T if any(lists) else None
    return np.empty((len(queries), 0), np.int64) if table is None else table


def _look_up(table: NDArray[Any], names: dict[str, int] | None, rows: bool) -> NDArray[np.int64]:
    """The rows of items; those that nobody judged get numbers of their own."""
    unknown: dict[str, int] = {}

    def find(item: Any) -> int:
        if item is None or (isinstance(item, int) and item < 0):
            return -1
        text = str(item)
        if names is None:
            if not (text.isascii() and text.isdigit() and len(text) < 19):
                raise InputError(
                    f"ranking: {short_repr(text)} is no row number; give database_ids, the id of each row"
                )
            return int(text)
        row = names.get(text)
        if row is None:
            if rows:
                raise InputError(f"ranking: {short_repr(text)} is not among database_ids; check the ids")
            row = unknown.setdefault(text, len(names) + len(unknown))
        return row

    return np.array([[find(item) for item in line] for line in table.tolist()], np.int64).reshape(table.shape)
