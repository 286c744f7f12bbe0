"""expand, search and explain: vectors in, vectors, results and weights out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gqe as package


@pytest.fixture
def data(files: Path) -> tuple[np.ndarray, np.ndarray]:
    return np.load(files / "database.npy"), np.load(files / "queries.npy")


def test_expand_writes_what_the_library_gives(gqe, files: Path, data) -> None:
    database, queries = data
    out = files / "out.fvecs"
    ran = gqe("expand", files / "database.npy", files / "queries.npy", "-m", "alpha:k=5", "-o", out, "--json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["vectors"] == 5
    expected = package.expander("alpha", k=5).fit(database).expand(queries)
    written = np.fromfile(out, dtype=np.float32).reshape(5, 9)[:, 1:]
    np.testing.assert_allclose(written, expected, atol=1e-6)


def test_augment_writes_the_database_side(gqe, files: Path, data) -> None:
    ran = gqe("expand", files / "database.npy", "--augment", "-m", "aqe-g:k=3", "-o", files / "dba.npy")
    assert ran.status == 0, ran.err
    expected = package.expander("aqe-g", k=3).fit(data[0]).augment()
    np.testing.assert_allclose(np.load(files / "dba.npy"), expected, atol=1e-6)


def test_search_finds_what_the_library_finds(gqe, files: Path, data) -> None:
    database, queries = data
    ran = gqe(
        "search", files / "database.npy", files / "queries.npy", "-m", "dba-aqe:k=3", "-k", "4", "--json"
    )
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)["results"]
    expected = package.expander("aqe", k=3).fit(database).search(queries, 4, dba=True)
    assert [result["ids"] for result in found] == expected.ids.tolist()
    np.testing.assert_allclose([result["scores"] for result in found], expected.scores, atol=1e-5)


def test_search_prints_every_result_whole(gqe, files: Path) -> None:
    ran = gqe("search", files / "database.npy", files / "queries.npy", "-k", 40)
    rows = ran.out.splitlines()[1:]
    assert len(rows) == 5
    assert all(sorted(int(pair.split(":")[0]) for pair in row.split()[1:]) == list(range(40)) for row in rows)


def test_search_of_more_than_there_is(gqe, files: Path) -> None:
    ran = gqe("search", files / "database.npy", files / "queries.npy", "-k", "100", "--json")
    assert [len(result["ids"]) for result in json.loads(ran.out)["results"]] == [40] * 5


def test_explain_shows_the_heaviest_items(gqe, files: Path, data) -> None:
    database, queries = data
    ran = gqe(
        *("explain", files / "database.npy", files / "queries.npy", "--query", "2"),
        *("-m", "aqe-g:k=3", "--top", "3", "--json"),
    )
    assert ran.status == 0, ran.err
    told = json.loads(ran.out)
    weights = package.expander("aqe-g", k=3).fit(database).weights(queries[2:3])
    assert told["items_with_weight"] == weights.nnz
    assert [item["weight"] for item in told["items"]] == pytest.approx(
        np.sort(weights.data)[::-1][:3], abs=1e-5
    )
    text = gqe("explain", files / "database.npy", files / "queries.npy").out
    assert "the query" in text


def _bad(files: Path, name: str, array: np.ndarray) -> Path:
    np.save(files / name, array)
    return files / name


def _truncated(files: Path) -> Path:
    whole = (files / "queries.npy").read_bytes()
    (files / "cut.npy").write_bytes(whole[:-10])
    return files / "cut.npy"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda f: f / "absent.npy", "absent.npy"),
        (lambda f: _bad(f, "wide.npy", np.ones((2, 9), np.float32)), "dimension 9"),
        (lambda f: _bad(f, "nan.npy", np.full((2, 8), np.nan, np.float32)), "row 0"),
        (lambda f: _bad(f, "zero.npy", np.zeros((2, 8))), "row 0"),
        (lambda f: _bad(f, "flat.npy", np.ones(8)), "(n, d)"),
        (lambda f: _bad(f, "words.npy", np.array([["a"] * 8])), "words.npy"),
        (_truncated, "cut.npy"),
    ],
)
@pytest.mark.parametrize("command", ["expand", "search", "explain"])
def test_bad_queries_are_one_line_and_exit_2(gqe, files: Path, monkeypatch, command, make, named) -> None:
    monkeypatch.chdir(files)
    ran = gqe(command, files / "database.npy", make(files))
    assert ran.status == 2
    assert named in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert not (files / "expanded.npy").exists()


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int32, np.uint8])
def test_other_number_types_are_converted(gqe, files: Path, kind) -> None:
    rng = np.random.default_rng(1)
    _bad(files, "other.npy", (rng.random((3, 8)) * 100).astype(kind))
    ran = gqe("expand", files / "database.npy", files / "other.npy", "-o", files / "out.npy")
    assert ran.status == 0, ran.err
    result = np.load(files / "out.npy")
    assert result.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(result, axis=1), 1, atol=1e-5)


def test_an_empty_database_leaves_queries_as_they_are(gqe, files: Path, data) -> None:
    _bad(files, "empty.npy", np.zeros((0, 8), np.float32))
    ran = gqe("expand", files / "empty.npy", files / "queries.npy", "-o", files / "out.npy")
    assert ran.status == 0, ran.err
    np.testing.assert_allclose(np.load(files / "out.npy"), data[1], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["expand", "database.npy"], "--augment"),
        (["expand", "database.npy", "queries.npy", "-m", "dba-aqe"], "--augment"),
        (["expand", "database.npy", "queries.npy", "-o", "out.pkl"], "out.pkl"),
        (["search", "database.npy", "queries.npy", "-k", "0"], "k"),
        (["explain", "database.npy", "queries.npy", "--query", "5"], "--query"),
        (["explain", "database.npy", "queries.npy", "--recall", "2"], "recall"),
    ],
)
def test_wrong_settings_are_one_line_and_exit_2(gqe, files: Path, monkeypatch, arguments, named) -> None:
    monkeypatch.chdir(files)
    ran = gqe(*arguments)
    assert ran.status == 2
    assert named in ran.err
    assert len(ran.err.strip().splitlines()) == 1
