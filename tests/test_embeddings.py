"""The one door for vectors: what may come in, what it becomes, what is refused and how."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gqe
from gqe import embeddings
from gqe.embeddings import as_table, blocks, like, rows


def refused(vectors, message, **options):
    with pytest.raises(gqe.InputError, match=message) as caught:
        as_table(vectors, "photos", **options)
    text = str(caught.value)
    assert text.startswith("photos: ")
    assert "\n" not in text


def test_rows_become_unit_vectors():
    table = as_table(np.array([[3.0, 4.0], [0.0, -2.0], [1.0, 0.0]]))
    assert table.dtype == torch.float32
    np.testing.assert_allclose(table.numpy(), [[0.6, 0.8], [0, -1], [1, 0]], atol=1e-7)


def test_unit_float32_is_shared_not_copied(random_unit):
    array = random_unit(10, 7)
    assert as_table(array).data_ptr() == array.ctypes.data
    tensor = torch.from_numpy(array)
    assert as_table(tensor).data_ptr() == tensor.data_ptr()


def test_the_input_is_never_changed():
    array = np.array([[3.0, 4.0]], dtype=np.float32)
    as_table(array)
    assert array.tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_memory_map_stays_on_disk(tmp_path, random_unit, dtype):
    np.save(tmp_path / "v.npy", random_unit(100, 16).astype(dtype))
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    table = as_table(mapped)
    assert table.data_ptr() == mapped.ctypes.data
    assert table.dtype == torch.from_numpy(np.zeros(1, dtype)).dtype
    assert gqe.knn(mapped, 3).ids.shape == (100, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d", [1, 2, 3, 64, 2048])
def test_rounding_to_16_bits_alone_causes_no_copy(random_unit, dtype, d):
    stored = torch.from_numpy(random_unit(200, d)).to(dtype)
    assert as_table(stored).data_ptr() == stored.data_ptr()


@pytest.mark.parametrize(
    "dtype",
    ["f2", "f4", "f8", "g", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">f2", ">f4", ">f8", ">i4"],
)
def test_every_real_type_gives_the_same_rows(dtype):
    plain = np.array([[3, 4, 0], [1, 2, 2], [7, 0, 0]])
    expected = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    table = as_table(plain.astype(dtype))
    assert table.dtype == torch.float32
    np.testing.assert_allclose(table.numpy(), expected, atol=1e-7)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int8, torch.int64, torch.uint8, torch.uint16, torch.bfloat16]
)
def test_every_real_tensor_type(dtype):
    table = as_table(torch.tensor([[3, 4], [0, 2]]).to(dtype))
    assert table.dtype == torch.float32
    np.testing.assert_allclose(table.numpy(), [[0.6, 0.8], [0, 1]], atol=1e-7)


def test_views_of_every_layout(random_unit):
    array = random_unit(8, 6)
    with_dimension_header = np.zeros((8, 7), dtype=np.float32)  # as an .fvecs file lies in memory
    with_dimension_header[:, 1:] = array
    records = np.zeros(8, dtype=[("label", "i1"), ("vector", "f4", (6,))])  # rows 25 bytes apart
    records["vector"] = array
    views = {
        "fvecs": with_dimension_header[:, 1:],
        "odd stride": records["vector"],
        "reversed": array[::-1][::-1],
        "fortran": np.asfortranarray(array),
        "every second": np.repeat(array, 2, axis=0)[::2],
        "read-only": np.broadcast_to(array[:, None], (8, 1, 6))[:, 0],
        "list": array.tolist(),
        "list of rows": list(array),
        "list of tensors": [torch.from_numpy(row) for row in array],
    }
    for name, view in views.items():
        np.testing.assert_allclose(as_table(view).numpy(), array, atol=1e-7, err_msg=name)
    assert as_table(views["fvecs"]).data_ptr() == with_dimension_header.ctypes.data + 4
    np.testing.assert_array_equal(as_table(array[::-1, ::-1]).numpy(), array[::-1, ::-1])
    for name, view in views.items():
        np.testing.assert_array_equal(gqe.knn(view, 2).ids, gqe.knn(array, 2).ids, err_msg=name)


def test_a_tensor_that_requires_a_gradient_is_detached():
    assert not as_table(torch.eye(3, requires_grad=True)).requires_grad


def test_no_rows():
    assert as_table(np.empty((0, 5), np.float32)).shape == (0, 5)


@pytest.mark.parametrize("scale", [1e30, 3e38, 1e-25, 1e-38, 1e-44])
def test_extreme_float32_lengths_are_normalised(scale):
    row = np.array([[1, 1, 0.5]], dtype=np.float64) * scale
    with np.errstate(under="ignore"):
        row = row.astype(np.float32)
    expected = row.astype(np.float64) / np.linalg.norm(row.astype(np.float64))
    np.testing.assert_allclose(as_table(row).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e300, 1e-300, 1e60, 1e-60])
def test_float64_beyond_the_range_of_float32(scale):
    np.testing.assert_allclose(as_table(np.array([[3.0, 4.0]]) * scale).numpy(), [[0.6, 0.8]], atol=1e-7)


def test_int64_extremes():
    extreme = np.array([[2**63 - 1, 0], [-(2**63), 0]])
    np.testing.assert_allclose(as_table(extreme).numpy(), [[1, 0], [-1, 0]])


@given(st.lists(st.sampled_from([1e-25, 0.5, 0.9995, 1.0, 1.0005, 2.0, 1e30]), min_size=1, max_size=6))
def test_what_a_row_becomes_does_not_depend_on_the_others(lengths):
    directions = np.random.default_rng(0).normal(size=(len(lengths), 5))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    array = (directions * np.array(lengths)[:, None]).astype(np.float32)
    together = as_table(array).numpy()
    singly = np.concatenate([as_table(array[i : i + 1]).numpy() for i in range(len(array))])
    np.testing.assert_array_equal(together, singly)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=2e-5)


def test_half_precision_rows_do_not_depend_on_the_others(random_unit):
    half = random_unit(6, 50).astype(np.float16)
    with_a_long_one = half.copy()
    with_a_long_one[5] *= 2
    np.testing.assert_array_equal(as_table(with_a_long_one)[:5].numpy(), as_table(half[:5]).float().numpy())


def test_a_door_passed_twice_changes_nothing(random_unit):
    once = as_table(random_unit(50, 33) * 7)
    assert as_table(once).data_ptr() == once.data_ptr()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "row 70 contains NaN"),
        (np.inf, "row 70 contains an infinite value"),
        (-np.inf, "row 70 contains an infinite value"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("block_bytes", [100, 32 << 20])
def test_bad_values_are_named_by_row(monkeypatch, random_unit, value, message, dtype, block_bytes):
    monkeypatch.setattr(embeddings.blocks, "__defaults__", (block_bytes,))
    array = random_unit(90, 9).astype(dtype)
    array[70, 4] = value
    array[80] = np.nan
    refused(array, message)
    refused(torch.from_numpy(array), message)


def test_the_first_bad_row_is_named_beside_merely_extreme_ones():
    array = np.full((9, 3), 1e30, dtype=np.float32)
    array[4], array[6] = 0, np.nan
    refused(array, "row 4 is all zeros")
    array[2, 1], array[2, 2] = np.inf, np.nan
    refused(array, "row 2 contains NaN")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
def test_a_row_of_zeros_is_named(dtype):
    array = np.ones((5, 3), dtype=dtype)
    array[3] = 0
    refused(array, "row 3 is all zeros and has no direction")


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ones(4, np.float32), re.escape("expected shape (n, d), got (4,); give one vector as x[None]")),
        (np.ones((2, 3, 4), np.float32), re.escape("expected shape (n, d), got (2, 3, 4)")),
        (np.float32(3), re.escape("expected shape (n, d), got ()")),
        (np.ones((4, 0), np.float32), "no dimensions"),
        ([], "expected shape"),
        ([[1.0, 2.0], [1.0]], "vectors of equal length"),
        (np.ones((2, 2), bool), "bool are not embeddings; use float32"),
        (torch.ones(2, 2, dtype=torch.bool), "bool values are not embeddings"),
        (np.ones((2, 2), complex), "complex128 are not embeddings"),
        (torch.ones(2, 2, dtype=torch.complex64), "complex64 values are not embeddings"),
        (np.ones((2, 2), object), "object are not embeddings"),
        (np.array([["a", "b"]]), "are not embeddings"),
        (np.array([["2020-01-01"]], dtype="M8[D]"), "are not embeddings"),
        (None, "are not embeddings"),
        ("photos.npy", "are not embeddings"),
        ({"a": 1}, "are not embeddings"),
        (np.ma.masked_equal(np.eye(3), 1), "masked values"),
        (torch.eye(3).to_sparse(), "sparse"),
    ],
)
def test_what_is_no_table_is_refused(vectors, message):
    refused(vectors, message)


def test_a_masked_array_that_masks_nothing_is_an_array():
    assert as_table(np.ma.array(np.eye(3))).shape == (3, 3)


def test_a_wrong_dimension_names_both():
    refused(
        np.eye(3), "dimension 3 does not match the database's 4; use embeddings from the same network", dim=4
    )
    assert as_table(np.eye(3), dim=3).shape == (3, 3)


def test_many_extreme_rows_take_no_time():
    array = np.full((200_000, 4), 1e-25, dtype=np.float32)
    start = time.perf_counter()
    as_table(array)
    assert time.perf_counter() - start < 5


def test_like_gives_back_the_kind_that_came():
    result = torch.ones(2, 2)
    assert isinstance(like(result, np.zeros(1)), np.ndarray)
    assert isinstance(like(result, [[1.0]]), np.ndarray)
    assert isinstance(like(result, torch.zeros(1)), torch.Tensor)


def test_rows_are_gathered_as_float32(random_unit):
    table = torch.from_numpy(random_unit(6, 4)).to(torch.float16)
    gathered = rows(table, torch.tensor([[0, 5], [3, 3]]), torch.device("cpu"))
    assert gathered.dtype == torch.float32
    assert gathered.shape == (2, 2, 4)
    assert torch.equal(gathered[1, 0], table[3].float())


@given(st.integers(0, 50), st.integers(0, 20), st.integers(1, 60))
def test_blocks_cover_all_rows_once_within_the_budget(n, row_bytes, budget):
    parts = list(blocks(n, row_bytes, budget))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n))
    for part in parts:
        size = part.stop - part.start
        assert size == 1 or size * row_bytes <= budget
