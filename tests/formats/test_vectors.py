"""Reading, writing and converting vectors, over all kinds of files."""

from __future__ import annotations

import resource
import sys
import time
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gqe.errors import InputError
from gqe.formats import READABLE_ENDINGS, WRITABLE_ENDINGS, convert, read_vectors, write_vectors

TYPES = {
    **dict.fromkeys((".npy", ".npz", ".hdf5", ".h5"), ("f2", "f4", "f8", "i1", "u1", "i4", "i8", "u4")),
    **dict.fromkeys((".fvecs", ".fbin", ".parquet"), ("f4",)),
    **dict.fromkeys((".bvecs", ".u8bin"), ("u1",)),
    ".i8bin": ("i1",),
    ".ivecs": ("i4",),
}
KINDS = [(ending, dtype) for ending, dtypes in TYPES.items() for dtype in dtypes]


def is_mapped(array: np.ndarray) -> bool:
    base: object = array
    while base is not None:
        if isinstance(base, np.memmap):
            return True
        base = getattr(base, "base", None)
    return False


def test_every_writable_ending_is_tried_here():
    assert set(TYPES) == set(WRITABLE_ENDINGS)
    assert set(WRITABLE_ENDINGS) < set(READABLE_ENDINGS)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back(tmp_path_factory, data):
    ending, dtype = data.draw(st.sampled_from(KINDS))
    fewest = 1 if ending.endswith("vecs") else 0
    shape = data.draw(st.tuples(st.integers(fewest, 9), st.integers(1, 9)))
    array = data.draw(hnp.arrays(dtype, shape))
    # The layout in memory must not matter: rows, columns, or every second element of something larger.
    layout = data.draw(st.sampled_from(["C", "F", "strided"]))
    if layout == "strided":
        given_array = np.repeat(np.repeat(array, 2, axis=0), 3, axis=1)[::2, ::3]
    else:
        given_array = np.asarray(array, order=layout)
    path = tmp_path_factory.mktemp("round") / f"vectors{ending}"
    write_vectors(path, given_array)
    found = read_vectors(path)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()  # bytes, so that nan counts too
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", [e for e in WRITABLE_ENDINGS if e != ".parquet"])
def test_large_tables_are_mapped_not_read(tmp_path, ending):
    dtype = TYPES[ending][-1] if ending[-3:] in ("bin", "ecs") else "f4"
    array = np.arange(60).reshape(12, 5).astype(dtype)
    write_vectors(tmp_path / f"a{ending}", array)
    found = read_vectors(tmp_path / f"a{ending}")
    assert is_mapped(found)
    assert found.flags.aligned
    assert not found.flags.writeable
    np.testing.assert_array_equal(found[3:7, 1:], array[3:7, 1:])


