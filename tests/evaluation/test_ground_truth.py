"""Reading the two kinds of ground truth, and refusing what cannot be one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gqe.errors import InputError
from gqe.evaluation import LabelGroundTruth, RevisitedGroundTruth, as_ground_truth

OFFICIAL = [
    {"easy": [3, 1], "hard": [], "junk": [0], "bbx": [0.0, 0.0, 9.0, 9.0]},
    {"easy": [], "hard": [2], "junk": [4, 1]},
]


def test_the_official_forms_convert():
    plain = as_ground_truth(OFFICIAL)
    in_dict = as_ground_truth({"gnd": OFFICIAL, "imlist": list("abcde"), "qimlist": ["x", "y"]})
    assert isinstance(plain, RevisitedGroundTruth)
    assert (plain.queries, plain.n) == (2, None)
    assert (in_dict.queries, in_dict.n) == (2, 5)
    for truth in (plain, in_dict):
        assert [ids.tolist() for ids in truth.groups(0)] == [[3, 1], [], [0]]
        assert [ids.tolist() for ids in truth.groups(1)] == [[], [2], [4, 1]]


def test_label_forms_convert(tmp_path):
    labels = {"query_labels": np.array([1, 2]), "database_labels": np.array([2, 1, 1])}
    np.savez(tmp_path / "set.npz", queries=np.zeros((2, 4)), **labels)
    with np.load(tmp_path / "set.npz") as opened:
        from_file = as_ground_truth(opened)
    excluding = as_ground_truth(labels | {"exclude": [1, -1]})
    for truth in (from_file, as_ground_truth(labels), as_ground_truth(([1, 2], torch.tensor([2, 1, 1])))):
        assert isinstance(truth, LabelGroundTruth)
        assert [ids.tolist() for ids in truth.groups(0)] == [[1, 2], []]
    assert [ids.tolist() for ids in excluding.groups(0)] == [[2], [1]]
    assert as_ground_truth(excluding) is excluding


@pytest.mark.parametrize("value", [None, 3, {"labels": [1]}, [1, 2], ([1], [2], [3]), np.zeros((2, 2))])
def test_what_is_no_ground_truth_is_refused(value):
    with pytest.raises(InputError, match="ground_truth: cannot read"):
        as_ground_truth(value)


def test_relevance_of_revisited_is_medium_and_junk_is_ignored():
    truth = RevisitedGroundTruth.from_official(OFFICIAL, n=5)
    assert truth.relevance().dtype == bool
    assert truth.relevance().toarray().astype(int).tolist() == [[0, 1, 0, 1, 0], [0, 0, 1, 0, 0]]
    assert truth.ignored().toarray().astype(int).tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 1]]


def test_relevance_of_labels_is_the_same_label():
    query_labels, database_labels = np.array([0, 1, -1, 7, 1]), np.array([1, -1, 0, 1, 0, -1])
    truth = LabelGroundTruth(query_labels, database_labels, exclude=[-1, 3, -1, -1, -1])
    expected = (query_labels[:, None] == database_labels) & (database_labels >= 0)
    expected[1, 3] = False
    np.testing.assert_array_equal(truth.relevance().toarray(), expected)
    assert truth.ignored().nonzero()[0].tolist() == [1]
    assert truth.ignored().nonzero()[1].tolist() == [3]


def test_the_database_size_must_be_known_for_a_matrix():
    truth = as_ground_truth(OFFICIAL)
    with pytest.raises(InputError, match="does not know the database size"):
        truth.relevance()
    assert truth.relevance(9).shape == (2, 9)
    with pytest.raises(InputError, match="a database of 3 items has no item 3"):
        truth.relevance(3)
    with pytest.raises(InputError, match="n: 9 differs"):
        RevisitedGroundTruth.from_official(OFFICIAL, n=5).relevance(9)


def test_no_queries_and_no_database_are_defined():
    assert as_ground_truth([]).relevance(4).shape == (0, 4)
    assert LabelGroundTruth([3], []).relevance().shape == (1, 0)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"easy": [5], "hard": [], "junk": []}, 'query 1, list "easy": id 5 is not in the database'),
        ({"easy": [], "hard": [-1], "junk": []}, 'query 1, list "hard": id -1 is not in the database'),
        ({"easy": [], "hard": [], "junk": [1.5]}, 'query 1, list "junk": expected whole numbers'),
        ({"easy": [True], "hard": [], "junk": []}, 'query 1, list "easy": expected whole numbers'),
        ({"easy": [[1, 2]], "hard": [], "junk": []}, 'query 1, list "easy": expected a flat list'),
        ({"easy": 3, "hard": [], "junk": []}, 'query 1, list "easy": expected a flat list'),
        ({"easy": [2, 2], "hard": [], "junk": []}, r"query 1, id 2 is listed more than once \(easy, easy\)"),
        ({"easy": [2], "hard": [], "junk": [2]}, r"query 1, id 2 is listed more than once \(easy, junk\)"),
        ({"easy": [], "hard": [4], "junk": [4]}, r"query 1, id 4 is listed more than once \(hard, junk\)"),
        ({"easy": [], "hard": [4]}, 'query 1 has no list "junk"'),
        ({"ok": [4], "junk": []}, 'query 1 has no list "easy"'),
        ([1, 2], 'query 1 has no list "easy"'),
    ],
)
def test_bad_revisited_entries_are_refused_by_query_list_and_id(entry, message):
    with pytest.raises(InputError, match=message):
        RevisitedGroundTruth.from_official([OFFICIAL[0], entry], n=5)


def test_other_bad_revisited_input_is_refused():
    with pytest.raises(InputError, match="one list per query"):
        RevisitedGroundTruth([[1], [2]], [[]], [[]])
    with pytest.raises(InputError, match="easy: expected a list"):
        RevisitedGroundTruth(None, [[]], [[]])
    with pytest.raises(InputError, match="ground truth: expected a list"):
        as_ground_truth({"gnd": "roxford5k"})
    with pytest.raises(InputError, match='no "gnd"'):
        RevisitedGroundTruth.from_official({"queries": []})
    with pytest.raises(InputError, match="n: -1"):
        RevisitedGroundTruth([], [], [], n=-1)
    with pytest.raises(InputError, match="count: -3"):
        RevisitedGroundTruth([], [], []).with_distractors(-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5], [1]), "query_labels: expected whole numbers"),
        (([0], ["cat"]), "query_labels, database_labels: one has texts, the other numbers"),
        (([0], [["cat"]]), "database_labels: expected a flat list.*np.unique"),
        (([0], [[1]]), "database_labels: expected a flat list"),
        (([0], [1, -2]), "database_labels: label -2 in row 1"),
        (([0], [1], [0, 0]), "exclude: 2 ids for 1 queries"),
        (([0, 0], [1], [0, 1]), "exclude: id 1 of query 1"),
        (([0, 0], [1], [0, -2]), "exclude: id -2 of query 1"),
    ],
)
def test_bad_labels_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        LabelGroundTruth(*arguments)
