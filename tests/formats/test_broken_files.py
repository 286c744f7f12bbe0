"""No broken file is read as if it were whole, and none raises anything but InputError."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from gqe.errors import InputError
from gqe.formats import READABLE_ENDINGS, read_vectors, write_vectors

TABLE = (np.arange(15).reshape(5, 3) + 100).astype("f4")
VALUES = TABLE[:4].tobytes()


def written(dtype: str = "f4") -> Callable[[Path], None]:
    return lambda path: write_vectors(path, TABLE.astype(dtype))


def chunked_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("train", data=TABLE, chunks=(2, 3), compression="gzip", fletcher32=True)


def matlab_73(path: Path) -> None:
    with h5py.File(path, "w", userblock_size=512) as file:
        file["X"] = TABLE.T
        file["X"].attrs["MATLAB_class"] = np.bytes_("single")


MAKERS: dict[str, Callable[[Path], None]] = {
    "a.npy": written(),
    "a.npz": written(),
    "compressed.npz": lambda path: np.savez_compressed(path, a=TABLE, b=np.arange(3)),
    "a.fvecs": written(),
    "a.bvecs": written("u1"),
    "a.ivecs": written("i4"),
    "a.fbin": written(),
    "a.u8bin": written("u1"),
    "a.i8bin": written("i1"),
    "a.hdf5": written(),
    "chunked.h5": chunked_hdf5,
    "a.parquet": written(),
    "lists.parquet": lambda path: pq.write_table(pa.table({"v": TABLE.tolist()}), path),
    "a.safetensors": lambda path: save_file({"a": TABLE}, path),
    "a.mat": lambda path: scipy.io.savemat(path, {"X": TABLE}),
    "compressed.mat": lambda path: scipy.io.savemat(path, {"X": TABLE}, do_compression=True),
    "matlab73.mat": matlab_73,
    "a.pkl": lambda path: path.write_bytes(pickle.dumps({"vecs": TABLE}, protocol=2)) and None,
    "a.pickle": lambda path: path.write_bytes(pickle.dumps(TABLE, protocol=5)) and None,
}


def test_every_readable_ending_is_tried_here():
    # .faiss files are parsed by faiss alone, which does not promise to survive every damage.
    assert {Path(name).suffix for name in MAKERS} == set(READABLE_ENDINGS) - {".faiss"}


SAME_BYTES = ({".fvecs", ".ivecs"}, {".u8bin", ".i8bin"}, {".pkl", ".pickle"})


def assert_one_line(error: pytest.ExceptionInfo[InputError] | InputError, path: Path) -> None:
    text = str(error.value if isinstance(error, pytest.ExceptionInfo) else error)
    assert str(path) in text
    assert "\n" not in text
    assert ";" in text or ":" in text.replace(str(path), "")


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_cut_anywhere_is_refused(tmp_path, name):
    path = tmp_path / name
    MAKERS[name](path)
    whole = path.read_bytes()
    table = np.array(read_vectors(path))
    np.testing.assert_array_equal(table, TABLE)
    row_bytes = 4 + 3 * table.itemsize
    # Cutting with truncate keeps one file open for reading only; libraries never see a stale copy.
    for length in range(len(whole) - 1, -1, -1):
        with path.open("r+b") as stream:
            stream.truncate(length)
        try:
            found = np.array(read_vectors(path))
        except InputError as error:
            assert_one_line(error, path)
        else:
            if name.endswith("vecs"):  # has no header: cut between two rows it is a shorter file
                assert length % row_bytes == 0
                np.testing.assert_array_equal(found, TABLE[: length // row_bytes])
            else:  # only bytes after the data may be missing
                np.testing.assert_array_equal(found, TABLE)
                assert name == "a.mat"


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "content", [b"\0", b"\0" * 600, b"garbage " * 100, b"\xff" * 600, b"PK\x03\x04" + b"\0" * 99]
)
def test_a_file_of_another_kind_is_refused(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_vectors(path)
    assert_one_line(caught, path)


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_of_one_kind_under_the_name_of_another_is_refused(tmp_path, name):
    for other in MAKERS:
        if Path(name).suffix in (".hdf5", ".h5", ".mat") and other in (
            "a.hdf5",
            "chunked.h5",
            "matlab73.mat",
        ):
            continue  # all three are HDF5
        if {Path(name).suffix, Path(other).suffix} in SAME_BYTES:
            continue
        if Path(name).suffix == Path(other).suffix:
            continue
        path = tmp_path / other
        MAKERS[other](path)
        moved = path.rename(tmp_path / f"moved{Path(name).suffix}")
        with pytest.raises(InputError) as caught:
            read_vectors(moved)
        assert_one_line(caught, moved)
        moved.unlink()


FUZZED = [name for name in MAKERS if Path(name).suffix not in (".hdf5", ".h5", ".parquet", ".mat")]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(FUZZED), changes=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1)
)
def test_changed_bytes_raise_nothing_but_input_error(tmp_path, name, changes):
    path = tmp_path / name
    MAKERS[name](path)
    content = bytearray(path.read_bytes())
    for place, value in changes:
        content[place % len(content)] = value
    path.write_bytes(content)
    try:
        found = read_vectors(path)
    except InputError as error:
        assert_one_line(error, path)
    else:
        assert found.ndim == 2
        assert found.dtype.kind in "fiu"
        assert found.nbytes <= len(content)


def npy(shape: str, descr: str = "'<f4'", data: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (64 - (len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (npy("(5, 3)", data=VALUES), "promises 5 x 3 values"),
        (npy("(4, 3)", data=VALUES[:-1]), "promises 4 x 3 values"),
        (npy(f"({10**30}, 3)", data=VALUES), "promises"),
        (npy("(-4, 3)", data=VALUES), "its header gives the size"),
        (npy("(-4, -3)", data=VALUES), "its header gives the size"),
        (npy("(12,)", data=VALUES), "1 axes"),
        (npy("()", data=VALUES), "0 axes"),
        (npy("(12, 0)"), "no columns"),
        (npy("(4, 3)", "'|O'", pickle.dumps([1] * 12)), "Python objects"),
        (npy("(4, 3)", "[('x', '|O')]", pickle.dumps([1] * 12)), "Python objects"),
        (npy("(4, 3)", "'<U1'", VALUES), "not real numbers"),
        (npy("(4, 3)", "'|b1'", VALUES), "not real numbers"),
        (npy("(4, 3)", "'|V4'", VALUES), "not real numbers"),
        (npy("4, 3", "__import__('os').system('x')", VALUES), "not a readable .npy file"),
        (npy("(4, 'x')", data=VALUES), "not a readable .npy file"),
        (b"\x93NUMPY\x03\x00" + npy("(4, 3)", data=VALUES)[8:], "named fields"),
        (b"\x93NUMPY\x09\x00" + npy("(4, 3)", data=VALUES)[8:], "named fields|not a readable"),
    ],
)
def test_npy_headers(tmp_path, content, reason):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason) as caught:
        read_vectors(path)
    assert_one_line(caught, path)


def vecs(*rows: list[float]) -> bytes:
    return b"".join(np.array([len(row)], "<i4").tobytes() + np.array(row, "<f4").tobytes() for row in rows)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.fvecs", vecs([1, 2], [3, 4, 5], [6, 7]), "end 4 bytes into row 3"),
        ("a.fvecs", vecs([1, 2], [3, 4, 5], [6], [8, 9]), "row 1 has the dimension 3, row 0 has 2"),
        ("a.fvecs", np.array([-3, 0, 0, 0], "<i4").tobytes(), "dimension -3"),
        ("a.fvecs", np.array([0, 0, 0, 0], "<i4").tobytes(), "dimension 0"),
        ("a.fvecs", b"\x02\x00\x00", "dimension"),
        ("a.bvecs", b"\x02\x00\x00\x00ab\x03\x00\x00\x00cd", "row 1 has the dimension 3"),
        (
            "a.fbin",
            np.array([5, 3], "<u4").tobytes() + VALUES,
            "promises 5 rows of 3 .* has 56 bytes",
        ),
        (
            "a.fbin",
            np.array([3, 3], "<u4").tobytes() + VALUES,
            "promises 3 rows of 3 .* has 56 bytes",
        ),
        (
            "a.fbin",
            np.array([2**32 - 1, 2**32 - 1], "<u4").tobytes() + VALUES,
            "promises 4294967295",
        ),
        ("a.u8bin", np.array([3, 0], "<u4").tobytes(), "no columns"),
        ("a.i8bin", b"\x01\x00\x00\x00\x02", "not a readable .i8bin file"),
    ],
)
def test_headers_of_vecs_and_bin_files(tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason) as caught:
        read_vectors(path)
    assert_one_line(caught, path)


@pytest.mark.parametrize("name", MAKERS)
def test_an_empty_file_is_refused(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(InputError, match="is empty"):
        read_vectors(tmp_path / name)


def huge_npz(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy("(30000, 1000)") + bytes(120_000_000))


def long_npz(path: Path) -> None:
    """A small array, and behind it what would be unpacked for nothing."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy("(4, 3)", data=VALUES) + bytes(1_000_000))