def test_three_gigabytes_of_npy_are_opened_at_once(tmp_path):
    path, rows, dimension = tmp_path / "big.npy", 750_000, 1024
    with path.open("wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dimension)}
        np.lib.format.write_array_header_1_0(stream, header)
        start = stream.tell()
        stream.seek(start + 4 * dimension * 700_000)
        stream.write(np.arange(dimension, dtype="<f4").tobytes())
        stream.truncate(start + 4 * dimension * rows)
    began = time.perf_counter()
    tracemalloc.start()
    table = read_vectors(path)
    row = np.array(table[700_000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert table.nbytes > 3e9
    np.testing.assert_array_equal(row, np.arange(dimension))
    assert peak < 1e6
    assert time.perf_counter() - began < 2


def test_three_gigabytes_of_fvecs_are_opened_at_once(tmp_path):
    path, rows, dimension = tmp_path / "big.fvecs", 760, 1_000_000
    row_bytes = 4 + 4 * dimension
    with path.open("wb") as stream:
        for row in range(rows):
            stream.seek(row * row_bytes)
            stream.write(np.array([dimension], "<i4").tobytes())
        stream.seek(700 * row_bytes + 4)
        stream.write(np.arange(dimension, dtype="<f4").tobytes())
        stream.truncate(rows * row_bytes)
    began = time.perf_counter()
    table = read_vectors(path)
    assert table.shape == (rows, dimension)
    assert table.nbytes > 3e9
    assert is_mapped(table)
    np.testing.assert_array_equal(table[700], np.arange(dimension))
    assert not table[699].any()
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize("target", [".npy", ".npz", ".fvecs", ".fbin", ".hdf5"])
@pytest.mark.parametrize("source", [".npy", ".fvecs"])
def test_convert_streams(tmp_path, source, target):
    array = np.arange(96 * 1024 * 128, dtype="f4").reshape(-1, 128)  # 50 MB, three blocks
    write_vectors(tmp_path / f"a{source}", array)
    tracemalloc.start()
    size = convert(tmp_path / f"a{source}", tmp_path / f"b{target}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == array.shape
    assert peak < 40e6
    np.testing.assert_array_equal(read_vectors(tmp_path / f"b{target}"), array)


def test_convert_chooses_by_key_and_may_replace_its_source(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, database=np.zeros((2, 3)), queries=np.ones((1, 3)))
    assert convert(path, tmp_path / "q.parquet", key="queries") == (1, 3)
    np.testing.assert_array_equal(read_vectors(tmp_path / "q.parquet"), np.ones((1, 3)))
    assert convert(path, path, key="queries") == (1, 3)
    np.testing.assert_array_equal(read_vectors(path, key="embeddings"), np.ones((1, 3)))


def test_convert_refuses_its_target_before_it_reads(tmp_path):
    with pytest.raises(InputError, match=r"b\.mat: \.mat files are read, not written"):
        convert(tmp_path / "absent.npy", tmp_path / "b.mat")


def test_floats_are_narrowed_and_small_integers_widened(tmp_path):
    for dtype in ("f2", "f8", "u1", "i2", ">f4", ">f8"):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        for ending in (".fvecs", ".fbin", ".parquet"):
            write_vectors(tmp_path / f"a{ending}", array)
            found = read_vectors(tmp_path / f"a{ending}")
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, array)


def test_big_endian_is_kept_by_value(tmp_path):
    array = np.arange(6).reshape(2, 3).astype(">f8")
    for ending in (".npy", ".npz", ".hdf5"):
        write_vectors(tmp_path / f"a{ending}", array)
        np.testing.assert_array_equal(read_vectors(tmp_path / f"a{ending}"), array)


@pytest.mark.parametrize(
    ("ending", "dtype"),
    [
        (".bvecs", "f4"),
        (".bvecs", "i1"),
        (".u8bin", "i8"),
        (".i8bin", "u1"),
        (".fvecs", "i8"),
        (".ivecs", "f4"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(tmp_path, ending, dtype):
    with pytest.raises(InputError, match=rf"{ending} files hold .*convert it"):
        write_vectors(tmp_path / f"a{ending}", np.ones((2, 2), dtype))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".fvecs", ".bvecs", ".ivecs"])
def test_files_without_a_header_cannot_hold_no_rows(tmp_path, ending):
    with pytest.raises(InputError, match=r"without rows; write \.npy"):
        write_vectors(tmp_path / f"a{ending}", np.ones((0, 3), TYPES[ending][0]))
    assert not list(tmp_path.iterdir())


def test_a_value_beyond_float32_is_refused_not_made_infinite(tmp_path):
    with pytest.raises(InputError, match="too large for float32"):
        write_vectors(tmp_path / "a.fvecs", np.array([[1.0, 1e300]]))
    assert not list(tmp_path.iterdir())


def test_infinite_and_nan_values_are_no_concern_of_files(tmp_path):
    array = np.array([[np.inf, np.nan, -np.inf]])
    write_vectors(tmp_path / "a.fvecs", array)
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.fvecs"), array)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.ones(3), "1 axes"),
        (np.ones((1, 2, 3)), "3 axes"),
        (np.ones((2, 0)), "no columns"),
        (np.array([["a"]]), "not real numbers"),
        (np.ones((2, 2), complex), "not real numbers"),
        (np.ones((2, 2), bool), "not real numbers"),
        (np.array([[None]]), "not real numbers"),
        ([[1, 2], [3]], "cannot be used as a NumPy array"),
    ],
)
def test_only_tables_of_numbers_are_written(tmp_path, array, reason):
    with pytest.raises(InputError, match=reason):
        write_vectors(tmp_path / "a.npy", array)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".mat", ".pkl", ".pickle", ".txt", "", ".safetensors"])
def test_other_endings_are_not_written(tmp_path, ending):
    with pytest.raises(InputError, match=r"\.npy"):
        write_vectors(tmp_path / f"a{ending}", np.ones((2, 2)))
    assert not list(tmp_path.iterdir())


def test_an_unknown_ending_names_the_known_ones(tmp_path):
    path = tmp_path / "a.xyz"
    path.write_text("1,2")
    with pytest.raises(InputError) as caught:
        read_vectors(path)
    assert all(ending in str(caught.value) for ending in READABLE_ENDINGS)
    assert str(path) in str(caught.value)


def test_endings_in_capitals_and_cropped_bigann_names(tmp_path):
    write_vectors(tmp_path / "A.NPY", np.ones((2, 3)))
    assert read_vectors(tmp_path / "A.NPY").shape == (2, 3)
    write_vectors(tmp_path / "base.fbin", np.ones((2, 3)))
    (tmp_path / "base.fbin").rename(tmp_path / "base.1B.fbin.crop_nb_10000000")
    assert read_vectors(tmp_path / "base.1B.fbin.crop_nb_10000000").shape == (2, 3)


def test_a_key_is_refused_where_nothing_has_a_name(tmp_path):
    for ending in (".npy", ".fvecs", ".fbin"):
        path = tmp_path / f"a{ending}"
        with pytest.raises(InputError, match="leave out key"):
            write_vectors(path, np.ones((1, 2)), key="x")
        assert not path.exists()
        write_vectors(path, np.ones((1, 2)))
        with pytest.raises(InputError, match="leave out key"):
            read_vectors(path, key="x")


