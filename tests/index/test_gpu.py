"""An index built and searched on a GPU is that of a CPU."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from gqe import Expander
from gqe.index import Index, gpu, journal
from gqe.index.gpu import CudaGraphRunner
from gqe.retrieval import expand_once
from index.worlds import small_affinity, small_encoders, stored, wide_vectors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

N, K = 1500, 10
STORAGES = ["float32", "float16", "int8"]
TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "int8": 4e-3}  # int8 has steps of 1/127 of the largest number
TABLE, QUERIES = wide_vectors(N), wide_vectors(20, seed=1)


def expanders() -> dict[str, Expander]:
    return {"encoders": Expander(small_encoders(64, K)), "affinity": Expander(small_affinity(K))}


def pair(folder: Path, expander: str = "encoders", **settings) -> list[Index]:
    """The same index, built by a CPU and by a GPU."""
    return [
        Index.build(TABLE, expanders()[expander], folder / device, device=device, **settings)
        for device in ("cpu", "cuda")
    ]


def assert_same_lists(here: Index, there: Index) -> None:
    """The same neighbours; items whose similarities differ in the last bit only may change places."""
    rows = np.flatnonzero(here._snapshot.alive)
    expected, found = (index._snapshot.graph.take(rows) for index in (here, there))
    np.testing.assert_allclose(found.similarities, expected.similarities, atol=1e-6)
    different = found.ids != expected.ids
    assert different.mean() < 1e-3
    table = here._snapshot.vectors[:].float().numpy()
    row, place_in_list = np.nonzero(different)
    exact = (table[rows[row]] * table[found.ids[row, place_in_list]]).sum(axis=1)
    np.testing.assert_allclose(exact, found.similarities[row, place_in_list], atol=1e-6)


def assert_mostly_close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Equal rows, but for a few that listen to one of two equally near items."""
    away = np.abs(found - expected).max(axis=1)
    assert (away <= tolerance).mean() > 0.99, f"{np.quantile(away, [0.5, 0.9, 0.99, 1.0])}"


def assert_same_answers(here: Index, there: Index, tolerance: float, **how) -> None:
    expected, found = here.search(QUERIES, 5, **how), there.search(QUERIES, 5, **how)
    np.testing.assert_allclose(found.scores, expected.scores, atol=5 * tolerance)
    assert (found.ids == expected.ids).mean() > 0.9
    for i in range(4):
        alone = there.search(QUERIES[i], 5, **how)
        np.testing.assert_allclose(alone.scores, found.scores[i], atol=5 * tolerance)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("dba", [False, True])
@pytest.mark.parametrize("expander", ["encoders", "affinity"])
def test_the_same_index_as_on_the_cpu(tmp_path: Path, storage: str, dba: bool, expander: str) -> None:
    here, there = pair(tmp_path, expander, storage=storage, dba=dba)
    np.testing.assert_array_equal(there._snapshot.vectors[:], here._snapshot.vectors[:])
    assert_same_lists(here, there)
    for name in here._snapshot.levels:
        assert_mostly_close(stored(there, name), stored(here, name), TOLERANCE[storage])
        assert there._target.levels.query.table(1).device.type == "cuda"
    assert_same_answers(here, there, TOLERANCE[storage])
    assert_same_answers(here, there, 1e-6 if not dba else TOLERANCE[storage], expand=False)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("expander", ["encoders", "affinity"])
def test_blocks_do_not_get_mixed_up(tmp_path: Path, monkeypatch, storage: str, expander: str) -> None:
    """While one block is written, others are on their way from the GPU or being computed."""
    settings = {"storage": storage, "dba": True, "device": "cuda"}
    whole = Index.build(TABLE, expanders()[expander], tmp_path / "whole", **settings)
    monkeypatch.setattr(journal, "_BLOCK", 70)
    monkeypatch.setattr(journal, "_CHECKPOINT", 0.01)
    parts = Index.build(TABLE, expanders()[expander], tmp_path / "parts", **settings)
    assert_same_lists(whole, parts)
    for name in whole._snapshot.levels:
        assert_mostly_close(stored(parts, name), stored(whole, name), TOLERANCE[storage])


@pytest.mark.parametrize("storage", STORAGES)
def test_what_does_not_fit_is_read_from_the_disk(tmp_path: Path, monkeypatch, storage: str) -> None:
    there = Index.build(
        TABLE, expanders()["encoders"], tmp_path / "held", storage=storage, dba=True, device="cuda"
    )
    monkeypatch.setattr(gpu, "fits_device", lambda device, table: False)
    other = Index.build(
        TABLE, expanders()["encoders"], tmp_path / "disk", storage=storage, dba=True, device="cuda"
    )
    assert_same_lists(there, other)
    for name in there._snapshot.levels:
        assert_mostly_close(stored(other, name), stored(there, name), TOLERANCE[storage])
    assert_same_answers(there, other, TOLERANCE[storage])


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("dba", [False, True])
def test_changes_on_the_gpu(tmp_path: Path, storage: str, dba: bool) -> None:
    here, there = pair(tmp_path, storage=storage, dba=dba)
    gone, more = np.arange(0, 300, 3), wide_vectors(40, seed=5)
    for index in (here, there):
        index.search(QUERIES, 2)
        index.add(more)
        index.remove(gone)
    assert not np.isin(there.search(QUERIES, 20).ids, gone).any()
    assert_same_lists(here, there)
    assert_same_answers(here, there, TOLERANCE[storage])
    there.compact()
    here.compact()
    for name in here._snapshot.levels:
        assert_mostly_close(stored(there, name), stored(here, name), TOLERANCE[storage])
    assert_same_answers(here, there, TOLERANCE[storage])


