from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gqe import InputError
from gqe.extraction import Whitening, load_whitening, save_whitening


def some(seed: int = 0) -> Whitening:
    rng = np.random.default_rng(seed)
    return Whitening(rng.normal(size=5), rng.normal(size=(5, 3)))


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_there_and_back(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"white.{ending}"
    save_whitening(path, some())
    read = load_whitening(path)
    np.testing.assert_allclose(read.mean, some().mean, atol=1e-6)
    np.testing.assert_allclose(read.projection, some().projection, atol=1e-6)
    assert read.digest() == some().digest()
    assert read.digest() != some(1).digest()
    content = path.read_bytes()
    save_whitening(path, some(1))
    assert path.read_bytes() != content


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.npz or \.safetensors"):
        save_whitening(tmp_path / "white.pkl", some())
    with pytest.raises(InputError, match="not finite"):
        save_whitening(tmp_path / "white.npz", Whitening(np.zeros(2), np.full((2, 2), np.nan)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"mean": np.zeros(3)}, "holds no 'projection'"),
        ({"mean": np.zeros(3), "projection": np.zeros((2, 2))}, "do not fit together"),
        ({"mean": np.zeros(3), "projection": np.zeros((3, 0))}, "do not fit together"),
        ({"mean": np.zeros((3, 1)), "projection": np.zeros((3, 2))}, "do not fit together"),
        ({"mean": np.zeros(3, int), "projection": np.zeros((3, 2))}, "not real numbers"),
        ({"mean": np.full(3, np.inf), "projection": np.zeros((3, 2))}, "not finite"),
        ({"mean": np.array([None]), "projection": np.zeros((1, 2))}, "Python objects"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], words: str) -> None:
    np.savez(tmp_path / "white.npz", **arrays)
    with pytest.raises(InputError, match=words):
        load_whitening(tmp_path / "white.npz")


def test_foreign_files(tmp_path: Path) -> None:
    for name in ("white.npz", "white.safetensors"):
        (tmp_path / name).write_text("a letter")
        with pytest.raises(InputError, match="not a readable"):
            load_whitening(tmp_path / name)
    for name in ("white.txt", "white"):
        with pytest.raises(InputError, match="is read from"):
            load_whitening(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        load_whitening(tmp_path / "absent.npz")
