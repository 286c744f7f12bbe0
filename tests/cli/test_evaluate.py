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


def write_qrels(folder: Path, *, beir: bool) -> list[object]:
    """Judgements of the labels as a BEIR folder or as TREC files; gives the options."""
    relevant = [(f"q{i}", f"d{8 * i + j}") for i in range(5) for j in range(8)]
    names = {"corpus": [f"d{i}" for i in range(40)], "queries": [f"q{i}" for i in range(5)]}
    vectors = ["--database", folder / "database.npy", "--queries", folder / "queries.npy", "--ground-truth"]
    if not beir:
        (folder / "some.qrels").write_text("".join(f"{q} 0 {d} 1\n" for q, d in relevant))
        for name, ids in names.items():
            (folder / f"{name}.txt").write_text("\n".join(ids))
        ids = ["--database-ids", folder / "corpus.txt", "--query-ids", folder / "queries.txt"]
        return [*vectors, folder / "some.qrels", *ids]
    (folder / "beir" / "qrels").mkdir(parents=True)
    for name, ids in names.items():
        lines = "".join(json.dumps({"_id": one}) + "\n" for one in ids)
        (folder / "beir" / f"{name}.jsonl").write_text(lines)
    rows = "".join(f"{q}\t{d}\t1\n" for q, d in relevant)
    (folder / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return [*vectors, folder / "beir"]


@pytest.mark.parametrize("beir", [True, False])
def test_qrels_beside_the_same_labels(gqe, files: Path, beir: bool) -> None:
    settings = ["--methods", "none,aqe:k=4", "--json", "--ks", "5,20"]
    options = write_qrels(files, beir=beir)
    ran = gqe("evaluate", *options, *settings)
    assert ran.status == 0, ran.err
    by_labels = json.loads(gqe("evaluate", files / "labels.npz", *settings).out)["results"]
    for result, other in zip(json.loads(ran.out)["results"], by_labels, strict=True):
        for name in ("ndcg@5", "ndcg@20", "mrr", "p@20"):
            assert result[name] == pytest.approx(other[name])
        assert result["recall@20"] == pytest.approx(other["p@20"] * 20 / 8)
    assert "nDCG@10" in gqe("evaluate", *options, "--methods", "none").out


def test_runs_are_written_and_evaluated(gqe, files: Path) -> None:
    write_qrels(files, beir=False)
    (files / "rows.qrels").write_text("".join(f"q{i} 0 {8 * i + j} 1\n" for i in range(5) for j in range(8)))
    base = ("search", files / "database.npy", files / "queries.npy", "-k", "40")
    for name, method in (("a", ("--plain",)), ("b", ("-m", "aqe:k=6"))):
        options = ("--run", files / f"{name}.run", "--query-ids", files / "queries.txt")
        ran = gqe(*base, *method, *options)
        assert (ran.status, ran.out.strip()) == (0, f"wrote 200 results of 5 queries to {files / name}.run")
    runs = ("--run", files / "a.run", "--run", files / "b.run", "--ground-truth", files / "rows.qrels")
    ran = gqe("evaluate", *runs, "--compare", "ndcg@10", "--csv", files / "t.csv", "--json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    truth = ("--ground-truth", files / "some.qrels", "--database-ids", files / "corpus.txt")
    vectors = ("--database", files / "database.npy", "--queries", files / "queries.npy")
    ids = (
        "--query-ids",
        files / "queries.txt",
        "--methods",
        "none,aqe:k=6",
        "--json",
        "--compare",
        "ndcg@10",
    )
    other = json.loads(gqe("evaluate", *vectors, *truth, *ids).out)
    for result, wanted in zip(found["results"], other["results"], strict=True):
        assert result["map"] == pytest.approx(wanted["map"])
    (outcome,), (wanted,) = found["comparisons"], other["comparisons"]
    assert outcome["p"] == wanted["p"]
    assert (outcome["first"], wanted["second"]) == (str(files / "a.run"), "aqe:k=6")
    assert len((files / "t.csv").read_text().splitlines()) == 3
    assert "p < 0.05" in gqe("evaluate", *runs, "--compare", "map").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "a.run"], "--run: give --ground-truth"),
        (["--run", "a.run", "labels.npz"], "--run: a run is a finished search"),
        (["--run", "a.run", "--ground-truth", "some.qrels"], "a.run: no such file"),
        (["labels.npz", "--methods", "aqe", "--compare", "map"], "--compare: there is one method only"),
        (["labels.npz", "--methods", "none,aqe", "--compare", "x"], "metric: 'x' was not measured"),
        (["labels.npz", "--ks", "0"], "k: 0 is not a list length"),
        (["labels.npz", "--query-ids", "queries.txt"], "benchmark: give either"),
    ],
)
def test_what_does_not_go_together_is_refused(gqe, files: Path, monkeypatch, arguments, message) -> None:
    write_qrels(files, beir=False)
    monkeypatch.chdir(files)
    ran = gqe("evaluate", *arguments)
    assert ran.status == 2
    assert message in ran.err


def test_qrels_without_ids_or_with_too_few(gqe, files: Path) -> None:
    options = write_qrels(files, beir=False)
    ran = gqe("evaluate", *options[:6])
    assert "--database-ids:" in ran.err
    assert "'d0', which is no row number; give the id of each vector" in ran.err
    (files / "corpus.txt").write_text("d0\nd1\n")
    ran = gqe("evaluate", *options)
    assert "--database-ids: 2 ids for 40 vectors" in ran.err