@pytest.mark.parametrize("ending", [".npz", ".hdf5", ".parquet"])
def test_a_key_names_the_array(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    write_vectors(path, np.ones((1, 2)), key="my vectors")
    assert read_vectors(path, key="my vectors").shape == (1, 2)
    assert read_vectors(path).shape == (1, 2)
    with pytest.raises(InputError, match="holds nothing named 'other'; choose one of 'my vectors'"):
        read_vectors(path, key="other")
    for bad in ("", "a\0b", 3):
        with pytest.raises(InputError, match="is not a name"):
            write_vectors(path, np.ones((1, 2)), key=bad)
        with pytest.raises(InputError, match="is not a name"):
            read_vectors(path, key=bad)


def test_missing_folders_and_special_files(tmp_path):
    for path, reason in [
        (tmp_path / "absent.npy", "no such file"),
        (tmp_path, "is a folder"),
        ("/dev/zero", "not a regular file"),
        ("a\0.npy", "no such file|cannot be opened"),
        ("x" * 5000 + ".npy", "cannot be opened"),
        (None, "cannot be opened"),
    ]:
        with pytest.raises(InputError, match=reason):
            read_vectors(path)
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        read_vectors(tmp_path / "folder.npy")
    with pytest.raises(InputError, match="is a folder"):
        write_vectors(tmp_path / "folder.npy", np.ones((1, 1)))
    with pytest.raises(InputError, match="does not exist; create it"):
        write_vectors(tmp_path / "absent" / "a.npy", np.ones((1, 1)))
    with pytest.raises(InputError, match="cannot be written"):
        write_vectors("a\0.npy", np.ones((1, 1)))


@pytest.mark.parametrize("ending", WRITABLE_ENDINGS)
def test_a_full_disk_leaves_the_old_file(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    array = np.ones((4, 3), TYPES[ending][0])
    write_vectors(path, array)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = np.random.default_rng(0).integers(0, 100, (3000, 100)).astype(TYPES[ending][0])
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(InputError, match=rf"a\{ending}: (no space left|could not be written)"):
            write_vectors(path, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_missing_optional_package_says_what_to_install(tmp_path, monkeypatch):
    for ending, package in [(".hdf5", "h5py"), (".parquet", "pyarrow")]:
        path = tmp_path / f"a{ending}"
        write_vectors(path, np.ones((1, 2)))
        with monkeypatch.context() as patch:
            for module in [name for name in sys.modules if name.partition(".")[0] == package]:
                patch.setitem(sys.modules, module, None)
            with pytest.raises(InputError, match=rf"{package}: pip install 'gqe\[files\]'"):
                read_vectors(path)


def test_torch_tensors_are_written(tmp_path):
    torch = pytest.importorskip("torch")
    write_vectors(tmp_path / "a.npy", torch.ones(2, 3))
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.npy"), np.ones((2, 3)))
    with pytest.raises(InputError, match="cannot be used as a NumPy array"):
        write_vectors(tmp_path / "b.npy", torch.ones(2, 3, dtype=torch.bfloat16))


def test_others_read_what_is_written(tmp_path):
    faiss_order = np.arange(6, dtype="f4").reshape(2, 3)
    write_vectors(tmp_path / "a.npz", faiss_order, key="queries")
    with np.load(tmp_path / "a.npz") as file:
        np.testing.assert_array_equal(file["queries"], faiss_order)
    write_vectors(tmp_path / "a.npy", faiss_order)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), faiss_order)
    write_vectors(tmp_path / "a.fvecs", faiss_order)
    assert (tmp_path / "a.fvecs").read_bytes() == b"".join(
        np.int32(3).tobytes() + row.tobytes() for row in faiss_order
    )
    write_vectors(tmp_path / "a.fbin", faiss_order)
    assert (tmp_path / "a.fbin").read_bytes() == np.array([2, 3], "u4").tobytes() + faiss_order.tobytes()
    write_vectors(tmp_path / "a.hdf5", faiss_order)
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert file.attrs["distance"] == "angular"
        assert file.attrs["dimension"] == 3
        np.testing.assert_array_equal(file["train"], faiss_order)


def test_real_descriptors_are_mapped():
    path = Path(__file__).parents[3] / "shared/benchmarks/roxford5k/oxford_features.fvecs"
    if not path.exists():
        pytest.skip("the folder ../shared/benchmarks with the real descriptors is absent")
    table = read_vectors(path)
    assert table.shape == (5063, 128)
    assert is_mapped(table)
    assert np.isfinite(table).all()


@pytest.mark.parametrize(("name", "content"), [("in/a.csv", "1,2\n3,4\n"), ("a.txt", "1 2\n3 4\n")])
def test_text_is_refused_with_a_line_that_converts_it(tmp_path, monkeypatch, name, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match="convert it once in Python") as caught:
        read_vectors(name)
    exec(str(caught.value).partition("in Python: ")[2], {"np": np})
    assert read_vectors(Path(name).with_suffix(".npy")).tolist() == [[1, 2], [3, 4]]
    assert ("gqe index build --model" in str(caught.value)) == name.endswith(".txt")  # sentences, perhaps
