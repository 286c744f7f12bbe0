"""HDF5 in the layout of ann-benchmarks."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from gqe.errors import InputError
from gqe.formats import read_vectors

TABLE = np.arange(12, dtype="f4").reshape(4, 3)


def ann_benchmark(path, **attributes):
    with h5py.File(path, "w") as file:
        file.attrs.update({"type": "dense", "distance": "angular", **attributes})
        file["train"] = TABLE
        file["test"] = TABLE[:2] + 1
        file["neighbors"] = np.arange(4).reshape(2, 2)
        file["distances"] = np.zeros((2, 2), "f4")
    return path


def test_train_is_the_default(tmp_path):
    path = ann_benchmark(tmp_path / "a.hdf5")
    np.testing.assert_array_equal(read_vectors(path), TABLE)
    np.testing.assert_array_equal(read_vectors(path, key="test"), TABLE[:2] + 1)
    assert read_vectors(path, key="neighbors").dtype == np.int64
    with pytest.raises(InputError, match="holds nothing named 'base'; choose one of"):
        read_vectors(path, key="base")


@pytest.mark.parametrize("attributes", [{"type": "sparse"}, {"distance": "jaccard"}])
def test_sets_are_refused(tmp_path, attributes):
    with pytest.raises(InputError, match="sets of items"):
        read_vectors(ann_benchmark(tmp_path / "a.hdf5", **attributes))


def test_sets_without_attributes_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["train"] = np.arange(9)
        file["size_train"] = np.array([4, 5])
    with pytest.raises(InputError, match="sets of items"):
        read_vectors(tmp_path / "a.hdf5")


@pytest.mark.parametrize(
    ("options", "mapped"),
    [
        ({}, True),
        ({"chunks": (2, 2)}, False),
        ({"compression": "gzip"}, False),
        ({"maxshape": (None, 3)}, False),
        ({"dtype": ">f8"}, True),
        ({"dtype": "f2"}, True),
    ],
)
@pytest.mark.parametrize("userblock", [0, 512])
def test_contiguous_datasets_are_mapped(tmp_path, options, mapped, userblock):
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=userblock) as file:
        file["before"] = np.arange(7)
        file.create_dataset("group/vectors", data=TABLE, **options)
    found = read_vectors(tmp_path / "a.h5")
    assert isinstance(found, np.memmap) is mapped
    np.testing.assert_array_equal(found, TABLE)
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.h5", key="/group/vectors"), TABLE)


def test_data_kept_in_another_file_is_not_mapped_from_this_one(tmp_path):
    (tmp_path / "raw.bin").write_bytes(TABLE.tobytes())
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("train", TABLE.shape, "f4", external=str(tmp_path / "raw.bin"))
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.h5"), TABLE)


def test_a_dataset_never_written_is_its_fill_value(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("train", TABLE.shape, "f4", fillvalue=2)
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.h5"), np.full((4, 3), 2))


def test_unusual_numbers_are_converted_by_the_library(tmp_path):
    bfloat16 = h5py.h5t.IEEE_F32LE.copy()
    bfloat16.set_fields(15, 7, 8, 0, 7)
    bfloat16.set_size(2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = h5py.h5s.create_simple(TABLE.shape)
        data = h5py.h5d.create(file.id, b"train", bfloat16, space)
        data.write(h5py.h5s.ALL, h5py.h5s.ALL, TABLE)
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.h5"), TABLE)


def test_several_tables_without_a_usual_name(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"], file["b"], file["text"] = TABLE, TABLE, "words"
        file["empty"] = h5py.Empty("f4")
    with pytest.raises(InputError, match="choose one with key: 'a', 'b'"):
        read_vectors(tmp_path / "a.h5")
    for key in ("text", "empty"):
        with pytest.raises(InputError, match=f"'{key}' is not a table"):
            read_vectors(tmp_path / "a.h5", key=key)
