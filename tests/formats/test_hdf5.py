"""HDF5 in the layout of ann-benchmarks."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from gqe.datasets.official.descriptors import read_tables
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


def external_storage(file, other):
    file.create_dataset("train", TABLE.shape, "f4", external=str(other))


def virtual(file, other):
    layout = h5py.VirtualLayout(TABLE.shape, "f4")
    layout[:] = h5py.VirtualSource(str(other), "train", TABLE.shape)
    file.create_virtual_dataset("train", layout)


def external_link(file, other):
    file["train"] = h5py.ExternalLink(str(other), "/train")


def external_link_in_a_group(file, other):
    file.create_group("some")["train"] = h5py.ExternalLink(str(other), "/train")


def soft_link_through_an_external_one(file, other):
    file["away"] = h5py.ExternalLink(str(other), "/")
    file["train"] = h5py.SoftLink("/away/train")


FOREIGN = [
    external_storage,
    virtual,
    external_link,
    external_link_in_a_group,
    soft_link_through_an_external_one,
]


@pytest.mark.parametrize("point", FOREIGN)
@pytest.mark.parametrize("ending", [".h5", ".mat"])
@pytest.mark.parametrize("key", [None, "train"])
def test_a_file_that_has_others_read_is_refused(tmp_path, point, ending, key):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["train"] = TABLE
    path = tmp_path / f"a{ending}"
    with h5py.File(path, "w") as file:
        point(file, tmp_path / "other.h5")
        file["database"] = TABLE
    with pytest.raises(InputError, match=r"link out of the file|values in other files"):
        read_vectors(path, key=key)


def test_descriptors_of_a_benchmark_are_not_read_from_other_files(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["train"] = TABLE
    for point in FOREIGN:
        for name in ("a.h5", "a.mat"):
            (tmp_path / name).unlink(missing_ok=True)
            with h5py.File(tmp_path / name, "w") as file:
                point(file, tmp_path / "other.h5")
            with pytest.raises(InputError, match=r"link out of the file|values in other files"):
                read_tables(tmp_path / name)


def test_a_link_of_an_unknown_kind_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train"] = TABLE
        file["away"] = h5py.ExternalLink("other.h5", "/train")
    content = (tmp_path / "a.h5").read_bytes()
    # The message of a link: version 1, its flags, its type (64 is external), what is left is its name.
    place = content.index(b"\x01\x08\x40")
    changed = content[: place + 2] + b"\x41" + content[place + 3 :]
    (tmp_path / "a.h5").write_bytes(changed)
    with pytest.raises(InputError, match="link out of the file"):
        read_vectors(tmp_path / "a.h5")


def test_a_second_name_within_the_file_changes_nothing(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["some/train"] = TABLE
        file["alias"] = h5py.SoftLink("/some/train")
        file["some/itself"] = file["some"]
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.h5"), TABLE)


def test_references_to_other_places_are_not_followed(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train"] = TABLE
        file.create_dataset("objects", (1, 1), h5py.ref_dtype)[0, 0] = file["train"].ref
        file.create_dataset("regions", (1, 1), h5py.regionref_dtype)[0, 0] = file["train"].regionref[:2]
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.h5"), TABLE)
    for key in ("objects", "regions"):
        with pytest.raises(InputError, match="is not a table"):
            read_vectors(tmp_path / "a.h5", key=key)


def test_a_chunk_without_bytes_is_refused(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("train", data=TABLE, chunks=(2, 3), compression="gzip", fletcher32=True)
        chunk = file["train"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    # In the list of chunks: bytes of a chunk, filters, first row and column, place of its bytes.
    entry = chunk.size.to_bytes(4, "little") + bytes(4) + bytes(24) + chunk.byte_offset.to_bytes(8, "little")
    place = content.index(entry)
    content[place : place + 4] = bytes(4)
    path.write_bytes(content)
    with pytest.raises(InputError, match="a chunk of 0 bytes"):
        read_vectors(path)


def test_a_filter_that_would_be_loaded_is_refused(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("train", data=TABLE, chunks=(2, 3), compression="lzf")
    np.testing.assert_array_equal(read_vectors(path), TABLE)
    # In the description of a filter its number stands 8 bytes before its name.
    content = bytearray(path.read_bytes())
    place = content.index(b"lzf\0") - 8
    assert int.from_bytes(content[place : place + 2], "little") == 32000
    content[place : place + 2] = (32001).to_bytes(2, "little")
    path.write_bytes(content)
    with pytest.raises(InputError, match="a filter that is not read here"):
        read_vectors(path)


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
