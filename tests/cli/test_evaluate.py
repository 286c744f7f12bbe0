from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import gqe as package


def test_json_of_a_label_benchmark(gqe, files: Path) -> None:
    ran = gqe("evaluate", files / "labels.npz", "--methods", "none,aqe:k=6,dba-alpha:k=3:alpha=1", "--json")
    assert ran.status == 0, ran.err
    results = json.loads(ran.out)["results"]
    assert [(r["method"], r["settings"]) for r in results] == [
        ("none", {"k": 1} if "k" in results[0]["settings"] else {}),
        ("aqe", {"k": 6}),
        ("dba-alpha", {"k": 3, "alpha": 1}),
    ]
    data = np.load(files / "labels.npz")
    expander = package.expander("aqe", k=6).fit(data["database"])
    expected = package.evaluate(
        expander.expand(data["queries"]) @ data["database"].T, (data["query_labels"], data["database_labels"])
    )
    assert results[1]["map"] == pytest.approx(expected.map, abs=1e-4)
    augmented = package.expander("alpha", k=3, alpha=1).fit(data["database"])
    expected = package.evaluate(
        augmented.expand(data["queries"]) @ augmented.augment().T,
        (data["query_labels"], data["database_labels"]),
    )
    assert results[2]["map"] == pytest.approx(expected.map, abs=1e-4)


def test_revisited_ground_truth_gives_three_numbers(gqe, files: Path) -> None:
    gnd = [
        {"easy": [i * 8, i * 8 + 1], "hard": [i * 8 + 2], "junk": [i * 8 + 3], "bbx": [0, 0, 1, 1]}
        for i in range(5)
    ]
    truth = {"gnd": gnd, "imlist": [str(i) for i in range(40)], "qimlist": list("abcde")}
    (files / "gnd.pkl").write_bytes(pickle.dumps(truth))
    ran = gqe(
        *("evaluate", "--database", files / "database.npy", "--queries", files / "queries.npy"),
        *("--ground-truth", files / "gnd.pkl", "--methods", "none,aqe:k=2", "--json", "--quality"),
    )
    assert ran.status == 0, ran.err
    for result in json.loads(ran.out)["results"]:
        assert set(result["map"]) == {"easy", "medium", "hard"}
    assert 0 <= result["agreement"] <= 1


def test_grids_of_k_and_the_csv_file(gqe, files: Path) -> None:
    ran = gqe(
        "evaluate", files / "labels.npz", "--methods", "none,aqe", "--k", "2,4", "--csv", files / "t.csv"
    )
    assert ran.status == 0, ran.err
    with (files / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["settings"]) for row in rows] == [
        ("none", ""),
        ("aqe", "k=2"),
        ("aqe", "k=4"),
    ]
    assert "mAP" in ran.out
    assert ran.out.count("aqe") == 2


def test_settings_of_a_reranker_are_told_apart(gqe, files: Path) -> None:
    methods = ("--methods", "aqe:k=3+reciprocal:k1=5/10")
    shown = gqe("evaluate", files / "labels.npz", *methods).out
    assert "k=3 + k1=5" in shown
    assert "k=3 + k1=10" in shown
    results = json.loads(gqe("evaluate", files / "labels.npz", *methods, "--json").out)["results"]
    assert [row["reranker_settings"]["k1"] for row in results] == [5, 10]


def test_the_town_by_name(gqe) -> None:
    ran = gqe("evaluate", "town-val", "--methods", "none,aqe:k=4", "--json")
    assert ran.status == 0, ran.err
    none, aqe = json.loads(ran.out)["results"]
    assert aqe["map"]["medium"] > none["map"]["medium"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere.npz"], "nowhere.npz"),
        (["villagio"], "villagio"),
        ([], "--database"),
        (["labels.npz", "--methods", "aqee"], "aqe"),
        (["labels.npz", "--methods", "aqe:k=0"], "k"),
        (["labels.npz", "--methods", "aqe:kk=3"], "kk"),
        (["labels.npz", "--methods", ""], "methods"),
        (["labels.npz", "--k", "two"], "--k"),
        (["labels.npz", "--device", "abacus"], "abacus"),
        (["labels.npz", "--database", "database.npy"], "benchmark"),
        (["labels.npz", "--queries-key", "queries"], "benchmark"),
        (["--database", "database.npy", "--queries", "queries.npy"], "--ground-truth"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(gqe, files: Path, monkeypatch, arguments, named) -> None:
    monkeypatch.chdir(files)
    ran = gqe("evaluate", *arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert named in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def _evaluate_own(gqe, folder: Path, database: str = "database.npy"):
    return gqe(
        *("evaluate", "--database", folder / database, "--queries", folder / "queries.npy"),
        *("--ground-truth", folder / "gnd.json"),
    )


def test_a_ground_truth_that_points_outside_the_database(gqe, files: Path) -> None:
    gnd = [{"easy": [99], "hard": [], "junk": []} for _ in range(5)]
    (files / "gnd.json").write_text(json.dumps({"gnd": gnd}))
    ran = _evaluate_own(gqe, files)
    assert ran.status == 2
    assert "99" in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_a_ground_truth_of_another_number_of_queries(gqe, files: Path) -> None:
    (files / "gnd.json").write_text(json.dumps({"gnd": [{"easy": [1], "hard": [], "junk": []}]}))
    ran = _evaluate_own(gqe, files)
    assert ran.status == 2
    assert "1 queries" in ran.err


def test_a_malicious_pickle_runs_nothing(gqe, files: Path) -> None:
    class Evil:
        def __reduce__(self):
            return (Path.touch, (files / "executed",))

    (files / "gnd.json").unlink(missing_ok=True)
    (files / "evil.pkl").write_bytes(pickle.dumps({"gnd": Evil()}))
    ran = gqe(
        *("evaluate", "--database", files / "database.npy", "--queries", files / "queries.npy"),
        *("--ground-truth", files / "evil.pkl"),
    )
    assert ran.status == 2
    assert "evil.pkl" in ran.err
    assert not (files / "executed").exists()
