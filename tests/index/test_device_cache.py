"""An index in the memory of a device, played through on a CPU; test_gpu.py does it with a real one."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from gqe import Expander
from gqe.index import Index, gpu, levels
from gqe.index.gpu import CudaGraphRunner
from index.worlds import small_encoders, stacks, stored, vectors, wide_vectors

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def as_if_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are held in memory, and encoders of short tables compute in 16 bits."""
    monkeypatch.setattr(gpu, "fits_device", lambda device, table: True)
    monkeypatch.setattr(levels, "encoder_type", lambda device, storage: gpu.encoder_type(CUDA, storage))


@pytest.mark.parametrize("storage", ["float32", "float16", "int8", ["float16", "float32"]])
@pytest.mark.parametrize("dba", [False, True])
def test_tables_in_memory_give_the_same_index(tmp_path: Path, monkeypatch, storage, dba: bool) -> None:
    table, queries = wide_vectors(300), wide_vectors(5, seed=1)
    table[:40] = table[40:80]
    expander = Expander(small_encoders(64, 7))
    from_disk = Index.build(table, expander, tmp_path / "disk", storage=storage, dba=dba)
    expected = from_disk.search(queries, 6)
    lists = from_disk._snapshot.graph.take(np.arange(300))
    levels = [f"level-{i}" for i in range(1, 3 if dba else 2)]
    rows = {name: stored(from_disk, name) for name in levels}

    as_if_on_a_gpu(monkeypatch)
    in_memory = Index.build(table, expander, tmp_path / "memory", storage=storage, dba=dba)
    found = in_memory._snapshot.graph.take(np.arange(300))
    np.testing.assert_array_equal(found.ids, lists.ids)
    np.testing.assert_array_equal(found.similarities, lists.similarities)
    exact, tolerance = "float32" in storage, 4e-3 if storage == "int8" else 1e-3
    for name in levels:
        assert isinstance(in_memory._target.levels.query.table(int(name[-1])), torch.Tensor)
        np.testing.assert_allclose(stored(in_memory, name), rows[name], atol=1e-6 if exact else tolerance)
    # They are private copies: the expander that was given is as it was.
    assert {p.dtype for level in expander.stack for p in level.parameters()} == {torch.float32}
    for one in (in_memory, Index.open(tmp_path / "disk", device="cpu")):
        answer = one.search(queries, 6)
        np.testing.assert_allclose(answer.scores, expected.scores, atol=1e-6 if exact else 5e-3)
    for one in queries:
        np.testing.assert_allclose(
            in_memory.search(one, 6).scores, from_disk.search(one, 6).scores, atol=1e-6 if exact else 5e-3
        )


@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("name", ["mean", "affinity", "two-sided"])
def test_changes_with_tables_in_memory(tmp_path: Path, monkeypatch, storage: str, name: str) -> None:
    table, more, queries = vectors(80, copies=8), vectors(9, seed=4), vectors(4, seed=1)
    answers = []
    for where in ("disk", "memory"):
        if where == "memory":
            as_if_on_a_gpu(monkeypatch)
        index = Index.build(table, stacks()[name], tmp_path / where, storage=storage)
        index.search(queries, 3)
        index.add(more)
        index.remove([3, 50, 81])
        answers.append((index.search(queries, 9), stored(index, "level-1")))
        index.refresh()
        answers.append((index.search(queries, 9), stored(index, "level-1")))
    for found, level in answers[1:]:
        np.testing.assert_array_equal(found.ids, answers[0][0].ids)
        np.testing.assert_allclose(found.scores, answers[0][0].scores, atol=1e-6)
        np.testing.assert_allclose(level, answers[0][1], atol=1e-6)


def test_memory_is_given_back_at_once(tmp_path: Path) -> None:
    index = Index.build(vectors(30), stacks()["mean"], tmp_path / "index")
    index.search(vectors(2), 3)
    held = weakref.ref(index._target.levels.query)
    gc.disable()
    try:
        index.reopen()
        assert held() is None
    finally:
        gc.enable()


def test_nothing_is_recorded_without_a_gpu(tmp_path: Path, monkeypatch) -> None:
    as_if_on_a_gpu(monkeypatch)
    index = Index.build(
        wide_vectors(60), Expander(small_encoders(64, 7)), tmp_path / "index", storage="float16", device="cpu"
    )
    query = wide_vectors(1, seed=1)
    np.testing.assert_allclose(index.expand(query[0]), index.expand(query)[0], atol=1e-6)
    assert not index._target.levels.query.cuda_graph_safe
    twice = CudaGraphRunner(lambda x, y: x + y)
    assert torch.equal(twice(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))
    assert not twice._recordings


def test_16_bits_only_where_everything_is_stored_so() -> None:
    assert gpu.encoder_type(CUDA, ["float16", "int8"]) == torch.bfloat16
    assert gpu.encoder_type(CUDA, ["float16", "float32"]) == torch.float32
    assert gpu.encoder_type(CPU, ["float16"]) == torch.float32
    assert not gpu.fits_device(CPU, None)
