"""What an index tells of its items: vectors, neighbour lists, ids by place, and the levels above a query."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gqe
from gqe.errors import InputError
from gqe.expansion import level_coefficients
from gqe.index import Index

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(40, 8)).astype(np.float32)
TABLE /= np.linalg.norm(TABLE, axis=1, keepdims=True)
NAMES = [f"item {i}" for i in range(40)]


@pytest.fixture(params=["int", "text"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Index:
    ids = None if request.param == "int" else NAMES
    made = Index.build(TABLE, gqe.expander("aqe-g", k=3), tmp_path / "index", ids=ids, device="cpu")
    made.remove(made.ids[[4, 30]])
    return made


def test_vectors_are_those_of_the_ids(index: Index) -> None:
    kept = np.delete(np.arange(40), [4, 30])
    np.testing.assert_array_equal(index.vectors(index.ids), TABLE[kept])
    np.testing.assert_array_equal(index.vectors(index.ids[[7, 2]]), TABLE[kept[[7, 2]]])
    assert index.vectors([]).shape == (0, 8)
    gone = 4 if index.id_kind == "int" else "item 4"
    with pytest.raises(InputError, match="no item"):
        index.vectors([gone])


def test_neighbors_are_the_nearest(index: Index) -> None:
    table = index.vectors(index.ids)
    found = index.neighbors(index.ids[:5])
    assert found.ids.shape == found.scores.shape == (5, index.neighbors_kept)
    near = table[:5] @ table.T
    np.fill_diagonal(near, -np.inf)
    for row in range(5):
        expected = index.ids[np.argsort(-near[row], kind="stable")].tolist()
        # Removed items leave lists shorter, never wrong.
        listed = [name for name in found.ids[row].tolist() if name not in (-1, None)]
        assert listed == expected[: len(listed)]
        assert len(listed) >= 3


def test_ids_by_place(index: Index) -> None:
    assert index.ids_at(np.array([0, 4, -1])).tolist() == index.ids[[0, 4, -1]].tolist()
    assert index.ids_at(np.arange(0)).tolist() == []


def test_each_levels_coefficients_make_the_expanded_query(index: Index) -> None:
    queries = TABLE[:2]
    asked = index.context(queries, exclude=[index.ids[0], None])
    first, second = level_coefficients(asked.source, asked.queries, asked.neighbors)
    assert first.shape == second.shape == (2, 4)
    near = asked.neighbors.ids[:, :3]
    assert index.ids[0] not in asked.ids(near[0]).tolist()
    below = queries
    for level, coefficients in enumerate((first, second)):
        rows = asked.source.rows(level, _numbers(near)).numpy().reshape(2, 3, 8)
        below = coefficients[:, :1] * below + np.einsum("mk,mkd->md", coefficients[:, 1:], rows)
        below = below / np.linalg.norm(below, axis=1, keepdims=True)
    np.testing.assert_allclose(below, index.expand(queries, exclude=[index.ids[0], None]), atol=1e-5)


def _numbers(near: np.ndarray) -> object:
    import torch

    return torch.from_numpy(near.reshape(-1).astype(np.int64))


def test_an_expander_tells_the_same_of_its_database() -> None:
    made = gqe.expander("alpha", k=5).fit(TABLE, device="cpu")
    asked = made.context(TABLE[:2], exclude=[0, 1])
    (only,) = level_coefficients(asked.source, asked.queries, asked.neighbors)
    weights = made.weights(TABLE[:2], exclude=[0, 1]).toarray()
    for row in range(2):
        near = asked.neighbors.ids[row, :5]
        np.testing.assert_allclose(only[row, 1:] / only[row, 0], weights[row, near], atol=1e-5)
