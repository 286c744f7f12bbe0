"""search, expand and explain take the same options for a file of vectors, an index and a store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import faiss
import numpy as np
import pytest

import gqe as package

TARGETS = ("database.npy", "index", "index:index", "database.faiss")
FILE = "database.npy"
# Options of a search, and the same as arguments of the library.
OPTIONS: list[tuple[tuple[str, ...], dict]] = [
    ((), {}),
    (("-k", "3"), {"k": 3}),
    (("--rounds", "2"), {"rounds": 2}),
    (("--plain",), {"expand": False}),
    (("--rerank", "reciprocal:k1=3:k2=2"), {"rerank": "reciprocal:k1=3:k2=2"}),
    (("--plain", "--rerank", "reciprocal:k1=3"), {"expand": False, "rerank": "reciprocal:k1=3"}),
    (("--exact",), {"exact": True}),
    (("--no-dba",), {"dba": False}),
    (("--exclude", "own.txt"), {"exclude": [0, 8, 16, 24, 32]}),
    (("--exclude", "own.npy", "--rounds", "3"), {"exclude": [0, -1, 16, 24, 32], "rounds": 3}),
]


@pytest.fixture
def place(indexed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = shutil.copytree(indexed, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(files)
    flat = faiss.IndexFlatIP(8)
    flat.add(np.load(FILE))
    faiss.write_index(flat, "database.faiss")
    (files / "own.txt").write_text("0\n8\n16\n24\n32\n")
    np.save("own.npy", np.array([0, -1, 16, 24, 32]))
    return files


def library(target: str):
    if target == FILE:
        return package.expander("universal").fit(np.load(FILE))
    if target.endswith(".faiss"):
        return package.wrap(target)
    return package.Index.open(target) if target == "index" else package.connect(target)


@pytest.mark.parametrize("target", TARGETS)
def test_every_option_of_a_search_does_what_the_library_does(gqe, place: Path, target: str) -> None:
    queries = np.load("queries.npy")
    usual = library(target).search(queries, 10).scores
    for options, arguments in OPTIONS:
        ran = gqe("search", target, "queries.npy", *options, "--json")
        assert (ran.status, ran.err) == (0, ""), options
        results = json.loads(ran.out)["results"]
        expected = library(target).search(queries, **{"k": 10} | arguments)
        assert [result["ids"] for result in results] == expected.ids.tolist(), options
        np.testing.assert_allclose([result["scores"] for result in results], expected.scores, atol=1e-5)
        if {"rounds", "expand", "rerank", "exclude"} & set(arguments):
            assert not np.allclose(expected.scores, usual), options  # it has an effect


@pytest.mark.parametrize("command", ["search", "expand", "explain"])
def test_all_targets_give_the_same(gqe, place: Path, command: str) -> None:
    for options in ((), ("--rounds", "2"), ("--exact",), ("--exclude", "own.txt", "--rounds", "2")):
        outputs = []
        for target in TARGETS:
            ran = gqe(command, target, "queries.npy", *options, "--json")
            assert (ran.status, ran.err) == (0, "")
            told = json.loads(ran.out)
            for own in ("method", "settings", "index", "version", "store"):
                told.pop(own, None)
            if command == "expand":
                assert told.pop("vectors") == 5
                outputs.append(np.load("expanded.npy"))
            elif command == "search":
                outputs.append(np.array([(row["ids"], row["scores"]) for row in told["results"]]))
            else:
                rows = [(item["id"], item["weight"], item["share"]) for item in told["items"]]
                outputs.append(np.array([*rows, (told["items_with_weight"], *told["own"].values())]))
        for output in outputs[1:]:
            np.testing.assert_allclose(output, outputs[0], atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_text_names_every_item_of_an_explanation(gqe, place: Path, target: str) -> None:
    ran = gqe("explain", target, "queries.npy", "-q", "3", "--top", "5")
    lines = ran.out.splitlines()
    assert lines[1].startswith("the query")
    expected = library(target).explain(np.load("queries.npy")[3], top=5)
    assert [line.split()[:2] for line in lines[2:7]] == [["item", str(i)] for i in expected.ids.tolist()]
    assert lines[7] == f"{expected.count} items have a weight; 5 shown"


def test_a_file_is_expanded_by_universal_unless_a_method_is_named(gqe, place: Path) -> None:
    assert json.loads(gqe("search", FILE, "queries.npy", "--json").out)["method"] == "universal"
    assert json.loads(gqe("explain", FILE, "queries.npy", "--json").out)["method"] == "universal"
    gqe("expand", FILE, "queries.npy", "-o", "out.npy")
    np.testing.assert_allclose(np.load("out.npy"), library(FILE).expand(np.load("queries.npy")), atol=1e-6)


def test_methods_with_settings_rounds_and_a_reranker(gqe, place: Path) -> None:
    queries = np.load("queries.npy")
    typed = "universal:rounds=2+reciprocal:k1=5"
    ran = gqe("search", FILE, "queries.npy", "-m", typed, "--json")
    expected = package.expander(typed).fit(np.load(FILE)).search(queries, 10)
    assert [row["ids"] for row in json.loads(ran.out)["results"]] == expected.ids.tolist()
    about = json.loads(ran.out)
    assert (about["settings"], about["reranker_settings"]["k1"]) == ({"rounds": 2}, 5)
    typed = "alpha:k=3:rounds=2+reciprocal:k1=5"
    ran = gqe("search", "index:index", "queries.npy", "-m", typed, "--json")
    expected = package.expander(typed).fit(np.load(FILE)).search(queries, 10)
    assert [row["ids"] for row in json.loads(ran.out)["results"]] == expected.ids.tolist()
    for command in ("expand", "explain"):
        for target in (FILE, "index:index"):
            assert gqe(command, target, "queries.npy", "-m", "alpha:k=3:rounds=2").status == 0
    expected = package.expander("alpha:k=3:rounds=2").fit(np.load(FILE)).expand(queries)
    np.testing.assert_allclose(np.load("expanded.npy"), expected, atol=1e-5)


def test_dba_of_a_file_and_of_an_index(gqe, place: Path) -> None:
    queries = np.load("queries.npy")
    assert gqe("index", "build", FILE, "augmented", "--dba").status == 0
    for dba in ("--dba", "--no-dba"):
        expected = library(FILE).search(queries, 10, dba=dba == "--dba").ids.tolist()
        for target in (FILE, "augmented"):
            ran = gqe("search", target, "queries.npy", dba, "--json")
            assert [row["ids"] for row in json.loads(ran.out)["results"]] == expected
    plain = gqe("search", FILE, "queries.npy", "-m", "dba-universal", "--no-dba", "--json")
    assert [row["ids"] for row in json.loads(plain.out)["results"]] == expected


REFUSALS = [
    ("search", ("mysql://host/items",), (), "unknown kind of address 'mysql'; it can be index, postgresql"),
    ("expand", ("s3://bucket/base.npy",), (), "unknown kind of address 's3'; it can be index, postgresql"),
    ("search", ("index", "index:index"), ("--recall", "0.9"), "--recall: is for a file of vectors"),
    ("expand", ("index", "index:index"), ("--database-key", "a"), "--database-key: is for a file of vectors"),
    ("explain", ("index", "index:index"), ("--recall", "0.9"), "--recall: is for a file of vectors"),
    ("search", ("index",), ("-m", "alpha"), "an index has its own method, here universal; leave -m out"),
    ("expand", ("index",), ("-m", "alpha"), "an index has its own method, here universal; leave -m out"),
    ("explain", ("index",), ("-m", "alpha"), "an index has its own method, here universal; leave -m out"),
    ("search", ("index:index",), ("-m", "aqe-g"), "which have to be attached; attach it"),
    ("search", (FILE,), ("--filter", "{}"), "--filter: a file of vectors has no metadata"),
    ("search", ("index",), ("--filter", '{"a": 1}'), "filter: this index has no metadata"),
    ("search", ("index",), ("--dba",), "dba: this index was built without augmentation"),
    ("search", ("index:index",), ("--dba",), "dba: a store holds no augmented database"),
    ("search", ("index:index",), ("-m", "dba-aqe"), "dba: a store holds no augmented database"),
    ("search", TARGETS, ("--plain", "-m", "aqe"), "--plain: searches with the queries as they are"),
    ("search", TARGETS, ("--plain", "--rounds", "2"), "--plain: searches with the queries as they are"),
    ("search", TARGETS, ("--html", "a.html"), "--html"),
    ("search", TARGETS, ("--rounds", "0"), "rounds: expected a whole number of at least 1"),
    ("search", TARGETS, ("--rerank", "aqe"), "rerank: expected a re-ranker"),
    ("search", TARGETS, ("-m", "aqe+egt", "--rerank", "reciprocal"), "--rerank: the method names egt"),
    ("search", TARGETS, ("--exclude", "few.txt"), "few.txt: 1 ids for 5 queries"),
    ("search", TARGETS, ("-k", "0"), "k: "),
    ("expand", TARGETS, ("-m", "aqe+egt"), "egt reorders results; use it with gqe search"),
    ("explain", TARGETS, ("-m", "aqe+egt"), "egt reorders results; use it with gqe search"),
    ("explain", TARGETS, ("-m", "dba-aqe"), "use 'aqe' here"),
    ("explain", TARGETS, ("--exclude", "few.txt"), "few.txt: 1 ids for 5 queries"),
    ("expand", TARGETS, ("--exclude", "few.txt"), "few.txt: 1 ids for 5 queries"),
]


@pytest.mark.parametrize(("command", "targets", "options", "message"), REFUSALS)
def test_what_makes_no_sense_is_refused_in_one_line(
    gqe, place: Path, command: str, targets: tuple[str, ...], options: tuple[str, ...], message: str
) -> None:
    (place / "few.txt").write_text("3\n")
    for target in targets:
        ran = gqe(command, target, "queries.npy", *options)
        assert (ran.status, ran.out) == (2, ""), target
        assert message in ran.err
        assert len(ran.err.splitlines()) == 1
    assert not (place / "expanded.npy").exists()


def test_an_augmented_database_concerns_no_queries(gqe, place: Path) -> None:
    for target in ("index", "index:index"):
        ran = gqe("expand", target, "--augment")
        assert ran.status == 2
        assert "--augment: is for a file of vectors; gqe index build --dba" in ran.err
    for option in (("--rounds", "2"), ("--exact",), ("--exclude", "own.txt"), ("--queries-key", "a")):
        ran = gqe("expand", FILE, "--augment", *option)
        assert ran.status == 2
        assert "--augment: concerns no queries" in ran.err


@pytest.mark.parametrize("command", ["search", "expand", "explain"])
def test_more_queries_than_vectors_are_warned_of(gqe, place: Path, command: str) -> None:
    ran = gqe(command, "queries.npy", FILE)
    assert ran.status == 0
    assert ran.err == ("gqe: 40 queries for a database of 5 vectors; DATABASE comes first, then QUERIES\n")
    assert gqe(command, FILE, FILE).err == ""
    np.save("many.npy", np.load(FILE).repeat(2, axis=0))
    assert gqe(command, "index", "many.npy").err == ""  # which cannot be swapped


def test_text_ids_are_printed_as_they_are(gqe, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither markup nor a narrow terminal takes anything away."""
    names = [f"[bold]{i}[/bold]:car:一二三四五六七八九十{'x' * 40}" for i in range(40)]
    Path("names.txt").write_text("".join(f"{name}\n" for name in names))
    assert gqe("index", "build", FILE, "texts", "-m", "aqe", "--ids", "names.txt").status == 0
    ran = gqe("search", "texts", "queries.npy", "-k", "40")
    lines = ran.out.splitlines()[1:]
    assert all(
        sorted(part.rpartition(":")[0] for part in line.split()[1:]) == sorted(names) for line in lines
    )
    explained = gqe("explain", "texts", "queries.npy", "--top", "3").out
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("rich.console.Console.is_terminal", False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert gqe("explain", "texts", "queries.npy", "--top", "3").out == explained
    narrow = gqe("search", "texts", "queries.npy", "-k", "40").out
    text = "".join(narrow.split())
    assert all(text.count("".join(name.split())) == 5 for name in names)


def test_own_items_of_text_ids_are_excluded(gqe, place: Path) -> None:
    names = [f"0{i}" for i in range(40)]
    Path("names.txt").write_text("\n".join(names))
    gqe("index", "build", FILE, "texts", "-m", "aqe", "--ids", "names.txt")
    Path("own.txt").write_text("\n".join(names))
    for target in ("texts", "index:texts"):
        ran = gqe("search", target, FILE, "--exclude", "own.txt", "--json")
        assert ran.status == 0, ran.err
        results = json.loads(ran.out)["results"]
        assert all(name not in result["ids"] for name, result in zip(names, results, strict=True))


def test_help_says_what_is_required(gqe) -> None:
    for command in ("search", "expand", "explain"):
        text = " ".join(gqe(command, "--help").out.replace("│", " ").split())
        assert text.count("[required]") == (2 if command == "explain" else 1)
        assert "address of a vector database" in text
        assert "(universal if left out)" in text
        assert "--store" not in text
