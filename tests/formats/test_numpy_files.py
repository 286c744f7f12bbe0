"""Files of NumPy: .npy and .npz."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from gqe.errors import InputError
from gqe.formats import read_arrays, read_vectors, write_vectors

TABLE = np.arange(12, dtype="f4").reshape(4, 3)


def test_benchmark_files_are_read_by_name(tmp_path):
    path = tmp_path / "test.npz"
    arrays = {
        "queries": TABLE[:1].astype("f2"),
        "query_labels": np.array([7]),
        "database": TABLE,
        "database_labels": np.array([7, -1, 3, 3], "i4"),
        "names": np.array(["a", "bc"]),
        "number": np.array(3),
        "cube": np.zeros((2, 2, 2)),
        "nothing": np.zeros((0, 4)),
        "columns": np.asfortranarray(TABLE),
    }
    for save, kind in [(np.savez, np.memmap), (np.savez_compressed, np.ndarray)]:
        save(path, **arrays)
        found = read_arrays(path)
        assert list(found) == list(arrays)
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
            assert array.size == 0 or type(found[name]) is kind


def test_which_array_is_taken(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, labels=np.arange(4), anything=TABLE)
    np.testing.assert_array_equal(read_vectors(path), TABLE)  # the only table
    np.savez(path, queries=TABLE[:1], other=TABLE, database=TABLE)
    assert read_vectors(path).shape == (4, 3)  # database comes before queries
    assert read_vectors(path, key="queries").shape == (1, 3)
    np.savez(path, queries=TABLE[:1], embeddings=TABLE[:2], vectors=TABLE)
    assert read_vectors(path).shape == (2, 3)
    np.savez(path, a=TABLE, b=TABLE)
    with pytest.raises(InputError, match="several tables; choose one with key: 'a', 'b'"):
        read_vectors(path)
    with pytest.raises(InputError, match="holds nothing named 'c'; choose one of 'a', 'b'"):
        read_vectors(path, key="c")
    np.savez(path, a=TABLE, labels=np.arange(3))
    with pytest.raises(InputError, match="'labels' is not a table of numbers"):
        read_vectors(path, key="labels")
    np.savez(path, labels=np.arange(3), names=np.array([["a"]]))
    with pytest.raises(InputError, match="no table of numbers"):
        read_vectors(path)
    np.savez(path, **{f"a{i}": TABLE for i in range(30)})
    with pytest.raises(InputError, match="and 20 more"):
        read_vectors(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_objects_are_refused(tmp_path, save):
    path = tmp_path / "a.npz"
    save(path, good=TABLE, bad=np.array([{"a": 1}], object))
    for read in (read_arrays, read_vectors):
        with pytest.raises(InputError, match="Python objects"):
            read(path)


def test_a_changed_byte_in_a_compressed_array_is_noticed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.random.default_rng(0).random((100, 3)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.npz"):
        read_vectors(path)


def test_members_that_lie(tmp_path):
    path = tmp_path / "a.npz"
    buffer = io.BytesIO()
    np.save(buffer, TABLE)
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        for member, reason in [
            (buffer.getvalue()[:-4], "promises"),
            (b"garbage", "not a readable"),
            (b"", "not a"),
        ]:
            with zipfile.ZipFile(path, "w", compression) as archive:
                archive.writestr("a.npy", member)
            with pytest.raises(InputError, match=reason):
                read_vectors(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no arrays here")
    with pytest.raises(InputError, match="holds no arrays"):
        read_arrays(path)


def test_bytes_before_the_archive_do_not_shift_the_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", a=TABLE)
    (tmp_path / "b.npz").write_bytes(b"x" * 101 + (tmp_path / "a.npz").read_bytes())
    np.testing.assert_array_equal(read_vectors(tmp_path / "b.npz"), TABLE)


def test_arrays_by_name_come_from_npz_only(tmp_path):
    write_vectors(tmp_path / "a.npy", TABLE)
    with pytest.raises(InputError, match=r"read from \.npz files"):
        read_arrays(tmp_path / "a.npy")
    with pytest.raises(InputError, match="no such file"):
        read_arrays(tmp_path / "absent.npz")


def test_the_longer_header_of_version_2(tmp_path):
    with (tmp_path / "a.npy").open("wb") as stream:
        np.lib.format.write_array(stream, TABLE, version=(2, 0))
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.npy"), TABLE)


def test_an_encrypted_member_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=TABLE)
    content = bytearray(path.read_bytes())
    content[6] |= 1  # the flag in the member's header and in the table of contents
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="encrypted"):
        read_vectors(path)


def test_columns_first_npy(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(TABLE))
    found = read_vectors(tmp_path / "a.npy")
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, TABLE)


@pytest.mark.parametrize("key", ["a", "vectors", "é", "x" * 100])
def test_members_written_here_are_aligned_and_mapped(tmp_path, key):
    write_vectors(tmp_path / "a.npz", TABLE, key=key)
    found = read_vectors(tmp_path / "a.npz", key=key)
    assert isinstance(found, np.memmap)
    assert found.ctypes.data % 64 == 0
    with np.load(tmp_path / "a.npz") as file:
        np.testing.assert_array_equal(file[key], TABLE)
