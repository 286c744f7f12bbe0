"""Vectors from several files, sliced as if they were one."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gqe.errors import InputError
from gqe.formats import write_vectors
from gqe.formats.sources import open_source

TABLE = np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("vectors")
    for name, part in (("a.npy", slice(0, 9)), ("b.fvecs", slice(9, 10)), ("c.npz", slice(10, 23))):
        write_vectors(made / name, TABLE[part])
    (made / ".hidden.npy").write_bytes(b"half")
    (made / "notes.txt").write_text("no vectors")
    return made


@given(st.integers(0, 23), st.integers(0, 23))
def test_slices_of_files_and_addresses(folder: Path, start: int, stop: int) -> None:
    for place in (folder, f"file://{folder}"):
        if not isinstance(place, Path):
            pytest.importorskip("fsspec", reason="addresses need fsspec")
        source = open_source(place)
        assert source.shape == (23, 3)
        np.testing.assert_array_equal(source[start:stop], TABLE[start:stop])


def test_a_source_can_be_sent(folder: Path) -> None:
    source = open_source(folder)
    source[:5]
    content = pickle.dumps(source)
    assert len(content) < 2000
    np.testing.assert_array_equal(pickle.loads(content)[5:15], TABLE[5:15])


def test_another_content_has_another_identity(folder: Path, tmp_path: Path) -> None:
    write_vectors(tmp_path / "a.npy", TABLE)
    first = open_source(tmp_path / "a.npy").identity
    assert open_source(tmp_path / "a.npy").identity == first
    write_vectors(tmp_path / "a.npy", TABLE * 2)
    assert open_source(tmp_path / "a.npy").identity != first


def test_what_cannot_be_a_source(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        open_source(tmp_path / "none.npy")
    with pytest.raises(InputError, match="no file of vectors in it"):
        open_source(tmp_path)
    write_vectors(tmp_path / "a.npy", TABLE)
    write_vectors(tmp_path / "b.npy", TABLE[:, :2])
    with pytest.raises(InputError, match=r"b\.npy: vectors of dimension 2, those of \S*a\.npy have 3"):
        open_source(tmp_path)


def test_addresses_that_lead_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="addresses need fsspec")
    with pytest.raises(InputError, match="nothing is there"):
        open_source(f"file://{tmp_path}/none.npy")
    with pytest.raises(InputError, match="cannot be reached"):
        open_source("nosuchprotocol://bucket/a.npy")
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY nonsense")
    with pytest.raises(InputError, match=r"broken\.npy"):
        open_source(f"file://{tmp_path}/broken.npy")
