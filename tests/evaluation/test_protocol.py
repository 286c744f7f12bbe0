"""`evaluate` against golden values, plain loops and the laws of ranking."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gqe.evaluation import Evaluation, LabelGroundTruth, RevisitedGroundTruth, evaluate

KS = (1, 5, 10)
NAN = math.nan


# Golden values of the Revisited protocol.


@pytest.mark.parametrize(
    ("length", "positives", "junk", "ap", "precisions"),
    [
        (10, [1], [], 0.25, (0, 0.5, 0.5)),
        (10, [1], [0], 1.0, (1, 1, 1)),
        (10, [2, 5], [0, 3], 1 / 3, (0, 0.5, 0.5)),
        (10, [0, 9], [], 0.5777777777777778, (1, 0.2, 0.2)),
        (10, [3, 4], [9], 0.225, (0, 0.4, 0.4)),
        (5, [0, 7], [], 0.5, (1, 1, 1)),
        (5, [7, 8], [], 0.0, (0, 0, 0)),
    ],
)
def test_golden_values(length, positives, junk, ap, precisions):
    ranking = np.arange(length)[None]
    for easy, hard, protocol in [(positives, [], "easy"), ([], positives, "hard"), (positives, [], "medium")]:
        result = evaluate(ranking, [{"easy": easy, "hard": hard, "junk": junk}], ks=KS)
        assert result.map[protocol] == pytest.approx(100 * ap)
        for k, precision in zip(KS, precisions, strict=True):
            assert result.mp[k][protocol] == pytest.approx(100 * precision)


# Plain loops.


def loop_one_query(ranking, positives, junk, ks):
    """Give AP, P@k, recall@k and AP@k of one query, walking its ranking without junk."""
    if not positives:
        return [NAN] * (1 + 3 * len(ks))
    hits = [item in positives for item in ranking if item not in junk]
    area, recall, precision, found = 0.0, 0.0, 1.0, 0
    precision_at_hits = []
    for seen, hit in enumerate(hits, start=1):
        found += hit
        if hit:
            precision_at_hits.append((seen, found / seen))
        area += (found / len(positives) - recall) * (precision + found / seen) / 2
        recall, precision = found / len(positives), found / seen
    last = max((seen for seen, _ in precision_at_hits), default=0)
    row = [area]
    row += [sum(hits[: min(k, last)]) / min(k, last) if last else 0.0 for k in ks]
    row += [float(any(hits[:k])) for k in ks]
    row += [sum(p for seen, p in precision_at_hits if seen <= k) / min(len(positives), k) for k in ks]
    return row


def loop_mean(rows):
    counted = [row for row in rows if not math.isnan(row[0])]
    return [100 * sum(column) / len(counted) for column in zip(*counted, strict=True)] if counted else None


def loop_rankings(scores):
    return [sorted(range(scores.shape[1]), key=lambda i: (-row[i], i)) for row in scores]


# Five values only, so that ties are everywhere.
SCORES = hnp.arrays(np.float32, (3, 9), elements=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]))
GROUPS = st.lists(st.sampled_from(["easy", "hard", "junk", ""]), min_size=9, max_size=9)


def revisited(groups) -> RevisitedGroundTruth:
    lists = [
        [[i for i, g in enumerate(row) if g == name] for row in groups] for name in ("easy", "hard", "junk")
    ]
    return RevisitedGroundTruth(*lists, n=9)


@given(SCORES, st.tuples(GROUPS, GROUPS, GROUPS), st.integers(0, 9))
def test_revisited_matches_the_loop(scores, groups, length):
    truth = revisited(groups)
    rankings = loop_rankings(scores)
    truncated = [ranking[:length] for ranking in rankings]
    padded = np.array([ranking + [-1] * (9 - length) for ranking in truncated])
    for given_form, used in ((scores, rankings), (np.array(rankings), rankings), (padded, truncated)):
        result = evaluate(given_form, truth, ks=KS)
        for protocol, ok, junk in [
            ("easy", {"easy"}, {"junk", "hard"}),
            ("medium", {"easy", "hard"}, {"junk"}),
            ("hard", {"hard"}, {"junk", "easy"}),
        ]:
            rows = [
                loop_one_query(
                    used[q],
                    {i for i in range(9) if groups[q][i] in ok},
                    {i for i in range(9) if groups[q][i] in junk},
                    KS,
                )
                for q in range(3)
            ]
            mean = loop_mean(rows) or [NAN] * 4
            assert result.map[protocol] == pytest.approx(mean[0], nan_ok=True)
            assert [result.mp[k][protocol] for k in KS] == pytest.approx(mean[1:4], nan_ok=True)
            expected = [100 * row[0] for row in rows]
            assert result.per_query[protocol].tolist() == pytest.approx(expected, nan_ok=True)
            assert result.queries[protocol] == sum(not math.isnan(row[0]) for row in rows)


@given(
    SCORES,
    hnp.arrays(np.int64, 3, elements=st.integers(-1, 2)),
    hnp.arrays(np.int64, 9, elements=st.integers(-1, 2)),
    hnp.arrays(np.int64, 3, elements=st.integers(-1, 8)),
)
def test_labels_match_the_loop(scores, query_labels, database_labels, exclude):
    ks = (1, 2, 4, 20)
    result = evaluate(scores, LabelGroundTruth(query_labels, database_labels, exclude), ks=ks)
    rows = []
    for q, ranking in enumerate(loop_rankings(scores)):
        same = {i for i in range(9) if database_labels[i] == query_labels[q] != -1}
        rows.append(loop_one_query(ranking, same - {exclude[q]}, {exclude[q]}, ks))
    mean = loop_mean(rows) or [NAN] * 13
    assert result.map == pytest.approx(mean[0], nan_ok=True)
    for start, family in ((1, result.mp), (5, result.recall), (9, result.map_at)):
        assert [family[k] for k in ks] == pytest.approx(mean[start : start + 4], nan_ok=True)
    assert result.per_query.tolist() == pytest.approx([100 * row[0] for row in rows], nan_ok=True)
    assert result.left_out == sum(math.isnan(row[0]) for row in rows) == 3 - result.queries


# Laws.


def numbers(result: Evaluation) -> list[float]:
    """Give every number of a Revisited evaluation, nan as -1."""
    flat = [*result.map.values(), *(value for row in result.mp.values() for value in row.values())]
    return [-1.0 if math.isnan(value) else value for value in flat]


@given(st.tuples(GROUPS, GROUPS, GROUPS), st.randoms(use_true_random=False))
def test_a_perfect_ranking_scores_100(groups, random):
    truth = revisited(groups)
    for protocol, best in [("easy", {"easy"}), ("medium", {"easy", "hard"}), ("hard", {"hard"})]:
        order = [sorted(range(9), key=lambda i: (row[i] not in best, random.random())) for row in groups]
        result = evaluate(np.array(order), truth)
        for value in (result.map[protocol], *(result.mp[k][protocol] for k in KS)):
            assert value == pytest.approx(100) or (math.isnan(value) and result.queries[protocol] == 0)


@given(SCORES, st.tuples(GROUPS, GROUPS, GROUPS))
def test_only_the_order_of_the_scores_counts(scores, groups):
    truth = revisited(groups)
    stretched = np.exp(3 * scores.astype(np.float64)) - 7
    assert numbers(evaluate(scores, truth)) == numbers(evaluate(stretched, truth))
    assert numbers(evaluate(scores, truth)) == numbers(
        evaluate(np.argsort(-scores, axis=1, kind="stable"), truth)
    )


@given(st.permutations(range(9)), GROUPS, st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_junk_put_anywhere_changes_nothing(ranking, groups, places):
    before = evaluate(np.array([ranking]), revisited([groups]))
    with_junk, more = list(ranking), revisited([groups])
    for item, place in zip((9, 10, 11), places, strict=True):
        with_junk.insert(place, item)
    after = evaluate(
        np.array([with_junk]),
        RevisitedGroundTruth(more.easy, more.hard, [[*more.junk[0], 9, 10, 11]], n=12),
    )
    assert numbers(before) == numbers(after)


@given(st.permutations(range(9)), GROUPS, st.integers(0, 9), st.integers(0, 9))
def test_cutting_the_list_never_raises_ap(ranking, groups, shorter, longer):
    shorter, longer = sorted((shorter, longer))
    truth = revisited([groups])
    short, long = (evaluate(np.array([ranking])[:, :length], truth) for length in (shorter, longer))
    for protocol in truth.protocols:
        assert not short.map[protocol] > long.map[protocol] + 1e-9


@given(st.permutations(range(9)), st.tuples(GROUPS, GROUPS, GROUPS), st.integers(0, 2**32 - 1))
def test_renaming_the_database_changes_nothing(new_names, groups, seed):
    new_names = np.array(new_names)
    scores = np.random.default_rng(seed).permuted(np.tile(np.arange(9.0), (3, 1)), axis=1)
    renamed = np.empty_like(scores)
    renamed[:, new_names] = scores
    truth = revisited(groups)
    lists = [[new_names[ids] for ids in group] for group in (truth.easy, truth.hard, truth.junk)]
    assert numbers(evaluate(scores, truth)) == numbers(evaluate(renamed, RevisitedGroundTruth(*lists, n=9)))


@given(SCORES, st.tuples(GROUPS, GROUPS, GROUPS))
def test_distractors_below_everything_change_nothing(scores, groups):
    truth = revisited(groups)
    wider = np.hstack([scores, np.full((3, 4), -np.inf, np.float32)])
    assert numbers(evaluate(scores, truth)) == numbers(evaluate(wider, truth.with_distractors(4)))
