"""Every file truncated, lengthened, flipped or missing: caught, and named."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from gqe.errors import DamagedError, InputError
from gqe.index import Index, approximate, changing, drafts, manifest, verify
from index.test_bad_input import in_a_child
from index.worlds import stacks, unit, vectors


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with every kind of file there is."""
    path = tmp_path_factory.mktemp("damage") / "index"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(approximate, "SMALLEST", 100)
        table = unit(np.random.default_rng(0).normal(size=(400, 6)))
        names = [f"n{i}" for i in range(400)]
        index = Index.build(
            table, stacks()["affinity"], path, ids=names, metadata={"i": range(400)}, recall=0.9
        )
        index.remove(names[5:9])
        index.add(vectors(6), ids=[f"m{i}" for i in range(6)], metadata={"i": range(6)})
    return path


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "copy")
    return tmp_path / "copy"


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name != "lock")


def use(path: Path) -> None:
    """Open and read everything."""
    index = Index.open(path)
    index.search(vectors(2, seed=1), 3, filter={"i": 3})


def test_there_is_a_file_of_every_kind(original: Path) -> None:
    kinds = {file.name.split(".")[0] for file in files_of(original)}
    expected = "manifest vectors graph ids id-text level-1 stale-level-1 removed metadata search config model"
    assert kinds >= set(expected.split())
    assert verify(original) == []


