import numpy as np
import pytest

from gqe import InputError, evaluate
from gqe.datasets.base import Benchmark, TrainingSet
from gqe.training.validation import change_space, hold_out, limit_classes, limit_relevant


def data(classes=24, size=8):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), size)
    x = rng.normal(size=(classes, 12))[labels] + 0.45 * rng.normal(size=(len(labels), 12))
    return TrainingSet("set", x / np.linalg.norm(x, axis=1, keepdims=True), labels)


def benchmark() -> Benchmark:
    return hold_out(data(), 0.5)[1]


def precision(benchmark: Benchmark) -> float:
    return evaluate(benchmark.queries @ benchmark.database.T, benchmark.ground_truth).map


def test_classes_are_held_out_whole():
    whole = data()
    left, kept = hold_out(whole, 0.25, seed=3)
    away = set(kept.ground_truth["query_labels"])
    assert len(away) == 6
    assert away == set(kept.ground_truth["database_labels"])
    assert not away & set(left.labels)
    assert len(left.labels) + len(kept.queries) + len(kept.database) == len(whole.labels)


def test_too_few_classes_to_hold_some_out():
    with pytest.raises(InputError, match="give a validation file"):
        hold_out(data(classes=3))


def test_few_relevant_keeps_that_many_a_class_and_all_distractors():
    plain = benchmark()
    labels = plain.ground_truth["database_labels"].copy()
    labels[:5] = -1
    plain = Benchmark("b", plain.queries, plain.database, plain.ground_truth | {"database_labels": labels})
    few = limit_relevant(plain, 2)
    kept = few.ground_truth["database_labels"]
    assert (kept == -1).sum() == 5
    assert set(np.unique(kept[kept >= 0], return_counts=True)[1]) <= {1, 2}
    assert len(few.database) == len(kept)


def test_another_space_is_harder():
    plain = benchmark()
    other = change_space(plain, 40, 0.3, 0.5)
    assert other.database.shape == (len(plain.database), 40)
    assert precision(other) < precision(plain)


def test_few_classes_stand_whole_among_all_strangers():
    plain = benchmark()
    labels = plain.ground_truth["database_labels"].copy()
    labels[:5] = -1
    plain = Benchmark("b", plain.queries, plain.database, plain.ground_truth | {"database_labels": labels})
    parts = [limit_classes(plain, part, 4) for part in range(4)]
    for few in parts:
        asked, kept = few.ground_truth["query_labels"], few.ground_truth["database_labels"]
        assert len(set(asked)) == 3
        assert (kept == -1).sum() == 5
        for label in set(kept) - {-1}:
            assert label in asked
            assert (kept == label).sum() == (labels == label).sum()
        assert (len(few.queries), len(few.database)) == (len(asked), len(kept))
    assert sum(len(few.queries) for few in parts) == len(plain.queries)
