"""Paired tests: the numbers of SciPy's, and the corners."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gqe.errors import InputError
from gqe.evaluation import compare, evaluate


def two(queries: int, better: float, seed: int = 0):
    """Two methods on the same queries; the second has its item first more often."""
    rng = np.random.default_rng(seed)
    truth = [[i] for i in range(queries)]
    lists = []
    for share in (0.4, 0.4 + better):
        first = rng.random(queries) < share
        lists.append([[i, queries] if wins else [queries, i] for i, wins in enumerate(first)])
    return [evaluate(ranking, truth) for ranking in lists]


@pytest.mark.parametrize("better", [0.0, 0.15, 0.4])
def test_the_numbers_are_those_of_scipy(better):
    first, second = two(60, better)
    outcome = compare(first, second, "map")
    differences = second.values["map"] - first.values["map"]
    wanted = stats.permutation_test(
        (differences,),
        lambda d, axis: d.mean(axis=axis),
        permutation_type="samples",
        n_resamples=20_000,
        vectorized=True,
    )
    assert outcome.p == pytest.approx(wanted.pvalue, abs=0.02)
    interval = stats.bootstrap((differences,), np.mean, method="percentile", n_resamples=9999)
    assert outcome.low == pytest.approx(interval.confidence_interval.low, abs=1.5)
    assert outcome.high == pytest.approx(interval.confidence_interval.high, abs=1.5)
    assert outcome.difference == pytest.approx(second.map - first.map)
    assert outcome.significant == (better == 0.4)
    assert outcome.to_dict()["queries"] == 60
    assert compare(first, second) == outcome  # the seed repeats it


def test_few_false_alarms_where_there_is_no_difference():
    alarms = sum(compare(*two(40, 0.0, seed), samples=500).significant for seed in range(60))
    assert alarms <= 8  # 3 are expected; 9 or more come about once in 400 times


def test_metrics_protocols_and_queries_without_positives():
    truth = [{"easy": [0], "hard": [], "junk": []}, {"easy": [1], "hard": [0], "junk": []}]
    first, second = evaluate([[0, 1], [0, 1]], truth), evaluate([[0, 1], [1, 0]], truth)
    assert compare(first, second).metric == "map medium"
    hard = compare(first, second, "map hard")
    assert (hard.metric, hard.queries) == ("map hard", 1)
    same = compare(first, first, "mp@1")
    assert (same.p, same.low, same.high, same.difference) == (1, 0, 0, 0)


def test_what_cannot_be_compared_is_refused():
    first = evaluate([[0]], [[0]])
    with pytest.raises(InputError, match="metric: 'ndcg@7' was not measured; there are map, mrr, recall@1"):
        compare(first, first, "ndcg@7")
    with pytest.raises(InputError, match="different queries"):
        compare(first, evaluate([[0], [0]], [[0], [0]]))
    with pytest.raises(InputError, match="no query has a relevant item"):
        compare(evaluate([[0]], [[]]), evaluate([[0]], [[]]))
    with pytest.raises(InputError, match="samples: 3"):
        compare(first, first, samples=3)
