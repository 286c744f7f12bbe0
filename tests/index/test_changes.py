"""Any sequence of changes leaves what building from nothing would give."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gqe
from gqe.index import Index, approximate, building, changing, drafts, levels, refreshing, verify
from gqe.neighbors import updating
from index.in_shards import build_in_shards
from index.worlds import DIM, assert_equals_rebuild, stacks, tied_vectors, unit, vectors

STEPS = st.tuples(
    st.sampled_from(["add", "add", "remove", "update", "refresh", "compact", "reopen"]),
    st.integers(0, 12),
    st.integers(0, 2**16),
    st.booleans(),
)


def with_small_blocks(monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    """So that a few dozen items meet every seam: blocks, segments, spare neighbours, caches."""
    monkeypatch.setattr(building, "SPARE_NEIGHBORS", spare)
    monkeypatch.setattr(changing, "SPARE_NEIGHBORS", spare)
    monkeypatch.setattr(updating, "_SCORE_BYTES", 7 * 4 * 3)
    monkeypatch.setattr(changing, "_BLOCK", 5)
    monkeypatch.setattr(levels, "_BLOCK", 6)
    monkeypatch.setattr(levels, "_CACHE_BYTES", 10 * DIM * 4)
    monkeypatch.setattr(refreshing, "_BLOCK", 9)
    monkeypatch.setattr(drafts, "MOST_SEGMENTS", 2)
    monkeypatch.setattr("os.fsync", lambda _: None)  # half of the time, for nothing that is tested here


@given(
    st.sampled_from(sorted(stacks())),
    st.booleans(),
    st.booleans(),
    st.integers(0, 40),
    st.integers(0, 2**16),
    st.integers(0, 3),
    st.integers(1, 4),
    st.lists(STEPS, min_size=1, max_size=6),
)
@settings(max_examples=80)
def test_any_sequence_of_changes_equals_the_rebuild(name, dba, tied, n, seed, spare, shards, changes) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        with_small_blocks(monkeypatch, spare)
        table, ids = tied_vectors(n, seed) if tied else vectors(n, seed, copies=5), list(range(n))
        if shards > 1:
            index = build_in_shards(table, stacks()[name], Path(folder) / "index", shards, dba=dba)
        else:
            index = Index.build(table, stacks()[name], Path(folder) / "index", dba=dba)
        assert_equals_rebuild(index, ids, table)
        upcoming = n
        for what, count, step_seed, now in changes:
            rng = np.random.default_rng(step_seed)
            new = tied_vectors(count, step_seed) if tied else vectors(count, step_seed, copies=1)
            if count and len(table) and step_seed % 3 == 0:
                new[0] = table[rng.integers(len(table))]  # a copy of an item that is there
            chosen = np.sort(rng.choice(len(ids), min(count, len(ids)), replace=False)).tolist()
            if what == "add":
                index.add(new, refresh=now)
                ids, table = [*ids, *range(upcoming, upcoming + count)], np.concatenate([table, new])
                upcoming += count
            elif what == "remove":
                index.remove([ids[i] for i in chosen], refresh=now)
                table, ids = (
                    np.delete(table, chosen, axis=0),
                    [x for i, x in enumerate(ids) if i not in chosen],
                )
            elif what == "update":
                names = [ids[i] for i in chosen]
                index.update(new[: len(chosen)], names, refresh=now)
                table = np.concatenate([np.delete(table, chosen, axis=0), new[: len(chosen)]])
                ids = [x for i, x in enumerate(ids) if i not in chosen] + names
            elif what == "reopen":
                index = Index.open(index.path)
            else:
                getattr(index, what)()
            assert_equals_rebuild(index, ids, table)
        assert verify(index.path) == []
        assert_equals_rebuild(Index.open(index.path), ids, table)


def test_among_equally_near_items_the_older_ones_come_first(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(building, "SPARE_NEIGHBORS", 1)
    monkeypatch.setattr(changing, "SPARE_NEIGHBORS", 1)
    table = tied_vectors(60, seed=1)
    index = Index.build(table, stacks()["mean"], tmp_path / "index")  # lists of 4, of which 3 are needed
    neighbors = index._snapshot.graph.take(np.arange(60)).ids
    gone = int(neighbors[0, 0])
    index.remove([gone])  # its place in many lists is taken by the next, whose place stays empty
    index.add(table[[gone]])  # as near as others that the shortened lists do not show
    rest = np.delete(np.arange(60), gone)
    assert_equals_rebuild(index, [*rest, 60], np.concatenate([table[rest], table[[gone]]]))


def graph_recall(index: Index, k: int) -> float:
    """The share of true neighbours in the first k places of all lists."""
    rows = np.flatnonzero(index._snapshot.alive)
    truth = rows[gqe.knn(index._snapshot.vectors[torch.from_numpy(rows)], k).ids]
    lists = index._snapshot.graph.take(rows).ids[:, :k]
    return float(np.mean([np.isin(t, f).mean() for t, f in zip(truth, lists, strict=True)]))


def test_changes_leave_an_approximate_graph_as_good_as_a_rebuild(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(approximate, "SMALLEST", 100)
    rng = np.random.default_rng(0)
    whole = unit(rng.normal(size=(3300, 24)))  # no clusters, since an inverted file finds those whole
    how = {"recall": 0.8, "approximate_by": "ivf"}
    index = Index.build(whole[:3000], "aqe-g", tmp_path / "changed", **how)
    first = graph_recall(index, 10)
    assert 0.8 <= first < 0.99
    for part in np.array_split(whole[3000:], 10):
        index.add(part)
    gone = rng.choice(3300, 330, replace=False)
    for part in np.array_split(gone, 3):
        index.remove(part)
    anew = Index.build(np.delete(whole, gone, axis=0), "aqe-g", tmp_path / "anew", **how)
    assert graph_recall(index, 10) >= max(0.8, graph_recall(anew, 10) - 0.02)
    index.compact()
    assert graph_recall(index, 10) >= max(0.8, graph_recall(anew, 10) - 0.02)
