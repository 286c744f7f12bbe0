from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gqe import InputError
from gqe.extraction import Whitening, load_whitening, save_whitening, whitening


def data(rows: int = 400, dim: int = 6, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, dim)) @ rng.normal(size=(dim, dim)) + rng.normal(size=dim)


@settings(max_examples=20, deadline=None)
@given(dim=st.integers(1, 6), seed=st.integers(0, 50))
def test_whitened_training_vectors_have_unit_covariance(dim: int, seed: int) -> None:
    x = data(seed=seed)
    learned = whitening.fit(x, dim)
    turned = (x - learned.mean) @ learned.projection
    np.testing.assert_allclose(turned.mean(axis=0), 0, atol=1e-8)
    np.testing.assert_allclose(np.cov(turned.T).reshape(dim, dim), np.eye(dim), atol=1e-6)


def test_the_first_axes_are_the_widest() -> None:
    x = np.random.default_rng(1).normal(size=(2000, 3)) * [1.0, 9.0, 3.0]
    axes = whitening.fit(x, 2).projection
    assert np.abs(axes).argmax(axis=0).tolist() == [1, 2]


def test_whole_shrinkage_only_turns() -> None:
    x = data()
    learned = whitening.fit(x, 6, shrinkage=1.0)
    gram = learned.projection.T @ learned.projection
    np.testing.assert_allclose(gram, gram[0, 0] * np.eye(6), atol=1e-9)


def test_result_has_unit_length_and_does_not_depend_on_the_other_rows() -> None:
    x = data()
    learned = whitening.fit(x, 4)
    all_rows = learned.apply(x)
    np.testing.assert_allclose(np.linalg.norm(all_rows, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(learned.apply(x[7:8])[0], all_rows[7], atol=1e-6)
    assert all_rows.dtype == np.float32


def test_the_mean_itself_stays_zero_instead_of_becoming_nan() -> None:
    learned = whitening.Whitening(np.ones(3), np.eye(3))
    assert learned.apply(np.ones((1, 3))).tolist() == [[0.0, 0.0, 0.0]]


def test_a_constant_coordinate_does_no_harm() -> None:
    x = data()
    x[:, 2] = 5.0
    assert np.isfinite(whitening.fit(x, 6).apply(x)).all()


@pytest.mark.parametrize(
    ("x", "dim", "shrinkage", "words"),
    [
        (np.zeros(4), 1, 0.0, "shape"),
        (np.zeros((1, 4)), 1, 0.0, "at least 2"),
        (np.eye(4), 4, 0.0, "choose 1 to 3"),
        (np.eye(4), 0, 0.0, "dim"),
        (np.eye(4), 2, 1.5, "shrinkage"),
        (np.array([[0.0, 1.0], [np.nan, 1.0], [1.0, 1.0]]), 1, 0.0, "row 1"),
    ],
)
def test_bad_input_is_explained(x: np.ndarray, dim: int, shrinkage: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        whitening.fit(x, dim, shrinkage=shrinkage)


def test_vectors_of_another_network_are_refused() -> None:
    with pytest.raises(InputError, match="same network"):
        whitening.fit(data(), 2).apply(np.zeros((3, 5)))


def by_loops(x: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The formula of the published learning: mean of the first of each pair, and axes (d, d)."""
    d = x.shape[1]
    mean = np.mean([x[a] for a, _ in pairs], axis=0)
    scatter = np.zeros((d, d))
    for a, b in pairs:
        scatter += np.outer(x[a] - x[b], x[a] - x[b]) / len(pairs)
    undo = np.linalg.inv(np.linalg.cholesky(scatter))
    total = np.zeros((d, d))
    for row in x:
        total += np.outer(undo @ (row - mean), undo @ (row - mean))
    values, vectors = np.linalg.eigh(total)
    return mean, (vectors[:, np.argsort(-values)].T @ undo).T


def test_pairs_give_what_the_formula_gives() -> None:
    x = data(60)
    pairs = np.random.default_rng(1).integers(0, 60, (40, 2))
    mean, axes = by_loops(x, pairs)
    learned = whitening.fit_pairs(x, pairs)
    np.testing.assert_allclose(learned.mean, mean, atol=1e-10)
    signs = np.sign((learned.projection * axes).sum(axis=0))
    np.testing.assert_allclose(learned.projection, axes * signs, rtol=1e-6)
    np.testing.assert_allclose(whitening.fit_pairs(x, pairs, 2).projection, learned.projection[:, :2])


def test_within_pairs_all_axes_vary_alike() -> None:
    x = data(300)
    pairs = np.arange(300).reshape(150, 2)
    learned = whitening.fit_pairs(x, pairs)
    differences = (x[pairs[:, 0]] - x[pairs[:, 1]]) @ learned.projection
    np.testing.assert_allclose(differences.T @ differences / 150, np.eye(6), atol=1e-8)


def test_labels_help_where_noise_is_wide() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 5)
    x = np.hstack([rng.normal(size=(40, 4))[labels], 10 * rng.normal(size=(200, 4))])

    def share_found(learned: whitening.Whitening) -> float:
        found = learned.apply(x)
        similar = found @ found.T - 9 * np.eye(200)
        return float(np.mean(labels[similar.argmax(axis=1)] == labels))

    with_labels = whitening.fit_pairs(x, whitening.pairs_of_labels(labels), 4)
    assert share_found(with_labels) > 0.99
    assert share_found(whitening.fit(x, 4)) < 0.5


def test_few_pairs_leave_a_singular_scatter_and_a_usable_whitening() -> None:
    x = data(50)
    learned = whitening.fit_pairs(x, np.array([[0, 1], [2, 3]]))
    assert np.isfinite(learned.apply(x)).all()
    np.testing.assert_allclose(np.linalg.norm(learned.apply(x), axis=1), 1, atol=1e-5)


def test_pairs_of_labels() -> None:
    found = whitening.pairs_of_labels(np.array(["a", "b", "a", "c", "b", "b"]))
    assert found.tolist() == [[0, 2], [1, 4], [4, 5], [5, 1]]


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (np.zeros((0, 2), int), "pairs"),
        (np.zeros((3, 3), int), "pairs"),
        (np.zeros((3, 2)), "pairs"),
        (np.array([[0, 400]]), "row 400 is not among 400"),
        (np.array([[-1, 2]]), "row -1"),
        (np.array([[3, 3]]), "equal"),
    ],
)
def test_bad_pairs_are_explained(pairs: np.ndarray, words: str) -> None:
    with pytest.raises(InputError, match=words):
        whitening.fit_pairs(data(), pairs)


def test_bad_labels_are_explained() -> None:
    with pytest.raises(InputError, match="no two vectors"):
        whitening.pairs_of_labels(np.arange(5))
    with pytest.raises(InputError, match="labels"):
        whitening.pairs_of_labels(np.zeros(5))


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
