"""Whether one method is really better than another: paired tests over the queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gqe.errors import InputError
from gqe.evaluation.result import Evaluation

# Draws, and how many numbers are drawn at a time.
SAMPLES, _BLOCK = 10_000, 1 << 22


@dataclass(frozen=True)
class Comparison:
    """The difference of two methods on the same queries, in percent points.

    Attributes:
        metric: what is compared.
        first: mean of the first method.
        second: mean of the second method.
        difference: second - first.
        low: lower end of the 95% interval of the difference (paired bootstrap, percentiles).
        high: its upper end.
        p: chance of a difference as large as this if the methods were alike (paired randomisation test,
            two-sided).
        queries: over how many queries.
    """

    metric: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float
    queries: int

    @property
    def significant(self) -> bool:
        """Whether p is below 0.05; of n comparisons ask for 0.05 / n instead."""
        return self.p < 0.05

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return vars(self) | {"significant": self.significant}


def compare(
    first: Evaluation, second: Evaluation, metric: str = "map", *, samples: int = SAMPLES, seed: int = 0
) -> Comparison:
    """Whether the second method is better or worse than the first on more than these queries.

    Args:
        first: what `gqe.evaluate` gave for one method.
        second: what it gave for another on the same queries.
        metric: a name of `Evaluation.values`, such as "map" or "ndcg@10"; of the Revisited protocols Medium
            unless it names one, as "map hard".
        samples: how often queries are drawn, and signs are.
        seed: the same seed repeats the numbers.

    Example:
        >>> import gqe
        >>> truth = [[i] for i in range(20)]
        >>> good, bad = (gqe.evaluate([[i, 20] if wins else [20, i] for i in range(20)], truth)
        ...              for wins in (True, False))
        >>> outcome = compare(bad, good)
        >>> outcome.difference, outcome.significant
        (50.0, True)
    """
    if samples < 100:
        raise InputError(f"samples: {samples} are too few; give 100 or more")
    tables = []
    for evaluation in (first, second):
        name = metric if metric in evaluation.values else f"{metric} medium"
        if name not in evaluation.values:
            raise InputError(
                f"metric: {metric!r} was not measured; there are {', '.join(evaluation.values)} (@k by ks=)"
            )
        tables.append(evaluation.values[name])
    if len(tables[0]) != len(tables[1]) or (np.isnan(tables[0]) != np.isnan(tables[1])).any():
        raise InputError("compare: the two were measured on different queries; give the same ground truth")
    counted = ~np.isnan(tables[0])
    before, after = (table[counted] for table in tables)
    if not len(before):
        raise InputError("compare: no query has a relevant item; there is nothing to compare")
    differences = after - before
    means, flipped = _draw(differences, samples, np.random.default_rng(seed))
    mean = float(differences.mean())
    low, high = np.percentile(means, [2.5, 97.5]).tolist()
    # Sums of the same numbers in another order differ in the last bits.
    extreme = int((np.abs(flipped) >= abs(mean) - 1e-9).sum())
    p = (extreme + 1) / (samples + 1)
    return Comparison(name, float(before.mean()), float(after.mean()), mean, low, high, p, len(before))


def _draw(
    differences: NDArray[np.float64], samples: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means over queries drawn with replacement, and means with random signs, `samples` of each."""
    count = len(differences)
    resampled, flipped = [], []
    step = max(1, _BLOCK // count)
    for start in range(0, samples, step):
        size = min(step, samples - start)
        resampled.append(differences[rng.integers(count, size=(size, count))].mean(axis=1))
        flipped.append((rng.integers(2, size=(size, count)) * 2 - 1) @ differences / count)
    return np.concatenate(resampled), np.concatenate(flipped)
