"""gqe index and gqe search over an index."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import gqe as package


@pytest.fixture
def built(gqe, files: Path) -> Path:
    ran = gqe("index", "build", files / "database.npy", files / "index", "--expander", "aqe-g:k=3", "--json")
    assert ran.status == 0, ran.err
    about = json.loads(ran.out)
    assert (about["items"], about["dimension"], about["version"]) == (40, 8, 1)
    return files / "index"


@pytest.mark.parametrize("method", ["aqe", "none"])
def test_an_index_has_its_own_method(gqe, files: Path, built: Path, method: str) -> None:
    ran = gqe("search", built, files / "queries.npy", "-m", method)
    assert (ran.status, ran.out) == (2, "")
    assert "an index has its own method, here aqe-g; leave -m out" in ran.err


def test_search_finds_what_the_library_finds(gqe, files: Path, built: Path) -> None:
    ran = gqe("search", built, files / "queries.npy", "-k", "4", "--json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)["results"]
    database, queries = np.load(files / "database.npy"), np.load(files / "queries.npy")
    expected = package.expander("aqe-g", k=3).fit(database).search(queries, 4)
    assert [result["ids"] for result in found] == expected.ids.tolist()
    np.testing.assert_allclose([result["scores"] for result in found], expected.scores, atol=1e-5)
    plain = json.loads(gqe("search", built, files / "queries.npy", "-k", "4", "--plain", "--json").out)
    nearest = package.knn(database, 4, queries=queries).ids.tolist()
    assert [result["ids"] for result in plain["results"]] == nearest
    assert "id:score" in gqe("search", built, files / "queries.npy").out


def test_add_update_remove_compact(gqe, files: Path, built: Path) -> None:
    np.save(files / "more.npy", np.load(files / "queries.npy"))
    ran = gqe("index", "add", built, files / "more.npy")
    assert ran.status == 0, ran.err
    assert "45 items, version 2" in ran.out
    (files / "gone.txt").write_text("3\n41\n\n")
    ran = gqe("index", "remove", built, "--ids", files / "gone.txt", "--json")
    assert json.loads(ran.out)["items"] == 43
    np.save(files / "ids.npy", np.array([7, 8, 9, 10, 11]))
    ran = gqe("index", "add", built, files / "more.npy", "--update", "--ids", files / "ids.npy", "--refresh")
    assert ran.status == 0, ran.err
    assert package.Index.open(built).ids.tolist()[-5:] == [7, 8, 9, 10, 11]
    assert "43 items" in gqe("index", "compact", built).out
    found = json.loads(gqe("search", built, files / "queries.npy", "-k", "2", "--plain", "--json").out)
    # Each query stands in the index twice: as the item that was added, and as the one that was updated.
    assert sorted(found["results"][0]["ids"]) == [7, 40]
    assert gqe("index", "verify", built).status == 0


def test_text_ids_and_metadata(gqe, files: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    (files / "names.txt").write_text("".join(f"0{i}\n" if i else "zero\n" for i in range(40)))
    pq.write_table(pa.table({"year": list(range(40))}), files / "years.parquet")
    ran = gqe(
        *(
            "index",
            "build",
            files / "database.npy",
            files / "texts",
            "-m",
            "aqe",
            "--ids",
            files / "names.txt",
        ),
        *("--metadata", files / "years.parquet", "--storage", "float16", "--dba"),
    )
    assert ran.status == 0, ran.err
    index = package.Index.open(files / "texts")
    assert index.ids.tolist()[:3] == ["zero", "01", "02"]
    assert index.search(np.load(files / "queries.npy"), 1, filter={"year": 7}).ids.tolist() == [["07"]] * 5
    late = ("search", files / "texts", files / "queries.npy", "--json", "--filter", '{"year": {"gte": 37}}')
    found = json.loads(gqe(*late).out)["results"]
    assert [sorted(result["ids"]) for result in found] == [["037", "038", "039"]] * 5
    for wrong, message in (
        ("{", "--filter: not readable as JSON"),
        ('{"age": 1}', "filter: no field 'age'"),
    ):
        ran = gqe(*late[:-1], wrong)
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert message in ran.err
    (files / "gone.txt").write_text("07\n")
    assert gqe("index", "remove", files / "texts", "--ids", files / "gone.txt").status == 0
    assert "07" not in package.Index.open(files / "texts")


def test_verify_exits_with_1_and_names_the_file(gqe, built: Path) -> None:
    ran = gqe("index", "verify", built)
    assert (ran.status, ran.out.strip()) == (0, f"{built}: sound")
    file = next(built.glob("graph.*"))
    content = bytearray(file.read_bytes())
    content[300] ^= 4
    file.write_bytes(content)
    ran = gqe("index", "verify", built)
    assert ran.status == 1
    assert str(file) in ran.out
    told = json.loads(gqe("index", "verify", built, "--json").out)
    assert not told["sound"]
    assert gqe("index", "verify", built.with_name("absent")).status == 1


def test_stats(gqe, built: Path) -> None:
    about = json.loads(gqe("index", "stats", built, "--json").out)
    assert (about["items"], about["k"], about["levels"], about["stale"]) == (40, 3, 2, {"level-1": 0.0})
    assert "dimension" in gqe("index", "stats", built).out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["index", "build", "database.npy", "index"], "already holds an index"),
        (["index", "build", "absent.npy", "other"], "absent.npy"),
        (["index", "build", "database.npy", "other", "--storage", "float8"], "storage"),
        (["index", "build", "database.npy", "other", "--expander", "nonsense"], "nonsense"),
        (["index", "build", "", "other"], "VECTORS: is empty"),
        (["index", "build", "database.npy", ""], "no name of a folder"),
        (["index", "build", "database.npy", "x" * 300], "choose a shorter name"),
        (["index", "build", "database.npy", "other", "--ids", "digits.txt"], "larger than 2**63 - 1"),
        (["index", "remove", "index", "--ids", "digits.txt"], "larger than 2**63 - 1"),
        (["index", "compact", "damaged"], "damaged, its checksum does not match"),
        (["index", "add", "index", "wide.npy"], "dimension 9"),
        (["index", "add", "index", "queries.npy", "--ids", "database.npy"], "ids"),
        (["index", "add", "index", "queries.npy", "--update"], "--ids"),
        (["index", "add", "absent", "queries.npy"], "no such index"),
        (["index", "remove", "index", "--ids", "unknown.txt"], "no item 99"),
        (["index", "remove", "index", "--ids", "queries.npy"], "ids"),
        (["index", "stats", "database.npy"], "no such index"),
        (["search", "index", "queries.npy", "-k", "1000001"], "k: at most 1,000,000"),
        (["search", "index", "queries.npy", "-m", "alpha"], "its own method"),
        (["search", "index", "wide.npy"], "dimension 9"),
        (["search", "index", "queries.npy", "--recall", "0.9"], "--recall: is for a file of vectors"),
        (["search", "index", "queries.npy", "--database-key", "x"], "--database-key: is for a file"),
        (["search", "index", "queries.npy", "--dba"], "dba: this index was built without augmentation"),
        (["search", "index", "queries.npy", "--plain", "--rounds", "2"], "--plain"),
        (["expand", "index", "--augment"], "--augment: is for a file of vectors"),
        (["search", ".", "queries.npy"], "holds no index"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(gqe, files: Path, built, monkeypatch, arguments, named) -> None:
    monkeypatch.chdir(files)
    np.save(files / "wide.npy", np.ones((2, 9), np.float32))
    (files / "unknown.txt").write_text("99\n")
    (files / "digits.txt").write_text("".join(f"{i:05000}\n" for i in range(39)) + "9" * 5000 + "\n")
    damaged = shutil.copytree(built, files / "damaged") / "vectors.00000001.npy"
    damaged.write_bytes(damaged.read_bytes()[:-80] + bytes(80))
    before = {file: file.read_bytes() for file in built.rglob("*") if file.is_file()}
    ran = gqe(*arguments)
    assert ran.status == 2
    assert named in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert {file: file.read_bytes() for file in built.rglob("*") if file.is_file()} == before


def test_a_folder_of_files_is_one_database(gqe, files: Path) -> None:
    parts, database = files / "parts", np.load(files / "database.npy")
    parts.mkdir()
    np.save(parts / "1.npy", database[:15])
    np.savez(parts / "2.npz", vectors=database[15:])
    ran = gqe("index", "build", parts, files / "index", "-m", "aqe-g:k=3", "--json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["items"] == 40
    found = package.Index.open(files / "index").search(database[:5], 3, expand=False).ids
    np.testing.assert_array_equal(found, package.knn(database, 3, queries=database[:5]).ids)


def test_the_folder_one_is_in_is_a_source(gqe, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "parts").mkdir()
    np.save(files / "parts" / "1.npy", np.load(files / "database.npy"))
    monkeypatch.chdir(files / "parts")
    ran = gqe("index", "build", ".", "../index", "-m", "aqe-g:k=3", "--json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["items"] == 40


def test_what_only_a_cluster_can_do(gqe, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, index = files / "database.npy", files / "index"
    ran = gqe("index", "build", database, index, "--shards", "2")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "--shards: only a build with --cluster" in ran.err
    ran = gqe("index", "build", database, "s3://bucket/index")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "only a build with --cluster writes to an address" in ran.err
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = gqe("index", "build", database, index, "--cluster", "auto")
    assert (ran.status, ran.err.strip()) == (2, "gqe: --cluster needs Ray: pip install 'gqe[cluster]'")
    assert not index.exists()