def test_queries_of_the_gpu_are_answered_there(tmp_path: Path) -> None:
    index = Index.build(TABLE, expanders()["encoders"], tmp_path / "index", storage="float16", device="cuda")
    expected = index.search(QUERIES, 5)
    found = index.search(torch.from_numpy(QUERIES).cuda(), 5)
    assert found.ids.device.type == found.scores.device.type == "cuda"
    np.testing.assert_array_equal(found.ids.cpu(), expected.ids)
    np.testing.assert_allclose(found.scores.cpu(), expected.scores, atol=1e-6)
    assert index.expand(torch.from_numpy(QUERIES).cuda()).device.type == "cuda"
    told = index.explain(QUERIES, top=3)
    assert (told.weights[:, 0] != 0).all()


@pytest.mark.parametrize("storage", ["float16", "int8"])
def test_a_single_query_is_replayed(tmp_path: Path, storage: str) -> None:
    index = Index.build(TABLE, expanders()["encoders"], tmp_path / "index", storage=storage, device="cuda")
    target, options = index._target, index.expander.query_options
    assert target.levels.query.cuda_graph_safe
    together = index.expand(QUERIES)
    for query, expected in zip(QUERIES, together, strict=True):
        found = index.expand(query)
        asked = torch.from_numpy(query[None]).to(target.device)
        source, near = target.neighbors(asked, options.num_neighbors(target.levels.query.graph_k), None, None)
        step_by_step = expand_once(source, asked, near, options.contrast)
        np.testing.assert_allclose(found, step_by_step[0].cpu().numpy(), atol=5e-4)
        np.testing.assert_allclose(found, expected, atol=TOLERANCE[storage])
    index.expand(QUERIES[0].astype(np.float16))
    recordings = list(target._runners[options.contrast]._recordings.values())
    assert len(recordings) == 2  # of queries in 32 and in 16 bits
    assert all(recording is not None for recording in recordings)


def test_what_cannot_be_recorded_is_not(tmp_path: Path) -> None:
    short = {"storage": "float16", "device": "cuda"}
    assert not Index.build(
        TABLE, expanders()["affinity"], tmp_path / "a", **short
    )._target.levels.query.cuda_graph_safe
    exact = Index.build(TABLE, expanders()["encoders"], tmp_path / "b", device="cuda")
    assert not exact._target.levels.query.cuda_graph_safe
    assert np.isfinite(exact.expand(QUERIES[0])).all()


def test_single_queries_of_many_threads_and_streams(tmp_path: Path) -> None:
    index = Index.build(TABLE, expanders()["encoders"], tmp_path / "index", storage="float16", device="cuda")
    expected = [index.expand(query) for query in QUERIES]

    def work(i: int) -> np.ndarray:
        with torch.cuda.stream(torch.cuda.Stream() if i % 2 else torch.cuda.default_stream()):
            return index.expand(QUERIES[i % len(QUERIES)])

    with ThreadPoolExecutor(8) as threads:
        for i, found in enumerate(threads.map(work, range(200))):
            np.testing.assert_allclose(found, expected[i % len(QUERIES)], atol=5e-4)


def test_work_that_waits_is_done_step_by_step() -> None:
    numbers = torch.arange(5.0, device="cuda")
    before = torch.cuda.current_stream()
    waiting = CudaGraphRunner(lambda x: x * x.sum().item())
    replayed = CudaGraphRunner(lambda x: x * x.sum())
    for _ in range(3):
        numbers = numbers + 1
        expected = numbers.cpu() * numbers.cpu().sum()
        assert torch.equal(waiting(numbers).cpu(), expected)
        assert torch.equal(replayed(numbers).cpu(), expected)
        assert torch.cuda.current_stream() == before
    assert list(waiting._recordings.values()) == [None]
    assert torch.rand(5, device="cuda").unique().numel() == 5  # what broke off has left nothing behind
    with torch.inference_mode():
        given = torch.arange(5.0, device="cuda")
        assert torch.equal(replayed(given).cpu(), given.cpu() * 10)
    assert None not in replayed._recordings.values()


def test_the_memory_is_given_back(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    before = 2**60
    try:
        for folder in ("first", "second"):  # libraries take memory of their own, once
            index = Index.build(
                TABLE, expanders()["encoders"], tmp_path / folder, storage="float16", device="cuda"
            )
            assert torch.cuda.memory_allocated() <= before
            index.search(QUERIES, 5)
            index.search(QUERIES[0], 5)
            held = torch.cuda.memory_allocated()
            index.reopen()
            assert torch.cuda.memory_allocated() <= before
            before = torch.cuda.memory_allocated()
            assert held >= before + 2 * TABLE.nbytes // 2  # the vectors and level 1
    finally:
        gc.enable()
