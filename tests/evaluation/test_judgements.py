"""Graded judgements: the numbers are those of trec_eval, by ir-measures, and ids are the user's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gqe
from gqe.errors import InputError
from gqe.evaluation import JudgedGroundTruth, as_ground_truth, evaluate
from gqe.formats import write_run

KS = (1, 3, 10)
ITEMS = [f"d{i}" for i in range(12)]


def trec_eval(qrels, run):
    """Each metric of each query, in percent."""
    measures = pytest.importorskip("ir_measures", reason="needs ir-measures")
    wanted = {"map": measures.AP, "mrr": measures.RR}
    for k in KS:
        wanted |= {f"ndcg@{k}": measures.nDCG @ k, f"p@{k}": measures.P @ k, f"recall@{k}": measures.R @ k}
    names = {measure: name for name, measure in wanted.items()}
    found = {name: {} for name in wanted}
    for metric in measures.iter_calc(list(names), qrels, run):
        found[names[metric.measure]][metric.query_id] = 100 * metric.value
    return found


grades = st.dictionaries(st.sampled_from(ITEMS), st.integers(-1, 3), min_size=1)
# Scores that a float of C holds exactly, with many ties.
scores = st.dictionaries(st.sampled_from(ITEMS), st.integers(0, 6).map(lambda i: i / 4), max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(grades, scores), min_size=1, max_size=4))
def test_the_numbers_are_those_of_trec_eval(queries):
    qrels = {f"q{i}": judged for i, (judged, _) in enumerate(queries)}
    run = {f"q{i}": found for i, (_, found) in enumerate(queries)}
    wanted = trec_eval(qrels, run)
    result = evaluate(run, qrels, ks=KS)
    for name, values in result.values.items():
        for query, value in zip(qrels, values.tolist(), strict=True):
            if max(qrels[query].values()) <= 0:
                assert np.isnan(value)
            else:
                assert value == pytest.approx(wanted[name].get(query, 0), abs=1e-4)
    assert result.left_out == sum(max(judged.values()) <= 0 for judged in qrels.values())


QRELS = {"q1": {"a": 1, "c": 2, "gone": 1}, "q2": {"b": 1}}


def test_results_of_every_kind_mean_the_same(tmp_path):
    names = ["a", "b", "c"]
    vectors = np.array([[1, 0.2], [0.5, 1], [1, 0.9]])
    queries = np.array([[1, 0.0], [0.0, 1]])
    index = gqe.Index.build(vectors, "none", tmp_path / "index", ids=names)
    found = index.search(queries, 3)
    wanted = evaluate(found, QRELS)
    assert wanted.map == pytest.approx(100 * ((1 + 1) / 3 + 1) / 2)
    rows = gqe.expander("none").fit(vectors).search(queries, 3)
    numbers = gqe.Index.build(vectors, "none", tmp_path / "numbers", ids=[10, 20, 30]).search(queries, 3)
    as_numbers = {
        query: {{"a": "10", "b": "20", "c": "30"}.get(name, name): grade for name, grade in items.items()}
        for query, items in QRELS.items()
    }
    write_run(tmp_path / "a.run", found, query_ids=["q1", "q2"])
    (tmp_path / "a.qrels").write_text("q1 0 a 1\nq1 0 c 2\nq1 0 gone 1\nq2 0 b 1\n")
    reversed_queries = gqe.SearchResult(found.scores[::-1], found.ids[::-1])
    for result in (
        evaluate(rows, QRELS, database_ids=names),
        evaluate(
            queries @ (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).T, QRELS, database_ids=names
        ),
        evaluate(numbers, as_numbers),
        evaluate(numbers, as_numbers, database_ids=[10, 20, 30]),
        evaluate(tmp_path / "a.run", tmp_path / "a.qrels"),
        evaluate(reversed_queries, QRELS, query_ids=["q2", "q1"]),
        evaluate(found, [{"a": 1, "c": 2, "gone": 1}, {"b": 1}]),
    ):
        assert result.to_dict() == pytest.approx(wanted.to_dict())
    # Labels take results with ids, too, if they are told which row is which.
    labelled = evaluate(found, (["x", "y"], ["x", "y", "x"]), database_ids=names)
    assert labelled.to_dict() == evaluate(rows, ([0, 1], [0, 1, 0])).to_dict()


def test_lists_of_relevant_ids():
    by_row = evaluate([[3, 0], [1, 2]], [[0], [1, 3]])
    assert (by_row.map, by_row.mrr) == (50.0, 75.0)
    assert evaluate([["d", "a"], ["b", "c"]], [["a"], {"b", "d"}]).map == 50.0
    truth = JudgedGroundTruth([[0], [1, 3]], n=4)
    assert truth.relevance().toarray().tolist() == [[1, 0, 0, 0], [0, 1, 0, 1]]
    assert evaluate(np.eye(4)[:2], truth).map == pytest.approx(100 * (1 + (1 + 2 / 4) / 2) / 2)


def test_text_labels():
    texts = evaluate(np.eye(3), (["cat", "dog", ""], np.array(["dog", "cat", "cat"])))
    assert texts.to_dict() == evaluate(np.eye(3), ([0, 1, -1], [1, 0, 0])).to_dict()
    assert evaluate(np.eye(2), (["cat", None], ["cat", "x"])).queries == 1


@pytest.mark.parametrize(
    ("results", "truth", "options", "message"),
    [
        (np.eye(2), QRELS, {}, "scores: give database_ids too"),
        ([["a"], ["b"]], ([0, 1], [0, 1]), {}, "'a' is no row number; give database_ids"),
        ([["a"], ["x"]], ([0, 1], [0, 1]), {"database_ids": ["a", "b"]}, "'x' is not among database_ids"),
        ([["a"]], QRELS, {}, "1 rows for 2 queries"),
        ([["a"], ["a"]], QRELS, {"query_ids": ["x", "y"]}, "query_ids: none of them is judged"),
        ([["a", "a"], ["a", "b"]], QRELS, {}, "twice"),
        ({"x": {"a": 1}}, QRELS, {}, "none of its queries is in the ground truth"),
        ({"q1": ["a"]}, QRELS, {}, "a run is {query id: {item: score}}"),
        ([["a"], ["a"]], QRELS, {"database_ids": ["a", "a"]}, "stands there twice"),
        ([[0]], [[0.5]], {}, "0.5 is no id"),
        ([[0]], [{0: "good"}], {}, "the grade of 0 is 'good'; give whole numbers"),
        ([[0]], [[1, 1]], {}, "1 stands there twice"),
        ([[0]], ([0], [0]), {"query_ids": ["q"]}, "query_ids: go with qrels"),
        ([[0]], [[0]], {"query_ids": ["q"]}, "a list stands in order already"),
    ],
)
def test_what_does_not_fit_is_refused(results, truth, options, message):
    with pytest.raises(InputError, match=message):
        evaluate(results, truth, **options)


def test_a_ground_truth_of_ids_has_no_table():
    with pytest.raises(InputError, match="give database_ids"):
        as_ground_truth(QRELS).relevance(3)
    with pytest.raises(InputError, match="names item 7, of 5"):
        JudgedGroundTruth([[7]], n=5)
