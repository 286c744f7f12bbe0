"""Vectors in pickles."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from gqe.errors import InputError
from gqe.formats import read_vectors

TABLE = np.arange(12, dtype="f4").reshape(4, 3)


def save(path, value):
    path.write_bytes(pickle.dumps(value, 2))
    return path


def test_an_array_or_a_dictionary_of_arrays(tmp_path):
    path = tmp_path / "a.pkl"
    np.testing.assert_array_equal(read_vectors(save(path, TABLE)), TABLE)
    np.testing.assert_array_equal(read_vectors(save(path, {"vecs": TABLE, "names": ["a"]})), TABLE)
    save(path, {"vecs": TABLE, "qvecs": TABLE[:1]})
    assert read_vectors(path, key="qvecs").shape == (1, 3)
    with pytest.raises(InputError, match="choose one with key: 'vecs', 'qvecs'"):
        read_vectors(path)


def test_other_content(tmp_path):
    path = tmp_path / "a.pkl"
    with pytest.raises(InputError, match="leave out key"):
        read_vectors(save(path, TABLE), key="x")
    with pytest.raises(InputError, match="holds a list, not an array"):
        read_vectors(save(path, [1, 2]))
    with pytest.raises(InputError, match="1 axes"):
        read_vectors(save(path, np.arange(3)))
    with pytest.raises(InputError, match="'names' is not a table"):
        read_vectors(save(path, {"a": TABLE, "names": ["x"]}), key="names")
