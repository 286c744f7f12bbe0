"""Another expander over the items of an index: the same as an index built with it, without its searches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gqe import Expander, InputError
from gqe.aggregators import Mean
from gqe.index import Index, journal, verify
from gqe.query_options import QueryOptions
from index.in_shards import build_in_shards
from index.worlds import small_affinity, stacks, unit, vectors, wide_vectors

N = 60


def base(folder: Path, **options) -> Index:
    options = {"ids": [f"n{i}" for i in range(N)]} | options
    return Index.build(vectors(N), Expander([Mean(5)]), folder / "base", device="cpu", **options)


@pytest.mark.parametrize("dba", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", [name for name in stacks() if name != "affinity"])
def test_it_equals_an_index_built_with_that_expander(
    name: str, lazy: bool, dba: bool, tmp_path: Path
) -> None:
    built = Index.build(vectors(N), stacks()[name], tmp_path / "built", dba=dba, device="cpu")
    other = base(tmp_path).with_expander(stacks()[name], tmp_path / "other", dba=dba, lazy=lazy)
    queries = vectors(7, seed=5)
    np.testing.assert_allclose(other.expand(queries), built.expand(queries), atol=1e-6)
    scores, ids = other.search(queries, 5)
    expected = built.search(queries, 5)
    np.testing.assert_allclose(scores, expected.scores, atol=1e-6)
    assert ids.tolist() == [[f"n{i}" for i in row] for row in expected.ids]
    torch.testing.assert_close(
        torch.cat(list(other.blocks())), torch.cat(list(built.blocks())), atol=1e-6, rtol=0
    )
    assert verify(other.path) == []


@pytest.mark.parametrize("dba", [False, True])
def test_a_model_that_reads_statistics_of_the_whole_database(dba: bool, tmp_path: Path) -> None:
    table = wide_vectors(1300)  # more than the 1024 items that show the background
    wide = Index.build(table, Expander([Mean(48)]), tmp_path / "base", device="cpu")
    expanders = [
        Expander(small_affinity(), database_stack=small_affinity(), query_options=QueryOptions(0.3))
        for _ in range(2)
    ]
    built = Index.build(table, expanders[0], tmp_path / "built", dba=dba, device="cpu")
    other = wide.with_expander(expanders[1], tmp_path / "other", dba=dba, lazy=True)
    queries = wide_vectors(5, seed=3)
    np.testing.assert_allclose(other.expand(queries), built.expand(queries), atol=1e-5)


def test_lazy_levels_are_stored_by_refresh(tmp_path: Path) -> None:
    index = base(tmp_path).with_expander(stacks()["deep"], tmp_path / "other", lazy=True)
    queries = vectors(7, seed=5)
    before = index.expand(queries)
    assert index.stats()["stale"] == {"level-1": 1.0, "level-2": 1.0}
    index.add(vectors(2, seed=9), ids=["a", "b"])
    index.remove(["a", "b"])
    np.testing.assert_allclose(index.expand(queries), before, atol=1e-6)
    index.refresh()
    assert set(index.stats()["stale"].values()) <= {0.0}
    np.testing.assert_allclose(index.expand(queries), before, atol=1e-6)
    assert verify(index.path) == []


def test_files_are_shared_and_outlive_the_first_index(tmp_path: Path) -> None:
    first = base(tmp_path, metadata={"year": np.arange(N)}, storage="float16")
    other = first.with_expander(stacks()["mean"], tmp_path / "other")
    linked = [path.name for path in other.path.glob("*.0*") if path.stat().st_nlink > 1]
    assert {name.split(".")[0] for name in linked} == {"vectors", "graph", "ids", "id-text", "metadata"}
    assert other.stats()["storage"] == ["float16", "float16"]
    first.remove(["n3"])
    first.compact()
    assert "n3" in other
    assert other.search(vectors(1), 3, filter={"year": 3}).ids[0, 0] == "n3"
    assert verify(other.path) == []


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    other = base(tmp_path).with_expander(stacks()["mean"], tmp_path / "other")
    assert verify(other.path) == []


def test_an_interrupted_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_BLOCK", 10)
    monkeypatch.setattr(journal, "_CHECKPOINT", 0.0)
    first = base(tmp_path)

    def stop(done: int, _: int, name: str) -> None:
        if name == "level-2" and done >= 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.with_expander(stacks()["deep"], tmp_path / "other", dba=True, progress=stop)
    seen: list[tuple[str, int]] = []
    other = first.with_expander(
        stacks()["deep"], tmp_path / "other", dba=True, progress=lambda d, _, name: seen.append((name, d))
    )
    assert seen[:4] == [("level-2", 30), ("level-2", 40), ("level-2", 50), ("level-2", 60)]
    whole = first.with_expander(stacks()["deep"], tmp_path / "whole", dba=True)
    torch.testing.assert_close(torch.cat(list(other.blocks())), torch.cat(list(whole.blocks())))


def test_what_cannot_be_taken_over_is_refused(tmp_path: Path) -> None:
    first = base(tmp_path)
    with pytest.raises(InputError, match="lists for K of at most 5, custom reads 6"):
        first.with_expander(Expander([Mean(6)]), tmp_path / "other")
    first.remove(["n1"])
    with pytest.raises(InputError, match="compact it first"):
        first.with_expander(stacks()["mean"], tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_blocks_leave_removed_items_out(tmp_path: Path) -> None:
    index = base(tmp_path)
    index.remove(["n0", "n7"])
    kept = np.delete(unit(vectors(N)), [0, 7], axis=0)
    np.testing.assert_allclose(torch.cat(list(index.blocks())).numpy(), kept, atol=1e-6)


def test_an_index_in_shards(tmp_path: Path) -> None:
    first = build_in_shards(vectors(N), Expander([Mean(5)]), tmp_path / "base", 3)
    other = first.with_expander(stacks()["mean"], tmp_path / "other", dba=True)
    built = Index.build(vectors(N), stacks()["mean"], tmp_path / "built", dba=True, device="cpu")
    queries = vectors(7, seed=5)
    np.testing.assert_array_equal(other.search(queries, 5).ids, built.search(queries, 5).ids)
    assert verify(other.path) == []
