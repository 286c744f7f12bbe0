from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gqe import InputError, datasets
from gqe.datasets import base

REAL = Path(__file__).parents[3] / "shared" / "benchmarks" / "image" / "val.npz"


def write(path: Path, **changes: np.ndarray | None) -> Path:
    arrays = {
        "queries": np.eye(2, 4, dtype=np.float32),
        "query_labels": np.array([0, 1]),
        "database": np.eye(4, dtype=np.float32),
        "database_labels": np.array([0, 1, 1, -1]),
    }
    np.savez(path, **{name: value for name, value in (arrays | changes).items() if value is not None})
    return path


def test_a_label_benchmark_is_read(tmp_path: Path) -> None:
    data = base.load_npz(write(tmp_path / "mine.npz"))
    assert data.name == "mine"
    np.testing.assert_array_equal(data.database, np.eye(4))
    assert data.ground_truth["database_labels"].tolist() == [0, 1, 1, -1]
    assert data.picture is None


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.npz", query_labels=None)
    with pytest.raises(InputError, match=r"mine\.npz: no query_labels"):
        base.load_npz(path)


def test_data_sets_by_name(tmp_path: Path) -> None:
    assert {"town", "town-val", "roxford5k", "rparis6k+r1m", "rsfm120k-val"} <= set(datasets.available())
    assert datasets.is_name("town")
    assert datasets.is_name("roxford5k@mine.mat")
    assert not datasets.is_name("mine.npz")
    assert datasets.load("town-val").name == "town-val"
    assert datasets.load(write(tmp_path / "mine.npz")).name == "mine"
    with pytest.raises(InputError, match="no built-in data set"):
        datasets.load("city")
    with pytest.raises(InputError, match="cannot be made"):
        datasets.make("city", tmp_path / "city.npz")


def test_benchmark_files_are_told_from_others(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    assert datasets.is_benchmark_file(write(tmp_path / "mine.npz"))
    assert not datasets.is_benchmark_file(tmp_path / "other.npz")
    assert not datasets.is_benchmark_file(tmp_path / "absent.npz")


@pytest.mark.skipif(not REAL.is_file(), reason="the real benchmark files are not here")
def test_a_real_file_is_read() -> None:
    data = base.load_npz(REAL)
    assert data.queries.shape[1] == data.database.shape[1] == 256
    assert len(data.ground_truth["query_labels"]) == len(data.queries)


def test_a_data_set_at_the_prompt_is_one_short_line() -> None:
    from gqe.datasets import town
    from gqe.datasets.base import TrainingSet

    assert repr(town.load("test")) == "Benchmark('town', queries=(120, 256), database=(3012, 256))"
    training = TrainingSet("mine", np.zeros((4, 2)), np.array([0, 0, 7, -1]))
    assert repr(training) == "TrainingSet('mine', embeddings=(4, 2), classes=2)"
