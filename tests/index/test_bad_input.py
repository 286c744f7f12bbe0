"""A user's mistakes: one clear line, and the index as it was."""

from __future__ import annotations

import hashlib
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from gqe.errors import InputError
from gqe.index import Index, files, verify
from index.worlds import DIM, stacks, vectors


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.build(vectors(30), stacks()["mean"], tmp_path / "index", metadata={"year": range(30)})


def fingerprint(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.rglob("*")
        if file.is_file()
    }


def bad(row: int, value: float) -> np.ndarray:
    table = vectors(5)
    table[row] = value
    return table


YEARS = {"year": range(5)}
CHANGES = {
    "dimension": (
        lambda i: i.add(np.ones((5, DIM + 1)), metadata=YEARS),
        "vectors: dimension 7 does not match",
    ),
    "flat": (lambda i: i.add(np.ones(DIM)), "vectors: expected shape"),
    "nan": (lambda i: i.add(bad(3, np.nan), metadata=YEARS), "vectors: row 3 contains NaN"),
    "zero": (lambda i: i.add(bad(2, 0), metadata=YEARS), "vectors: row 2 is all zeros"),
    "ids twice": (lambda i: i.add(vectors(5), ids=[50, 51, 50, 52, 53], metadata=YEARS), "50 is given twice"),
    "ids there": (
        lambda i: i.add(vectors(5), ids=[50, 3, 51, 52, 53], metadata=YEARS),
        r"3 \(row 1\) is in the",
    ),
    "too few ids": (lambda i: i.add(vectors(5), ids=[50], metadata=YEARS), "ids: 1 ids for 5 vectors"),
    "texts": (lambda i: i.add(vectors(5), ids=list("abcde"), metadata=YEARS), "by whole numbers"),
    "negative": (lambda i: i.add(vectors(5), ids=[-1, 50, 51, 52, 53], metadata=YEARS), "between 0 and"),
    "floats": (
        lambda i: i.add(vectors(5), ids=[1.5, 2, 3, 4, 5], metadata=YEARS),
        "ids: expected whole numbers",
    ),
    "no metadata": (lambda i: i.add(vectors(5)), "metadata: this index has the columns year"),
    "few metadata": (lambda i: i.add(vectors(5), metadata={"year": [1]}), "metadata: 1 rows for 5 vectors"),
    "columns": (lambda i: i.add(vectors(5), metadata={"age": range(5)}), "metadata: columns age"),
    "types": (lambda i: i.add(vectors(5), metadata={"year": list("abcde")}), "metadata: values do not fit"),
    "unknown": (lambda i: i.remove([3, 99, 100]), r"ids: no item 99 in the index \(and 1 more\)"),
    "remove twice": (lambda i: i.remove([3, 3]), "ids: 3 is given twice"),
    "remove text": (lambda i: i.remove(["a"]), "by whole numbers"),
    "update unknown": (lambda i: i.update(vectors(1), [99], metadata={"year": [1]}), "no item 99"),
    "update few": (lambda i: i.update(vectors(2), [4], metadata={"year": [1]}), "ids: 1 ids for 2 vectors"),
}


@pytest.mark.parametrize("what", sorted(CHANGES))
def test_a_wrong_change_is_one_line_and_changes_nothing(index: Index, what: str) -> None:
    work, message = CHANGES[what]
    before = fingerprint(index.path)
    with pytest.raises(InputError, match=message) as caught:
        work(index)
    assert "\n" not in str(caught.value)
    assert fingerprint(index.path) == before
    assert index.version == 1