def lying_npz(path: Path) -> None:
    """Sizes in the list of members that its bytes do not have."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy(f"({2**38}, 3)", data=VALUES))
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x01\x02")
    content[place + 24 : place + 28] = b"\xfe\xff\xff\xff"
    path.write_bytes(content)


def huge_mat(path: Path) -> None:
    scipy.io.savemat(path, {"X": np.zeros((30000, 1000), "f4")}, do_compression=True)


@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        # 4 EiB of nothing: chunks never written take no space
        ("a.h5", lambda path: hdf5_of_nothing(path, (2**40, 2**20), (1024, 1024)), "promises"),
        (
            "b.h5",
            lambda path: hdf5_of_nothing(path, (16, 16), (2**15, 2**14)),
            "promises",
        ),
        ("a.npz", huge_npz, "promises 1200"),
        ("b.npz", long_npz, "promises 176 bytes and holds 1000176"),
        ("c.npz", lying_npz, "promises"),
        ("a.mat", huge_mat, "promises 1200"),
        ("a.parquet", lambda path: pq.write_table(repeated(2**25), path), "promises 134217728 bytes"),
    ],
)
def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path, name, make, reason):
    path = tmp_path / name
    make(path)
    assert path.stat().st_size < 2_000_000
    with pytest.raises(InputError, match=reason) as caught:
        read_vectors(path)
    assert_one_line(caught, path)


def hdf5_of_nothing(path: Path, shape: tuple[int, int], chunks: tuple[int, int]) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("train", shape, "f4", chunks=chunks, maxshape=(None, None))


def repeated(count: int) -> pa.Table:
    """The same number over and over, which Parquet stores once."""
    numbers = pa.array(np.zeros(count, "f4"))
    return pa.table({"v": pa.FixedSizeListArray.from_arrays(numbers, 64)})


def test_safetensors_with_a_header_of_lies(tmp_path):
    path = tmp_path / "a.safetensors"
    for shape, offsets in [([4, 4], [0, 48]), ([4, 3], [0, 4800]), ([4, 3], [-8, 40]), ([4, 3], [8, 56])]:
        header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + VALUES)
        with pytest.raises(InputError, match="not a readable safetensors file"):
            read_vectors(path)
