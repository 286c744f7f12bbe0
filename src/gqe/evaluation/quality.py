"""Agreement and Diversity: how much weight an expansion gives to relevant items, and to how many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import entr

from gqe.errors import InputError
from gqe.evaluation.ground_truth import as_ground_truth, to_numpy


@dataclass(frozen=True, eq=False)
class Quality:
    """Agreement and Diversity of each query's expansion, and their means.

    Attributes:
        agreement: (m,) share of the weight, in [0, 1], that lies on relevant items; nan where undefined.
        diversity: (m,) entropy in nats of the weights on relevant items; nan where undefined. exp(diversity)
            is the number of equally weighted relevant items that would give the same entropy.
        negative: (m,) share of the absolute weight that was negative and was taken as 0; nan where there is
            no weight.
    """

    agreement: NDArray[np.float64]
    diversity: NDArray[np.float64]
    negative: NDArray[np.float64]

    @property
    def mean_agreement(self) -> float:
        """Mean over the queries where it is defined; nan if there is none."""
        return _mean(self.agreement)

    @property
    def mean_diversity(self) -> float:
        """Mean over the queries where it is defined; nan if there is none."""
        return _mean(self.diversity)

    @property
    def mean_negative(self) -> float:
        """Mean share of negative weight; nan if no query has any weight."""
        return _mean(self.negative)

    @property
    def queries(self) -> int:
        """Number of queries the means of Agreement and Diversity run over."""
        return int(np.count_nonzero(~np.isnan(self.agreement)))

    def to_dict(self) -> dict[str, Any]:
        """Give the means and the number of queries, ready for JSON, None for nan."""
        means = {
            "agreement": self.mean_agreement,
            "diversity": self.mean_diversity,
            "negative": self.mean_negative,
        }
        return {name: None if np.isnan(mean) else mean for name, mean in means.items()} | {
            "queries": self.queries
        }

    def __str__(self) -> str:
        return (
            f"agreement {self.mean_agreement:.3f}, diversity {self.mean_diversity:.3f} nats, "
            f"negative weight {self.mean_negative:.1%}, over {self.queries} queries"
        )


def agreement_diversity(weights: Any, relevant: Any) -> Quality:
    """Measure the two metrics of the GQE paper on the weights of expanded queries.

    An expanded query is a weighted sum of database items. Agreement is the weight on items that share the
    query's label over all weight; Diversity is the entropy of the weights on those items, normalised to sum
    to 1.

    Negative weights, which learned cosines and SVM separators can have, are taken as 0, since neither metric
    is defined for them; `Quality.negative` says how much weight that hid. Both metrics are nan, and left out
    of the means, for a query with no relevant item in the database or no positive weight. A query that has
    relevant items but puts no weight on any has Agreement 0 and Diversity 0, so that a method gains nothing
    by missing them.

    Args:
        weights: (m, n) weights of the database items, scipy.sparse or dense; the query's own weight is no
            part of it.
        relevant: (m, n) bool, scipy.sparse or dense; or a ground truth, or what `as_ground_truth` turns into
            one. Of a Revisited ground truth, easy and hard items are relevant and the weight on junk is
            dropped altogether.

    Returns:
        Agreement, Diversity and the negative share of every query.

    Raises:
        InputError: the shapes differ, or a weight is NaN or infinite.

    Example:
        >>> quality = agreement_diversity([[2.0, 1.0, 1.0, 0.0]], ([5], [9, 5, 5, 5]))
        >>> quality.mean_agreement, round(quality.mean_diversity, 4)
        (0.5, 0.6931)
    """
    table = _read_weights(weights)
    same_label, ignored = _read_relevant(relevant, table.shape)
    has_relevant = np.diff(same_label.indptr) > 0
    if ignored is not None:
        table = table - table.multiply(ignored)
    total = _row_sums(abs(table))
    table = table.maximum(0).tocsr()
    positive = _row_sums(table)
    on_label = table.multiply(same_label).tocsr()
    on_label.eliminate_zeros()
    agreeing = _row_sums(on_label)

    negative = _ratio(total - positive, total)
    agreement = np.where(has_relevant, _ratio(agreeing, positive), np.nan)
    shares = on_label.data / np.repeat(agreeing, np.diff(on_label.indptr))
    on_label.data = entr(shares)
    diversity = np.where(np.isnan(agreement), np.nan, _row_sums(on_label))
    return Quality(agreement, diversity, negative)


def _read_weights(weights: Any) -> sparse.csr_array:
    given: Any = weights if sparse.issparse(weights) else to_numpy(weights, "weights")
    if given.ndim != 2 or given.dtype.kind not in "iufb":
        raise InputError(f"weights: {given.dtype} of shape {given.shape}; give numbers, one row per query")
    table = sparse.csr_array(given, dtype=np.float64, copy=True)
    table.sum_duplicates()
    wrong = np.flatnonzero(~np.isfinite(table.data))
    if len(wrong):
        row = np.searchsorted(table.indptr, wrong[0], side="right") - 1
        raise InputError(f"weights: {table.data[wrong[0]]} in row {row}; every weight must be finite")
    return table


def _read_relevant(relevant: Any, shape: tuple[int, ...]) -> tuple[sparse.csr_array, sparse.csr_array | None]:
    """Give which items share each query's label, and which are to be dropped, both (m, n) of 1.0."""
    if sparse.issparse(relevant) or hasattr(relevant, "__array__"):
        table: Any = relevant if sparse.issparse(relevant) else to_numpy(relevant, "relevant")
        if table.dtype.kind not in "biuf":
            raise InputError(f"relevant: expected true and false, got {table.dtype}")
        if table.shape != shape:
            raise InputError(f"relevant: shape {table.shape}, but weights have {shape}; give the same shape")
        return _ones(table), None
    truth = as_ground_truth(relevant)
    if truth.queries != shape[0] or truth.n not in (None, shape[1]):
        wanted = f"{truth.queries} queries and {'any' if truth.n is None else truth.n} items"
        raise InputError(f"weights: shape {shape}, but the ground truth has {wanted}; give one row per query")
    return _ones(truth.relevance(shape[1])), _ones(truth.ignored(shape[1]))


def _ones(table: Any) -> sparse.csr_array:
    """Give 1.0 wherever the table, sparse or dense, is true."""
    rows, columns = table.nonzero()
    ones = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=table.shape)
    ones.data[:] = 1.0  # an entry stored twice was summed
    return ones


def _row_sums(table: sparse.csr_array) -> NDArray[np.float64]:
    return np.asarray(table.sum(axis=1), dtype=np.float64).reshape(-1)


def _ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    shares = np.full(len(whole), np.nan)
    np.divide(part, whole, out=shares, where=whole > 0)
    return shares


def _mean(values: NDArray[np.float64]) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")
