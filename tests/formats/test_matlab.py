"""MATLAB files."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse

from gqe.errors import InputError
from gqe.formats import read_ground_truth, read_vectors

TABLE = np.arange(12, dtype="f4").reshape(4, 3)


def save_73(path, chunks=None, **matrices):
    """As MATLAB writes -v7.3: 512 bytes of its own, then HDF5 with every matrix transposed."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_group("#refs#").create_dataset("a", data=np.zeros((2, 2)))
        for name, matrix in matrices.items():
            file.create_dataset(name, data=matrix.T, chunks=chunks)
            kind = {"f4": "single", "f8": "double", "u2": "char"}[matrix.dtype.str[1:]]
            file[name].attrs["MATLAB_class"] = np.bytes_(kind)
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_level_5(tmp_path, compressed):
    path = tmp_path / "a.mat"
    scipy.io.savemat(
        path, {"X": TABLE, "name": "text", "cell": np.array([[1], "b"], object)}, do_compression=compressed
    )
    found = read_vectors(path)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, TABLE)
    for key in ("name", "cell"):
        with pytest.raises(InputError, match=f"'{key}' is not a table"):
            read_vectors(path, key=key)


@pytest.mark.parametrize("chunks", [None, (1, 1)])
def test_level_73_is_turned_back(tmp_path, chunks):
    path = save_73(tmp_path / "a.mat", chunks, X=TABLE, word=np.full((1, 4), 97, "u2"))
    found = read_vectors(path)
    np.testing.assert_array_equal(found, TABLE)
    assert isinstance(found, np.memmap) is (chunks is None)
    with pytest.raises(InputError, match="'word' is not a table"):
        read_vectors(path, key="word")


def test_both_levels_give_the_same_choice(tmp_path):
    matrices = {"Q": TABLE[:1], "X": TABLE}
    scipy.io.savemat(tmp_path / "five.mat", matrices)
    save_73(tmp_path / "seven.mat", **matrices)
    for name in ("five.mat", "seven.mat"):
        with pytest.raises(InputError, match="choose one with key: 'Q', 'X'"):
            read_vectors(tmp_path / name)
        np.testing.assert_array_equal(read_vectors(tmp_path / name, key="Q"), TABLE[:1])


def test_sparse_and_complex_matrices_are_refused(tmp_path):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"S": scipy.sparse.csc_array(TABLE)})
    with pytest.raises(InputError, match="no table of numbers"):
        read_vectors(path)
    scipy.io.savemat(path, {"C": TABLE * 1j})
    with pytest.raises(InputError, match="not real numbers"):
        read_vectors(path)


def test_level_4_has_no_header_and_is_refused(tmp_path):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"X": TABLE}, format="4")
    with pytest.raises(InputError, match="save it with -v7"):
        read_vectors(path)


@pytest.mark.parametrize("code", [0, 8, 10, 11, 14, 15, 200, 65535])
def test_a_wrong_type_code_is_refused(tmp_path, code):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"X": TABLE})
    content = bytearray(path.read_bytes())
    place = content.index(
        (7).to_bytes(4, "little") + (48).to_bytes(4, "little")
    )  # twelve numbers of four bytes
    content[place : place + 4] = code.to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"not a readable \.mat file"):
        read_vectors(path)


def test_cells_within_cells_without_end_are_refused(tmp_path):
    cell = np.array([[1.0]], object)
    for _ in range(30):
        cell = _within(cell)
    scipy.io.savemat(tmp_path / "gnd.mat", {"gnd": cell})
    with pytest.raises(InputError, match="nested more than 20 deep"):
        read_ground_truth(tmp_path / "gnd.mat")


def _within(value):
    cell = np.empty((1, 1), object)
    cell[0, 0] = value
    return cell
