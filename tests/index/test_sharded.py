"""An index in shards is the index in single files: the same lists, levels and answers."""

from __future__ import annotations

import json
import resource
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gqe
from gqe.errors import InputError
from gqe.index import Index, approximate, verify
from gqe.index.shards import (
    ShardedApproximate,
    count_built_segments,
    even_bounds,
    merge_lists,
    shard_bounds,
    shard_file,
    table_of,
)
from gqe.index.tables import Piece, Rows
from gqe.neighbors.candidates import Candidates
from index.in_shards import Stopped, build_in_shards
from index.worlds import stacks, stored, tied_vectors, unit, vectors


@pytest.mark.parametrize("name", sorted(stacks()))
@pytest.mark.parametrize("dba", [False, True])
def test_shards_give_what_single_files_give(tmp_path: Path, name: str, dba: bool) -> None:
    table, queries = vectors(90, copies=6), vectors(5, seed=1)
    how = {"dba": dba, "ids": [f"item {i}" for i in range(90)], "metadata": {"year": np.arange(90) % 7}}
    whole = Index.build(table, stacks()[name], tmp_path / "whole", **how)
    parts = build_in_shards(table, stacks()[name], tmp_path / "parts", 4, **how)
    expected, found = whole._snapshot.graph.block(0, 90), parts._snapshot.graph.block(0, 90)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.similarities, expected.similarities)
    assert set(parts._snapshot.levels) == set(whole._snapshot.levels)
    for level in whole._snapshot.levels:
        np.testing.assert_allclose(stored(parts, level), stored(whole, level), atol=1e-6)
    searches = (
        {},
        {"expand": False},
        {"exclude": [f"item {i}" for i in range(5)]},
        {"filter": {"year": [2, 3]}},
        {"filter": {"year": [0, 1, 2, 3, 4]}},
    )
    for given_too in searches:
        first, second = whole.search(queries, 9, **given_too), parts.search(queries, 9, **given_too)
        np.testing.assert_array_equal(second.ids, first.ids)
        np.testing.assert_allclose(second.scores, first.scores, atol=1e-6)
    one, other = whole.explain(queries), parts.explain(queries)
    np.testing.assert_allclose(other.weights, one.weights, atol=1e-5)
    assert verify(parts.path) == []
    assert parts.stats()["shards"] == 4
    assert parts.stats()["bytes"].keys() == whole.stats()["bytes"].keys()


@pytest.mark.parametrize("storage", ["float16", "int8"])
def test_ties_fall_alike_in_every_storage(tmp_path: Path, storage: str) -> None:
    table = tied_vectors(80, seed=3)
    whole = Index.build(table, "aqe-g", tmp_path / "whole", storage=storage)
    parts = build_in_shards(table, "aqe-g", tmp_path / "parts", 7, storage=storage)
    np.testing.assert_array_equal(
        parts._snapshot.graph.block(0, 80).ids, whole._snapshot.graph.block(0, 80).ids
    )
    queries = tied_vectors(6, seed=4)
    np.testing.assert_array_equal(parts.search(queries, 20).ids, whole.search(queries, 20).ids)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_fewer_items_than_neighbours(tmp_path: Path, n: int) -> None:
    whole = Index.build(vectors(n), "aqe-g", tmp_path / "whole")
    parts = build_in_shards(vectors(n), "aqe-g", tmp_path / "parts", 3)
    queries = vectors(2, seed=1)
    np.testing.assert_allclose(parts.expand(queries), whole.expand(queries), atol=1e-6)
    assert len(parts) == n


def test_a_stopped_build_goes_on_with_its_shards(tmp_path: Path) -> None:
    table = vectors(90, copies=6)
    whole = Index.build(table, stacks()["affinity"], tmp_path / "whole", dba=True)
    stops, path, before = (("neighbours", 14), ("level-1", 2), ("level-2", 1)), tmp_path / "parts", {}
    for stop in stops:
        with pytest.raises(Stopped):
            build_in_shards(table, stacks()["affinity"], path, 4, dba=True, stop=stop)
        files = {item.name: item.stat().st_mtime_ns for item in path.glob("*-shard-*")}
        assert files == files | before  # nothing was made again
        assert len(files) > len(before)
        before = files
    parts = build_in_shards(table, stacks()["affinity"], path, 4, dba=True)
    assert {name: (path / name).stat().st_mtime_ns for name in before} == before
    for level in whole._snapshot.levels:
        np.testing.assert_allclose(stored(parts, level), stored(whole, level), atol=1e-6)
    assert verify(path) == []


def test_a_bad_row_is_named_by_its_place_in_the_whole(tmp_path: Path) -> None:
    table = vectors(40)
    table[33, 2] = np.nan
    with pytest.raises(InputError, match=r"row 33 contains NaN"):
        build_in_shards(table, "aqe", tmp_path / "index", 4)


def test_damaged_shards_are_named(tmp_path: Path) -> None:
    index = build_in_shards(vectors(40), "aqe-g", tmp_path / "index", 3)
    file = index.path / shard_file("level-1", 1)
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    assert verify(index.path) == [f"{file}: damaged, its checksum does not match"]
    file.unlink()
    with pytest.raises(InputError, match=r"level-1-shard-00001\S*: is missing"):
        Index.open(index.path)


