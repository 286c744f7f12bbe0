from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gqe import InputError
from gqe.extraction import whitening


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