SEARCHES = {
    "k": (
        lambda i: i.search(vectors(1), 1_000_001),
        "k: at most 1,000,000 results can be asked for, got 1,000,001",
    ),
    "no k": (lambda i: i.search(vectors(1), 0), "k: expected"),
    "wide": (lambda i: i.search(np.ones((1, 9)), 3), "queries: dimension 9"),
    "column": (lambda i: i.search(vectors(1), 3, filter={"colour": 1}), "filter: no field 'colour'"),
    "value": (lambda i: i.search(vectors(1), 3, filter={"year": "x"}), "filter: 'x' does not fit"),
    "function": (lambda i: i.search(vectors(1), 3, filter=lambda rows: [True]), "must give 30 truth values"),
    "bound": (
        lambda i: i.search(vectors(1), 3, filter={"year": {"lt": "x"}}),
        "filter: {'lt': 'x'} does not",
    ),
    "no bound": (
        lambda i: i.search(vectors(1), 3, filter={"year": {}}),
        "filter: year: bounds can be gt, gte",
    ),
    "bounds": (
        lambda i: i.search(vectors(1), 3, filter={"year": {"near": 1}}),
        "filter: year: bounds can be",
    ),
    "nested": (lambda i: i.search(vectors(1), 3, filter={"year": [{"gte": 1}]}), "does not fit the column"),
    "large": (lambda i: i.search(vectors(1), 3, filter={"year": 10**40}), "does not fit the column 'year'"),
    "no name": (lambda i: i.search(vectors(1), 3, filter={3: 1}), "filter: expected"),
    "no filter": (lambda i: i.search(vectors(1), 3, filter=3), "filter: expected"),
    "exclude": (lambda i: i.search(vectors(2), 3, exclude=[1]), "exclude: 1 ids for 2 queries"),
    "unknown": (lambda i: i.search(vectors(1), 3, exclude=[77]), "exclude: no item 77"),
    "scalar": (lambda i: i.search(vectors(2), 3, exclude=4), "exclude: expected one id"),
    "top": (lambda i: i.explain(vectors(1), top=0), "top: expected"),
    "large top": (lambda i: i.explain(vectors(1), top=10**9), "top: expected"),
}


@pytest.mark.parametrize("what", sorted(SEARCHES))
def test_a_wrong_search_is_one_line(index: Index, what: str) -> None:
    work, message = SEARCHES[what]
    with pytest.raises(InputError, match=message) as caught:
        work(index)
    assert "\n" not in str(caught.value)


BUILDS = {
    "expander": ({"expander": "nonsense"}, "'nonsense' is unknown"),
    "no expander": ({"expander": 3}, "expander: expected"),
    "re-ranker": ({"expander": "aqe+egt"}, r"an index keeps no re-ranker; .* search with rerank='egt'"),
    "storage": ({"storage": "float8"}, "storage: expected float32, float16, int8"),
    "storages": ({"storage": ["int8"] * 5}, "5 types for 2 stored levels"),
    "recall": ({"recall": 1.5}, "recall: expected"),
    "kind": ({"recall": 0.9, "approximate_by": "tree"}, "approximate: expected"),
    "ids": ({"ids": ["a"] * 30}, "'a' is given twice"),
    "mixed ids": ({"ids": ["a", *range(29)]}, "ids: expected whole numbers or texts, got a mixture"),
    "surrogate": ({"ids": ["\ud800", *map(str, range(29))]}, "UTF-8"),
    "metadata": ({"metadata": {"a": [1]}}, "metadata: 1 rows for 30"),
    "metadata file": ({"metadata": "absent.parquet"}, "absent.parquet: no such file"),
    "nan": ({"vectors": np.full((30, 3), np.nan)}, "row 0 contains NaN"),
    "shape": ({"vectors": np.ones(3)}, "vectors: expected shape"),
    "words": ({"vectors": np.array([["a"]])}, "vectors: values of type"),
}


@pytest.mark.parametrize("what", sorted(BUILDS))
def test_a_wrong_build_is_one_line(tmp_path: Path, what: str) -> None:
    options, message = BUILDS[what]
    options = {"vectors": vectors(30), "expander": stacks()["mean"]} | options
    with pytest.raises(InputError, match=message) as caught:
        Index.build(options.pop("vectors"), options.pop("expander"), tmp_path / "index", **options)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError):
        Index.open(tmp_path / "index")