def test_faiss_indexes_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(approximate, "SMALLEST", 500)
    rng = np.random.default_rng(0)
    table, queries = unit(rng.normal(size=(2000, 24))), unit(rng.normal(size=(30, 24)))
    how = {"recall": 0.8, "approximate_by": "ivf"}
    index = build_in_shards(table, "aqe-g", tmp_path / "index", 3, **how)
    manifest = index._snapshot.manifest
    assert [search.start for search in manifest.shard_searches] == [0, 667, 1334]
    assert json.loads((index.path / "manifest.json").read_text())["version"] == 2
    assert isinstance(index._target._approximate, ShardedApproximate)
    assert verify(index.path) == []

    truth = gqe.knn(table, 10).ids
    lists = index._snapshot.graph.block(0, 2000).ids[:, :10]
    share = np.mean([np.isin(t, f).mean() for t, f in zip(truth, lists, strict=True)])
    assert 0.8 <= share < 1
    assert 0.8 <= index.stats()["search"]["recall"] <= 1

    def recall_of_search() -> float:
        found, exact = (index.search(queries, 10, expand=False, exact=e).ids for e in (False, True))
        every = gqe.knn(index._snapshot.vectors[:], 10, queries=queries).ids
        np.testing.assert_array_equal(exact, every)
        return float(np.mean([np.isin(t, f).mean() for t, f in zip(exact, found, strict=True)]))

    assert 0.75 <= recall_of_search() < 1
    index.add(queries[:5])  # no faiss index covers these
    assert 0.75 <= recall_of_search() <= 1
    assert index.search(queries[:5], 1, expand=False).ids[:, 0].tolist() == [2000, 2001, 2002, 2003, 2004]
    index.remove([3, 700, 1500])
    found = index.search(table[[3, 700, 1500]], 10, expand=False).ids
    assert not np.isin(found, [3, 700, 1500]).any()
    index.compact()
    assert index._snapshot.manifest.shard_searches == []
    assert index._snapshot.manifest.search is not None


def test_shards_too_small_for_faiss_are_searched_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(approximate, "SMALLEST", 667)
    table = vectors(2000, copies=5)
    index = build_in_shards(table, "aqe-g", tmp_path / "index", 3, recall=0.5)
    assert [search.start for search in index._snapshot.manifest.shard_searches] == [0, 667]
    found = index.search(table[1500:1520], 1, expand=False).ids[:, 0]  # in the third shard: exact
    np.testing.assert_array_equal(found, gqe.knn(table, 1, queries=table[1500:1520]).ids[:, 0])


@st.composite
def lists(draw: st.DrawFn) -> tuple[list[tuple[int, float]], list[tuple[int, float]], int]:
    ids = draw(st.lists(st.integers(0, 50), unique=True, max_size=12))
    values = draw(st.lists(st.sampled_from([0.1, 0.5, 0.9]), min_size=len(ids), max_size=len(ids)))
    entries = list(zip(ids, values, strict=True))
    cut = draw(st.integers(0, len(entries)))
    return entries[:cut], entries[cut:], draw(st.integers(1, 8))


@given(lists())
def test_merged_lists_are_the_nearest_of_both(case) -> None:
    first, second, k = case

    def best(entries: list[tuple[int, float]]) -> list[tuple[int, float]]:
        found = sorted(entries, key=lambda entry: (-entry[1], entry[0]))[:k]
        return found + [(-1, float("-inf"))] * (k - len(found))

    def listed(entries: list[tuple[int, float]]) -> Candidates:
        ids, values = zip(*best(entries), strict=True)
        return Candidates(torch.tensor([ids]), torch.tensor([values]))

    merged = merge_lists(listed(first), listed(second), k)
    ids, values = zip(*best(first + second), strict=True)
    assert merged.ids.tolist() == [list(ids)]
    np.testing.assert_array_equal(merged.similarities.numpy(), np.float32([values]))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.data())
def test_rows_of_several_files_are_those_of_one(counts: list[int], data: st.DataObject) -> None:
    whole = np.arange(3 * sum(counts), dtype=np.uint8).reshape(-1, 3)
    starts = np.concatenate([[0], np.cumsum(counts)])
    pieces = [Piece(whole[a:b], int(a)) for a, b in pairwise(starts)]
    rows = Rows(len(whole), 3, pieces)
    if len(whole):
        numbers = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=9)), dtype=np.int64)
        np.testing.assert_array_equal(rows.take(numbers), whole[numbers])
    if len(counts) > 1:
        with pytest.raises(IndexError):
            rows.take(np.array([len(whole)]))


def test_more_files_than_a_process_may_have_open(tmp_path: Path) -> None:
    index = build_in_shards(vectors(60), "aqe-g", tmp_path / "index", 30)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, before[1])
        )
        again = Index.open(index.path, device="cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    np.testing.assert_array_equal(
        again.search(vectors(3, seed=1), 5).ids, index.search(vectors(3, seed=1), 5).ids
    )


def test_names_and_bounds() -> None:
    assert table_of(shard_file("level-1", 3)) == "level-1"
    assert table_of("vectors.00000001.npy") == "vectors"
    assert table_of("expander/config.json") == "expander"
    segment = gqe.index.manifest.Segment
    shards = [segment(shard_file("vectors", i), 5, 5 * i) for i in range(3)]
    later = segment("vectors.00000002.npy", 2, 15)
    assert count_built_segments([*shards, later]) == 3
    assert count_built_segments([later]) == 1
    assert shard_bounds([*shards, later]) == [(0, 5), (5, 10), (10, 15)]
    for n, count in ((0, 1), (7, 3), (10, 10)):
        bounds = even_bounds(n, count)
        assert [b for pair in bounds for b in range(*pair)] == list(range(n))
        assert max(b - a for a, b in bounds) - min(b - a for a, b in bounds) <= 1
