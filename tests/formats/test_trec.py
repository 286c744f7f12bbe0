"""TREC qrels and runs, BEIR folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gqe.errors import InputError
from gqe.formats import read_qrels, read_run, write_run
from gqe.formats.trec import as_run, beir_names, read_names
from gqe.results import SearchResult


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def beir(folder: Path) -> Path:
    """A BEIR folder of three texts and two queries."""
    write(
        folder / "corpus.jsonl", "".join(json.dumps({"_id": f"d{i}", "text": "x"}) + "\n" for i in range(3))
    )
    write(folder / "queries.jsonl", "".join(json.dumps({"_id": name}) + "\n" for name in ("q2", "q1")))
    write(folder / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\nq1\td0\t1\nq1\td2\t2\nq2\td1\t0\n")
    return folder


def test_qrels_of_trec_and_beir(tmp_path):
    wanted = {"q1": {"d0": 1, "d2": 2}, "q2": {"d1": 0}}
    assert read_qrels(write(tmp_path / "a.qrels", "q1 0 d0 1\nq1 0 d2 2\n\nq2\t0\td1\t0\n")) == wanted
    folder = beir(tmp_path / "beir")
    assert read_qrels(folder) == read_qrels(folder / "qrels" / "test.tsv") == wanted
    for place in (folder, folder / "qrels" / "test.tsv"):
        assert beir_names(place) == (["d0", "d1", "d2"], ["q2", "q1"])
    assert beir_names(tmp_path / "a.qrels") is None
    assert read_names(write(tmp_path / "names.txt", "a\n\nb\n")) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 d1\n", "line 1 has 2 fields; expected 'query 0 item grade'"),
        ("q1 0 d1 1\nq1 0 d2 good\n", "line 2: grade 'good' is no whole number"),
        ("q1 0 d1 1\nq1 0 d1 2\n", "line 2 judges 'd1' of query 'q1' again"),
        ("q1 0 d1 99999999999999999999\n", "beyond a million"),
        ("query-id\tcorpus-id\tscore\n", "holds no judgements"),
        ("", "is empty"),
    ],
)
def test_broken_qrels_are_refused_by_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_qrels(write(tmp_path / "a.qrels", text))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="this one has not; name the file"):
        read_qrels(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not a readable text file"):
        read_qrels(tmp_path / "binary")
    with pytest.raises(InputError, match="is not a readable file of ids"):
        read_names(write(tmp_path / "a.jsonl", "{}\n"))


def test_a_run_comes_back(tmp_path):
    scores = np.array([[0.9, 0.1234567, -np.inf], [1.0, 0.5, 0.5]], dtype=np.float32)
    found = SearchResult(scores, np.array([[7, 0, -1], [2, 1, 0]]))
    path = tmp_path / "a.run"
    assert write_run(path, found, query_ids=["q1", "q2"], tag="mine") == 5
    assert path.read_text().splitlines()[0] == "q1 Q0 7 1 0.899999976 mine"
    run = read_run(path)
    assert {query: list(items) for query, items in run.items()} == {"q1": ["7", "0"], "q2": ["2", "1", "0"]}
    assert np.float32(run["q1"]["0"]) == scores[0, 1]  # nothing is lost
    assert as_run(run)["q2"] == ["2", "1", "0"]
    names = SearchResult(scores[:1], np.array([["a", "b", None]], dtype=object))
    assert write_run(path, names) == 2
    assert read_run(path)["0"].keys() == {"a", "b"}
    write_run(path, found, database_ids=[f"d{i}" for i in range(8)])
    assert list(read_run(path)["0"]) == ["d7", "d0"]


def test_what_cannot_be_a_run_is_refused(tmp_path):
    one = SearchResult(np.ones((1, 1)), np.array([["a b"]], dtype=object))
    with pytest.raises(InputError, match="run: 'a b' cannot stand in a TREC file"):
        write_run(tmp_path / "a.run", one)
    assert not (tmp_path / "a.run").exists()
    with pytest.raises(InputError, match="query_ids: 2 ids for 1 queries"):
        write_run(tmp_path / "a.run", one, query_ids=["q", "r"])
    with pytest.raises(InputError, match="results of a table of queries"):
        write_run(tmp_path / "a.run", SearchResult(np.ones(1), np.ones(1)))
    for text, message in (
        ("q Q0 d 1 0.5\n", "line 1 has 5 fields"),
        ("q Q0 d 1 nan tag\n", "score 'nan' is no number"),
        ("q Q0 d 1 1 t\nq Q0 d 2 1 t\n", "line 2 names 'd' of query 'q' again"),
        ("\n", "holds no results"),
    ):
        with pytest.raises(InputError, match=message):
            read_run(write(tmp_path / "a.run", text))