def test_a_flipped_bit_is_found_in_every_file(original: Path, copy: Path) -> None:
    rng = np.random.default_rng(0)
    for file in files_of(copy):
        content = file.read_bytes()
        places = {0, len(content) // 2, len(content) - 1, *rng.integers(len(content), size=5).tolist()}
        for place in sorted(places):
            flipped = bytearray(content)
            flipped[place] ^= 1 << int(rng.integers(8))
            file.write_bytes(flipped)
            problems = verify(copy)
            assert any(file.name in problem for problem in problems), (file.name, place)
            assert all("\n" not in problem for problem in problems)
        file.write_bytes(content)
    assert verify(copy) == []


def test_a_wrong_length_is_found_in_every_file(original: Path, copy: Path) -> None:
    for file in files_of(copy):
        content = file.read_bytes()
        for changed in (b"", content[: len(content) // 2], content[:-1], content + b"\0"):
            file.write_bytes(changed)
            assert any(file.name in problem for problem in verify(copy)), (file.name, len(changed))
            if file.suffix == ".npy":  # found even without looking for it
                with pytest.raises(InputError, match=file.name):
                    Index.open(copy)
        file.write_bytes(content)
    assert verify(copy) == []


def test_a_missing_file_is_named(original: Path, copy: Path) -> None:
    for file in files_of(copy):
        content = file.read_bytes()
        file.unlink()
        assert any(file.name in problem or "no index" in problem for problem in verify(copy)), file.name
        file.write_bytes(content)


def test_a_damaged_faiss_index_is_not_searched(copy: Path) -> None:
    """It would run without end or name rows that are not there."""
    file = next(copy.glob("search.*"))
    content = file.read_bytes()
    for place in range(0, len(content), len(content) // 20):
        file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(DamagedError, match="search index: damaged; run `gqe index verify`"):
            use(copy)
        Index.open(copy).search(vectors(2, seed=1), 3, exact=True)
    Index.open(copy).compact()
    use(copy)


def test_a_faiss_index_of_something_else_is_refused() -> None:
    faiss = pytest.importorskip("faiss")
    table = vectors(30)
    index = faiss.IndexIDMap(faiss.IndexFlatIP(table.shape[1]))
    index.add_with_ids(table, np.arange(30) + 2**40)
    for rows, dimension in ((30, table.shape[1]), (29, table.shape[1]), (30, table.shape[1] - 1)):
        found = approximate.Approximate(index, "hnsw", rows, 1, 0.9)
        with pytest.raises(DamagedError, match="search index: damaged"):
            found.engine(torch.from_numpy(table[:, :dimension]), None)(torch.from_numpy(table[:2]), 3)


def test_damaged_files_never_raise_anything_but_input_errors(original: Path, copy: Path) -> None:
    rng = np.random.default_rng(1)
    for file in files_of(copy):
        if file.suffix == ".npy":
            continue  # numbers that are wrong look like numbers; `verify` is there for them
        content = file.read_bytes()
        for _ in range(4):
            start = int(rng.integers(len(content)))
            file.write_bytes(content[:start] + rng.bytes(40) + content[start + 40 :])
            try:
                use(copy)
            except InputError as error:
                assert "\n" not in str(error)  # noqa: PT017  # it may pass as well: a card is not read
        file.write_bytes(content)
    use(copy)


def test_an_index_of_a_newer_version_is_refused(copy: Path) -> None:
    content = json.loads((copy / "manifest.json").read_text())
    content["version"] = manifest.VERSION + 1
    (copy / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="version 3, this package reads 2; update gqe"):
        Index.open(copy)


@pytest.mark.parametrize("content", ["", "{}", "[]", "nonsense", '{"format": "gqe-model"}', "[" * 100_000])
def test_a_foreign_manifest_is_refused(copy: Path, content: str) -> None:
    (copy / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"manifest\.json"):
        Index.open(copy)
    assert len(verify(copy)) == 1


def copied_files(path: Path) -> list[str]:
    """Of an index, what `compact` copies or computes from: all but the faiss index."""
    return [name for name in manifest.read_manifest(path).files if not name.startswith("search")]


def test_no_change_makes_damage_look_sound(original: Path, copy: Path) -> None:
    for name in copied_files(copy):
        content = (copy / name).read_bytes()
        flipped = bytearray(content)
        flipped[-1] ^= 1
        (copy / name).write_bytes(flipped)
        with pytest.raises(DamagedError, match=Path(name).name):
            Index.open(copy).compact()
        assert any(name in problem for problem in verify(copy)), name
        (copy / name).write_bytes(content)
    Index.open(copy).compact()
    assert verify(copy) == []


@pytest.mark.parametrize("table", ["vectors", "graph", "level-1", "stale-level-1"])
def test_levels_are_not_computed_from_damaged_files(original: Path, copy: Path, table: str) -> None:
    file = next(copy.glob(f"{table}.*.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedError, match=file.name):
        Index.open(copy).refresh()
    assert any(file.name in problem for problem in verify(copy))


def test_joined_segments_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MOST_SEGMENTS", 2)
    monkeypatch.setattr(changing, "MOST_SEGMENTS", 2)
    index = Index.build(vectors(20), stacks()["mean"], tmp_path / "index", metadata={"i": range(20)})
    index.add(vectors(1, seed=1), metadata={"i": [1]})
    later = sorted(tmp_path.glob("index/*.00000002.*"))
    assert {file.name.split(".")[0] for file in later} >= {"vectors", "ids", "graph", "metadata"}
    for file in later:
        content = file.read_bytes()
        flipped = bytearray(content)
        flipped[len(flipped) // 2 if file.suffix == ".parquet" else -1] ^= 1
        file.write_bytes(flipped)
        with pytest.raises(InputError, match=f"{file.name}|metadata"):
            index.add(vectors(1, seed=7), metadata={"i": [7]})
        assert any(file.name in problem for problem in verify(index.path))
        file.write_bytes(content)
    index.add(vectors(1, seed=7), metadata={"i": [7]})
    assert verify(index.path) == []


def test_a_removed_item_does_not_come_back_by_damage(original: Path, copy: Path) -> None:
    file = next(copy.glob("removed.*.npy"))
    content = bytearray(file.read_bytes())
    content[-8] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedError, match="removed"):
        Index.open(copy).remove(["n50"])


def noticed(index: Index, file: Path) -> str:
    """In a child: cut a file that is mapped, and read it in every way."""
    torch.set_num_threads(1)
    query = np.ones((1, 6), np.float32)
    index.search(query, 3)
    os.truncate(file, 100)
    works = (
        lambda: index.search(query, 3),
        lambda: index.expand(query),
        lambda: index.explain(query),
        lambda: index.vectors(["n1"]),
        lambda: index.neighbors(["n1"]),
        lambda: index.ids,
        lambda: "n1" in index,
        index.stats,
        lambda: index.remove(["n1"]),
        index.compact,
    )
    for work in works:
        with pytest.raises(DamagedError, match=file.name):
            work()
    return "all noticed"


@pytest.mark.parametrize("table", ["vectors", "graph"])
def test_a_file_that_is_cut_off_does_not_end_the_process(copy: Path, table: str) -> None:
    file = max(copy.glob(f"{table}.*.npy"), key=lambda path: path.stat().st_size)
    index = Index.open(copy, device="cpu")
    assert in_a_child(lambda: noticed(index, file)) == "all noticed"
