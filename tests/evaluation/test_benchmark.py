from __future__ import annotations

import numpy as np
import pytest

import gqe
from gqe.datasets.base import Benchmark
from gqe.evaluation import evaluate
from gqe.evaluation.benchmark import Bench
from gqe.methods import parse_method, parse_methods
from gqe.models import from_method


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def data() -> Benchmark:
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(6, 10))
    labels = np.repeat(np.arange(6), 7)
    return Benchmark(
        name="small",
        queries=unit(centres + 0.6 * rng.normal(size=(6, 10))),
        database=unit(centres[labels] + 0.6 * rng.normal(size=(42, 10))),
        ground_truth=(np.arange(6), labels),
    )


@pytest.mark.parametrize(
    "text",
    [
        "none",
        "aqe:k=3",
        "alpha-g:k=4",
        "dba-aqe:k=3",
        "dba-alpha-g:k=2",
        "aqe-g:k=3:rounds=3",
        "aqe:k=3:contrast=0.3",
        "universal",
        "dba-aqe:rounds=2",
    ],
)
def test_a_run_equals_expanding_and_judging_by_hand(data: Benchmark, text: str) -> None:
    method = parse_method(text)
    expander = gqe.expander(method.name, **method.settings).fit(data.database)
    database = expander.augment() if method.dba else data.database
    expected = gqe.evaluate(expander.expand(data.queries) @ database.T, data.ground_truth)
    outcome = Bench(data).run(method, quality=True)
    assert outcome.evaluation.map == pytest.approx(expected.map, abs=1e-6)
    assert outcome.to_dict()["method"] == method.title
    if text != "none":
        assert 0 <= outcome.to_dict()["agreement"] <= 1


def test_results_do_not_depend_on_what_ran_before(data: Benchmark) -> None:
    methods = parse_methods("aqe-g:k=2,alpha:k=12,aqe-g:k=7,dba-aqe:k=5")
    together = Bench(data).compare(methods)
    alone = [Bench(data).run(method) for method in methods]
    assert [o.evaluation.map for o in together] == [o.evaluation.map for o in alone]


def test_best_takes_the_highest(data: Benchmark) -> None:
    bench = Bench(data)
    methods = parse_methods("none,aqe:k=2/4/6/30")
    best = bench.best(methods)
    assert best.evaluation.main == max(bench.run(method).evaluation.main for method in methods)


def test_first_results_are_those_of_the_search(data: Benchmark) -> None:
    first = Bench(data).first(parse_method("dba-aqe:k=3"), 5)
    expected = gqe.expander("aqe", k=3).fit(data.database).search(data.queries, 5, dba=True).ids
    np.testing.assert_array_equal(first, expected)


def test_queries_inside_the_database_never_find_themselves(data: Benchmark) -> None:
    labels = data.ground_truth[1]
    own = np.arange(6) * 7
    inside = Benchmark(
        "inside",
        data.database[own],
        data.database,
        {"query_labels": labels[own], "database_labels": labels, "exclude": own},
    )
    bench = Bench(inside)
    assert not (bench.first(parse_method("aqe:k=3"), 10) == own[:, None]).any()
    # One query whose item is left out of the database altogether must give the same numbers.
    method = parse_method("aqe:k=3")
    truth = {"query_labels": labels[:1], "database_labels": labels, "exclude": own[:1]}
    excluded = Bench(Benchmark("one", data.database[:1], data.database, truth)).run(method)
    removed = Bench(Benchmark("one", data.database[:1], data.database[1:], (labels[:1], labels[1:]))).run(
        method
    )
    assert excluded.evaluation.map == pytest.approx(removed.evaluation.map)


def test_progress_counts_to_the_end(data: Benchmark) -> None:
    seen: list[tuple[int, int]] = []
    Bench(data).compare(
        parse_methods("none,aqe"), progress=lambda done, total, now: seen.append((done, total))
    )
    assert seen == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"queries": np.ones((6, 9), np.float32)}, "dimension 9"),
        ({"queries": np.ones((5, 10), np.float32)}, "6 queries"),
        ({"database": np.zeros((0, 10), np.float32)}, "empty"),
        ({"database": np.ones((41, 10), np.float32)}, "42"),
        ({"ground_truth": [{"easy": [50], "hard": [], "junk": []}] * 6}, "50"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(data: Benchmark, change, named) -> None:
    parts = {key: getattr(data, key) for key in ("name", "queries", "database", "ground_truth")}
    with pytest.raises(gqe.InputError, match=named):
        Bench(Benchmark(**parts | change))


def test_items_after_a_revisited_ground_truth_are_distractors(data: Benchmark) -> None:
    gnd = [{"easy": [7 * i], "hard": [7 * i + 1], "junk": []} for i in range(6)]
    official = {"imlist": [str(i) for i in range(14)], "qimlist": ["q"] * 2, "gnd": gnd[:2]}
    larger = Benchmark("larger", data.queries[:2], data.database, official)
    outcome = Bench(larger).run(parse_method("none"))
    expected = gqe.evaluate(data.queries[:2] @ data.database.T, gnd[:2])
    assert outcome.evaluation.map == pytest.approx(expected.map)


@pytest.mark.parametrize("text", ["reciprocal", "aqe:k=3+superglobal:m=20", "dba-aqe:k=3+egt:t=0.2"])
def test_a_re_ranked_run_is_the_search_of_the_expander_judged(data: Benchmark, text: str) -> None:
    bench, method = Bench(data, device="cpu"), parse_method(text)
    expander = from_method(method).fit(data.database, device="cpu")
    found = expander.search(data.queries, len(data.database), dba=method.dba)
    assert bench.run(method).evaluation.main == pytest.approx(evaluate(found.ids, data.ground_truth).main)
    assert bench.first(method, 4).tolist() == found.ids[:, :4].tolist()
    assert bench.first(method, 42).tolist() != bench.first(method.replace(reranking=None), 42).tolist()
