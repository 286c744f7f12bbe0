"""The corners of an evaluation: nothing to count, JSON, text, and input it refuses."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from gqe.errors import InputError
from gqe.evaluation import LabelGroundTruth, evaluate

NAN = math.nan


def test_a_protocol_without_positives_is_nan_and_none_in_json():
    result = evaluate([[0.2, 0.1]], [{"easy": [0], "hard": [], "junk": []}], ks=[1])
    assert math.isnan(result.map["hard"])
    assert result.queries == {"easy": 1, "medium": 1, "hard": 0}
    assert result.left_out == {"easy": 0, "medium": 0, "hard": 1}
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False)) == {
        "map": {"easy": 100.0, "medium": 100.0, "hard": None},
        "mp@1": {"easy": 100.0, "medium": 100.0, "hard": None},
        "queries": {"easy": 1, "medium": 1, "hard": 0},
    }


def test_at_the_prompt_it_is_one_line():
    result = evaluate(np.random.default_rng(0).random((300, 9)), [[0]] * 300)
    assert repr(result) == f"<Evaluation of 300 queries: mAP {result.map:.1f}; print() shows all>"


def test_queries_without_a_relevant_item_are_left_out():
    # Query 1 carries nobody's label and query 2 a label the database lacks; only query 0 counts.
    scores = np.array([[0.9, 0.8, 0.1], [0.9, 0.8, 0.1], [0.9, 0.8, 0.1]])
    result = evaluate(scores, ([5, -1, 6], [-1, 5, -1]))
    assert result.map == pytest.approx(25.0)
    assert (result.queries, result.left_out) == (1, 2)
    assert np.isnan(result.per_query).tolist() == [False, True, True]


def test_the_query_itself_is_not_a_hit():
    labels, scores = [0, 0, 1], np.eye(3)
    with_itself = evaluate(scores, LabelGroundTruth(labels, labels))
    without = evaluate(scores, LabelGroundTruth(labels, labels, exclude=np.arange(3)))
    assert (with_itself.recall[1], with_itself.queries) == (100.0, 3)
    assert (without.recall[1], without.queries) == (100.0, 2)
    np.testing.assert_allclose(without.per_query, [100, 100, NAN])


def test_no_queries_no_database_no_ks():
    empty = evaluate(np.zeros((0, 4)), LabelGroundTruth([], [1, 2, 3, 4]))
    assert math.isnan(empty.map)
    assert empty.to_dict()["map"] is None
    nothing = evaluate(np.zeros((2, 0)), LabelGroundTruth([1, 2], []), ks=())
    assert nothing.to_dict() == {"map": None, "mrr": None, "queries": 0}
    assert evaluate(np.zeros((2, 0), int), [{"easy": [0], "hard": [], "junk": []}] * 2).map["easy"] == 0.0


def test_to_dict_of_labels_has_every_family():
    result = evaluate([[0.1, 0.9]], ([1], [1, 0]), ks=(1, 2))
    assert result.to_dict() == {
        "map": 25.0,
        "mrr": 50.0,
        "ndcg@1": 0.0,
        "ndcg@2": pytest.approx(100 / math.log2(3)),
        "mp@1": 0.0,
        "mp@2": 50.0,
        "p@1": 0.0,
        "p@2": 50.0,
        "recall@1": 0.0,
        "recall@2": 100.0,
        "map@1": 0.0,
        "map@2": 50.0,
        "queries": 1,
    }
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
    assert result.main == 25.0


def test_text_shows_every_number():
    revisited_text = str(evaluate([[1, 0]], [{"easy": [0], "hard": [], "junk": []}], ks=(1,)))
    assert [line.split() for line in revisited_text.splitlines()] == [
        ["easy", "medium", "hard"],
        ["mAP", "25.0", "25.0", "-"],
        ["mP@1", "0.0", "0.0", "-"],
        ["queries", "1", "1", "0"],
        ["left", "out", "0", "0", "1"],
    ]
    label_text = str(evaluate([[0.1, 0.9]], ([1], [1, 0]), ks=(2,)))
    assert [line.split() for line in label_text.splitlines()] == [
        ["mAP", "25.0"],
        ["MRR", "50.0"],
        ["nDCG@2", "63.1"],
        ["mP@2", "50.0"],
        ["P@2", "50.0"],
        ["recall@2", "100.0"],
        ["mAP@2", "50.0"],
        ["queries", "1"],
    ]


@pytest.mark.parametrize("ks", [(0,), (1.5,), 10, "5", None])
def test_bad_list_lengths_are_refused(ks):
    with pytest.raises(InputError, match=r"^ks?: "):
        evaluate([[0.1, 0.9]], ([1], [1, 0]), ks=ks)


def test_nan_is_refused_even_where_no_item_is_labelled():
    with pytest.raises(InputError, match="NaN in row 1, column 0"):
        evaluate([[0.1, 0.9], [NAN, 0.0]], ([1, 7], [1, 0]))
