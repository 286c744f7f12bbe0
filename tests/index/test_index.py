"""Build, open, search, expand, explain."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

import gqe
from gqe.index import Index, approximate, finding, verify
from gqe.neighbors import cells
from gqe.query_options import QueryOptions
from index.worlds import DIM, assert_equals_rebuild, stacks, unit, vectors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.mark.parametrize("name", sorted(stacks()))
@pytest.mark.parametrize("dba", [False, True])
def test_the_index_gives_what_the_expander_gives(folder: Path, name: str, dba: bool) -> None:
    table, queries = vectors(60), vectors(5, seed=1)
    index = Index.build(table, stacks()[name], folder, dba=dba)
    expander = stacks()[name].fit(table)
    found, expected = index.search(queries, 7), expander.search(queries, 7, dba=dba)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(index.expand(queries), expander.expand(queries), atol=1e-5)
    plain = index.search(queries, 7, expand=False)
    if not dba:
        np.testing.assert_array_equal(plain.ids, gqe.knn(table, 7, queries=queries).ids)
    assert_equals_rebuild(Index.open(folder), list(range(60)), table)


@pytest.mark.parametrize("dba", [False, True])
def test_a_contrast_is_stored_and_kept_through_changes(folder: Path, dba: bool) -> None:
    table, queries = vectors(150), vectors(5, seed=1)

    def made(contrast: float) -> gqe.Expander:
        return gqe.Expander(stacks()["mean"].stack, query_options=QueryOptions(contrast))

    index = Index.build(table, made(0.4), folder, dba=dba)
    expander = made(0.4).fit(table)
    found, expected = Index.open(folder).search(queries, 7), expander.search(queries, 7, dba=dba)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(index.expand(queries), expander.expand(queries), atol=1e-5)
    assert np.abs(index.expand(queries) - made(0).fit(table).expand(queries)).max() > 0.01
    told, weights = index.explain(queries, top=150), expander.weights(queries).toarray()
    for i in range(5):
        named = told.ids[i][told.ids[i] >= 0]
        np.testing.assert_allclose(told.weights[i, : len(named)], weights[i, named], atol=1e-5)
    index.remove(list(range(10)))
    assert_equals_rebuild(Index.open(folder), list(range(10, 150)), table[10:])


def test_one_query_is_answered_like_many(folder: Path) -> None:
    index = Index.build(vectors(40), "aqe-g", folder)
    queries = vectors(3, seed=1)
    together = index.search(queries, 5)
    for i in range(3):
        alone = index.search(queries[i], 5)
        np.testing.assert_array_equal(alone.ids, together.ids[i])
        np.testing.assert_array_equal(alone.scores, together.scores[i])
    assert index.expand(queries[0]).shape == (DIM,)
    as_torch = index.search(torch.from_numpy(queries), 5)
    assert isinstance(as_torch.ids, torch.Tensor)
    np.testing.assert_array_equal(as_torch.ids.numpy(), together.ids)


def test_ids_of_both_kinds(folder: Path, tmp_path: Path) -> None:
    table, queries = vectors(20, copies=3), vectors(4, seed=1)
    rows = Index.build(table, "aqe", folder).search(queries, 6).ids
    numbers = np.arange(20) * 1000 + 2**40
    by_number = Index.build(table, "aqe", tmp_path / "numbers", ids=numbers)
    np.testing.assert_array_equal(by_number.search(queries, 6).ids, numbers[rows])
    texts = [f"häuschen/{i}.jpg" if i % 2 else "" + "x" * i for i in range(20)]
    by_text = Index.build(table, "aqe", tmp_path / "texts", ids=texts)
    assert by_text.search(queries, 6).ids.tolist() == [[texts[i] for i in row] for row in rows]
    assert "häuschen/3.jpg" in by_text
    assert "häuschen/2.jpg" not in by_text
    assert 3 not in by_text
    assert numbers[3] in by_number
    assert -1 not in by_number


def test_text_ids_follow_changes(folder: Path) -> None:
    table = vectors(12)
    names = [f"item {i}" for i in range(12)]
    index = Index.build(table[:8], "aqe-g", folder, ids=names[:8])
    index.add(table[8:10], ids=names[8:10])
    index.remove(["item 3", "item 8"])
    index.add(table[[3]], ids=["item 3"])  # an id may come back
    order = [0, 1, 2, 4, 5, 6, 7, 9, 3]
    assert_equals_rebuild(index, [names[i] for i in order], table[order])
    index.compact()
    assert_equals_rebuild(Index.open(folder), [names[i] for i in order], table[order])


def test_numbers_go_on_and_are_not_given_twice(folder: Path) -> None:
    index = Index.build(vectors(3), "aqe", folder, ids=[10, 30, 20])
    index.add(vectors(2, seed=1))
    index.remove([32])
    index.add(vectors(1, seed=2))
    assert index.ids.tolist() == [10, 30, 20, 31, 33]
    index.compact()
    index.add(vectors(1, seed=3))
    assert index.ids.tolist() == [10, 30, 20, 31, 33, 34]


def test_an_empty_index_grows(folder: Path) -> None:
    index = Index.build(np.empty((0, DIM), np.float32), stacks()["affinity"], folder)
    assert len(index) == 0
    np.testing.assert_allclose(index.expand(vectors(2)), vectors(2), atol=1e-6)
    table = np.empty((0, DIM), np.float32)
    for size in (1, 1, 3, 20, 30):
        new = vectors(size, seed=size)
        index.add(new)
        table = np.concatenate([table, new])
        assert_equals_rebuild(index, list(range(len(table))), table)
    background = index._snapshot.manifest.backgrounds["level"]
    fresh = Index.build(table, stacks()["affinity"], folder.with_name("fresh"))
    # It was measured anew when the index had doubled: at 55 items, the last time.
    np.testing.assert_allclose(background, fresh._snapshot.manifest.backgrounds["level"], atol=1e-5)
    index.remove(list(range(55)))
    assert len(index) == 0
    index.compact()
    assert verify(folder) == []


def test_excluded_items_are_neither_heard_nor_found(folder: Path) -> None:
    table = vectors(30, copies=4)
    index = Index.build(table, "aqe-g", folder, ids=[f"i{i}" for i in range(30)])
    expander = gqe.expander("aqe-g").fit(table)
    exclude = [4, 7, -1]
    expected = expander.search(table[[4, 7, 9]], 5, exclude=exclude)
    found = index.search(table[[4, 7, 9]], 5, exclude=["i4", "i7", None])
    assert found.ids.tolist() == [[f"i{i}" for i in row] for row in expected.ids]
    assert index.search(table[4], 5, exclude="i4").ids.tolist() == found.ids[0].tolist()
    np.testing.assert_allclose(
        index.expand(table[[4]], exclude=["i4"]), expander.expand(table[[4]], exclude=[4]), atol=1e-6
    )


@pytest.mark.parametrize("copied", [True, False])
def test_filters_restrict_what_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch, copied: bool) -> None:
    if not copied:
        monkeypatch.setattr(finding, "_FEW", -1.0)
    pc = pytest.importorskip("pyarrow.compute")
    table, queries = vectors(50, copies=5), vectors(4, seed=1)
    colour = np.array(["red", "green", "blue"])[np.arange(50) % 3]
    index = Index.build(
        table, "aqe-g", folder, metadata={"colour": colour, "year": 1990 + np.arange(50) // 10}
    )
    index.remove([6, 9])
    expanded = index.expand(queries)

    def best(allowed: np.ndarray, k: int) -> list[list[int]]:
        rows = np.flatnonzero(allowed & ~np.isin(np.arange(50), [6, 9]))
        return [[int(rows[i]) for i in row] for row in gqe.knn(table[rows], k, queries=expanded).ids]

    red = index.search(queries, 3, filter={"colour": "red"}).ids.tolist()
    assert red == best(colour == "red", 3)
    both = index.search(queries, 2, filter={"colour": ["red", "blue"], "year": 1992}).ids.tolist()
    year = 1990 + np.arange(50) // 10
    assert both == best((colour != "green") & (year == 1992), 2)
    late = index.search(queries, 3, filter=lambda rows: pc.greater(rows["year"], 1992)).ids.tolist()
    assert late == best(year > 1992, 3)
    few = index.search(queries, 20, filter={"year": 1990})
    assert ((few.ids >= 0).sum(axis=1) == 8).all()
    assert np.isneginf(few.scores[few.ids < 0]).all()
    assert (index.search(queries, 2, filter={"year": []}).ids == -1).all()
    index.add(vectors(2, seed=5), metadata={"colour": ["red", "violet"], "year": [1990, 1990]})
    assert index.search(queries, 1, filter={"colour": "violet"}).ids.tolist() == [[51]] * 4
    index.compact()
    assert index.search(queries, 1, filter={"colour": "violet"}).ids.tolist() == [[51]] * 4


def test_explain_names_the_heaviest(folder: Path) -> None:
    table, queries = vectors(30), vectors(2, seed=1)
    index = Index.build(table, stacks()["mean"], folder, ids=np.arange(30) + 100)
    told = index.explain(queries, top=4)
    weights = stacks()["mean"].fit(table).weights(queries).toarray()
    np.testing.assert_allclose(told.weights, -np.sort(-weights, axis=1)[:, :4], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(weights, told.ids - 100, axis=1), told.weights, atol=1e-5)
    assert told.own.tolist() == [1, 1]
    many = index.explain(queries, top=50)
    assert (many.ids[many.weights == 0] == -1).all()


@pytest.mark.parametrize("storage", ["float16", "int8", ["float32", "int8"], ["int8", "float16", "float32"]])
def test_storage_of_each_level(folder: Path, storage) -> None:
    table, queries = vectors(80, copies=6), vectors(5, seed=1)
    index = Index.build(table, stacks()["mean"], folder, storage=storage, dba=True)
    first = storage if isinstance(storage, str) else storage[0]
    seen = index._snapshot.vectors[:].float().numpy()
    np.testing.assert_allclose(seen, table, atol={"float32": 0, "float16": 1e-3, "int8": 1e-2}[first])
    np.testing.assert_allclose(np.linalg.norm(seen, axis=1), 1, atol=2e-3 if first == "float16" else 1e-6)
    expander = stacks()["mean"].fit(seen)
    # The graph is that of what is stored.
    expected = gqe.knn(index._snapshot.vectors[:], index._snapshot.manifest.width)
    np.testing.assert_array_equal(index._snapshot.graph.take(np.arange(80)).ids, expected.ids)
    np.testing.assert_allclose(index.expand(queries), expander.expand(queries), atol=1e-2)
    before = index.search(queries, 5).scores
    np.testing.assert_allclose(before, expander.search(queries, 5, dba=True).scores, atol=2e-2)
    more = vectors(10, seed=4)
    index.add(more)
    whole = Index.build(
        np.concatenate([table, more]), stacks()["mean"], folder.with_name("b"), storage=storage, dba=True
    )
    np.testing.assert_array_equal(
        index._snapshot.graph.take(np.arange(90)).ids[:, :3],
        whole._snapshot.graph.take(np.arange(90)).ids[:, :3],
    )


def test_int8_takes_a_quarter_of_the_space(folder: Path) -> None:
    table = unit(np.random.default_rng(0).normal(size=(200, 256)))
    sizes = {}
    for storage in ("float32", "float16", "int8"):
        index = Index.build(table, "aqe", folder.with_name(storage), storage=storage)
        sizes[storage] = index.stats()["bytes"]["vectors"] - 128
    assert sizes["float16"] / sizes["float32"] == pytest.approx(0.5, abs=0.01)
    assert sizes["int8"] / sizes["float32"] == pytest.approx(0.254, abs=0.01)


@pytest.mark.parametrize("kind", ["ivf", "hnsw", "ivf-pq"])
def test_approximate_search(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(approximate, "SMALLEST", 100)
    rng = np.random.default_rng(0)
    table = unit(rng.normal(size=(150, 16))[rng.integers(150, size=3000)] + 0.5 * rng.normal(size=(3000, 16)))
    queries = unit(table[:200] + 0.05 * rng.normal(size=(200, 16)))
    index = Index.build(table, "aqe-g", folder, recall=0.9, approximate_by=kind)
    assert index.stats()["search"]["kind"] == kind
    assert index.stats()["graph_recall"] >= 0.9
    truth = gqe.knn(table, 10).ids
    lists = index._snapshot.graph.take(np.arange(3000)).ids[:, :10]
    assert np.mean([np.isin(t, f).mean() for t, f in zip(truth, lists, strict=True)]) >= 0.85

    def share(found: Index, **how) -> float:
        exact = found.search(queries, 10, expand=False, exact=True).ids
        return float(
            np.mean(
                [
                    np.isin(t, f).mean()
                    for t, f in zip(exact, found.search(queries, 10, **how).ids, strict=True)
                ]
            )
        )

    assert share(index, expand=False) >= 0.85
    np.testing.assert_array_equal(
        index.search(queries, 10, expand=False, exact=True).ids, gqe.knn(table, 10, queries=queries).ids
    )
    # Removed items are not found, and new ones are although faiss does not know them.
    gone = index.search(queries, 1, expand=False).ids[:, 0]
    index.remove(np.unique(gone))
    assert not np.isin(index.search(queries, 10, expand=False).ids, gone).any()
    index.add(queries[:5], ids=np.arange(5) + 10_000)
    assert index.search(queries[:5], 1, expand=False).ids[:, 0].tolist() == [
        10_000,
        10_001,
        10_002,
        10_003,
        10_004,
    ]
    index.compact()
    assert index._snapshot.manifest.search.rows == len(index)
    assert share(Index.open(folder), expand=False) >= 0.85
    assert verify(folder) == []


def test_approximate_lists_are_found_cell_by_cell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((approximate, "SMALLEST"), (cells, "_SMALLEST")):
        monkeypatch.setattr(module, name, 100)
    monkeypatch.setattr(cells, "_MOST_PAIRS", 2.0)
    rng = np.random.default_rng(0)
    table = unit(rng.normal(size=(150, 16))[rng.integers(150, size=3000)] + 0.5 * rng.normal(size=(3000, 16)))

    class Stopped(Exception):
        pass

    def stop(done: int, rows: int, what: str) -> None:
        if what == "neighbours":
            raise Stopped

    with pytest.raises(Stopped):
        Index.build(table, "aqe-g", folder, recall=0.9, progress=stop)
    index = Index.build(table, "aqe-g", folder, recall=0.9)  # goes on
    lists = index._snapshot.graph.take(np.arange(3000)).ids
    reached = np.mean([np.isin(t, f).mean() for t, f in zip(gqe.knn(table, 10).ids, lists, strict=True)])
    assert reached >= 0.9
    assert 0.9 <= index.stats()["graph_recall"] < 1
    assert not (lists == np.arange(3000)[:, None]).any()
    assert verify(folder) == []
    # A search index of another recall has its own.
    monkeypatch.setattr(cells, "_SMALLEST", 10_000)
    other = Index.build(table, "aqe-g", folder.with_name("other"), recall=0.9)
    assert index.stats()["graph_recall"] != other.stats()["graph_recall"]


def test_opened_files_are_mapped(folder: Path) -> None:
    Index.build(vectors(50), "aqe-g", folder)
    index = Index.open(folder)
    mapped = Path("/proc/self/maps").read_text()
    for table in ("vectors", "graph", "level-1", "ids"):
        assert f"{folder}/{table}.00000001.npy" in mapped
    assert len(index) == 50


def _items_of(path: Path, answer) -> None:
    answer.put(Index.open(path, device="cpu").ids.tolist())


def test_other_processes_see_each_version(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    index = Index.build(vectors(5), "aqe", folder)
    answers = context.Queue()
    for expected in ([0, 1, 2, 3, 4], [0, 1, 3, 4]):
        child = context.Process(target=_items_of, args=(folder, answers))
        child.start()
        assert answers.get(timeout=20) == expected
        child.join()
        if 2 in index:
            index.remove([2])


def test_a_reader_keeps_its_version_until_it_reopens(folder: Path) -> None:
    table, queries = vectors(60), vectors(3, seed=1)
    writer = Index.build(table, stacks()["affinity"], folder)
    reader = Index.open(folder)
    expected = reader.search(queries, 5)
    late_reader = Index.open(folder)  # has not read anything yet
    writer.remove([int(i) for i in expected.ids[:, 0]][:1])
    writer.add(queries)
    writer.compact()
    for one in (reader, late_reader):
        found = one.search(queries, 5)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.scores, expected.scores)
        assert len(one) == 60
    reader.reopen()
    assert reader.version == writer.version
    np.testing.assert_array_equal(reader.search(queries, 5).ids, writer.search(queries, 5).ids)


def test_writers_start_from_the_newest_version(folder: Path) -> None:
    first = Index.build(vectors(5), "aqe", folder)
    second = Index.open(folder)
    first.add(vectors(2, seed=1))
    second.add(vectors(1, seed=2))
    assert second.ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert len(first) == 7


def test_stats_tell_what_is_stale(folder: Path) -> None:
    index = Index.build(vectors(40), stacks()["affinity"], folder)
    assert index.stats()["stale"] == {"level-1": 0.0}
    index.add(vectors(4, seed=1))
    assert index.stats()["stale"]["level-1"] > 0
    index.refresh()
    about = index.stats()
    assert about["stale"] == {"level-1": 0.0}
    assert (about["items"], about["k"], about["levels"]) == (44, 4, 2)
    files = [p for p in folder.rglob("*") if p.is_file() and p.name not in ("manifest.json", "lock")]
    assert about["bytes"]["all"] == sum(p.stat().st_size for p in files)


def test_many_small_changes_leave_few_files(folder: Path) -> None:
    index = Index.build(vectors(20), stacks()["mean"], folder, metadata={"i": range(20)})
    table = vectors(20)
    for i in range(30):
        new = vectors(1, seed=100 + i)
        index.add(new, metadata={"i": [20 + i]}, refresh=bool(i % 2))
        table = np.concatenate([table, new])
    assert_equals_rebuild(index, list(range(50)), table)
    assert index.search(table[:2], 1, filter={"i": 33}).ids.tolist() == [[33], [33]]
    assert len(list(folder.iterdir())) < 70
    assert index.stats()["segments"] <= 9


def test_files_of_others_are_left_alone(folder: Path) -> None:
    index = Index.build(vectors(20), "aqe", folder)
    (folder / "README.txt").write_text("mine")
    (folder / "notes.npy").write_text("mine")
    index.remove([3])
    index.compact()
    assert (folder / "README.txt").read_text() == "mine"
    assert (folder / "notes.npy").read_text() == "mine"