def test_a_row_far_into_the_vectors_is_named(tmp_path: Path) -> None:
    table = np.tile(vectors(1000), (10, 1))
    table[9876] = np.inf
    with pytest.raises(InputError, match="row 9876 contains an infinite value"):
        Index.build(table, "aqe", tmp_path / "index")


def test_places_where_no_index_can_be(tmp_path: Path, index: Index) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("x")
    for place, message in [
        (tmp_path / "file", "is a file"),
        (tmp_path / "full", r"holds other files \(notes.txt\)"),
        (tmp_path / "absent" / "index", "cannot be made"),
        (index.path, "already holds an index"),
        ("a\0b", "no name of a folder"),
    ]:
        with pytest.raises(InputError, match=message):
            Index.build(vectors(5), "aqe", place)
    for place, message in [
        (tmp_path / "absent", "no such index"),
        (tmp_path / "full", "holds no index"),
        (tmp_path / "file", "no such index"),
        (3, "path: expected the name of a folder"),
    ]:
        with pytest.raises(InputError, match=message):
            Index.open(place)
    assert (tmp_path / "full" / "notes.txt").read_text() == "x"


def test_a_second_writer_is_refused(index: Index) -> None:
    second = Index.open(index.path)
    before = fingerprint(index.path)
    with files.writer_lock(index.path):
        for work in (
            lambda: second.remove([1]),
            lambda: second.add(vectors(1), metadata={"year": [1]}),
            second.compact,
            lambda: Index.build(vectors(3), "aqe", index.path),
        ):
            with pytest.raises(InputError, match="another process or object is changing this index"):
                work()
        assert len(Index.open(index.path)) == 30  # readers do not mind
    assert fingerprint(index.path) == before
    second.remove([1])


def in_a_child(work) -> str:
    """Run something that changes the process itself; what it returned."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)  # a fork has none of its parent's threads to wait for
            os.write(write, str(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


def refusal(work) -> str:
    try:
        work()
    except InputError as error:
        return str(error)
    return "nothing was refused"


def grown(index: Index) -> None:
    index.add(vectors(3000, seed=4), metadata={"year": range(3000)}, refresh=True)


@pytest.mark.parametrize("limit", [200, 3000, 30_000, 100_000, 200_000])
def test_a_full_disk_changes_nothing(index: Index, limit: int) -> None:
    before = fingerprint(index.path)

    def work() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return refusal(lambda: grown(index))

    assert "no space left" in in_a_child(work)
    assert fingerprint(index.path) == before
    assert verify(index.path) == []
    grown(index)
    assert len(index) == 3030


def test_a_build_on_a_full_disk_goes_on_later(tmp_path: Path) -> None:
    def work() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        return refusal(lambda: Index.build(vectors(2000), "aqe", tmp_path / "index", device="cpu"))

    assert "no space left" in in_a_child(work)
    with pytest.raises(InputError, match="interrupted"):
        Index.open(tmp_path / "index")
    assert len(Index.build(vectors(2000), "aqe", tmp_path / "index")) == 2000


def test_a_read_only_directory_is_read_and_not_written(tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs another user to become")
    base = tmp_path_factory.mktemp("readable")
    index = Index.build(vectors(20), "aqe", base / "index")
    for folder in (base, *base.parents):
        if folder.stat().st_uid == 0 and folder.name:
            folder.chmod(folder.stat().st_mode | 0o055)
    before = fingerprint(index.path)

    def work() -> str:
        os.setgid(65534)
        os.setuid(65534)
        found = Index.open(index.path, device="cpu")
        answer = [str(found.search(vectors(2, seed=1), 3).ids.shape)]
        answer += [refusal(lambda: found.remove([1])), refusal(lambda: found.add(vectors(1)))]
        return "; ".join(
            [*answer, refusal(lambda: Index.build(vectors(3), "aqe", base / "other", device="cpu"))]
        )

    said = in_a_child(work)
    assert said.startswith("(2, 3)")
    assert said.count("Permission denied") == 3, said
    assert fingerprint(index.path) == before
