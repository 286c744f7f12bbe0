"""Vectors in Parquet files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gqe.errors import InputError
from gqe.formats import parquet, read_vectors, write_vectors

TABLE = np.arange(12, dtype="f4").reshape(4, 3)


def save(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    "value", [pa.float16(), pa.float32(), pa.float64(), pa.int8(), pa.uint16(), pa.int64()]
)
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda value: pa.list_(value, 3)])
def test_lists_of_numbers(tmp_path, kind, value):
    dtype = value.to_pandas_dtype()
    path = save(tmp_path / "a.parquet", id=[1, 2, 3, 4], v=pa.array(list(TABLE.astype(dtype)), kind(value)))
    found = read_vectors(path)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, TABLE)


def test_the_layout_written(tmp_path):
    write_vectors(tmp_path / "a.parquet", TABLE.astype("f8"))
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["id", "vector"]
    assert table.schema.field("id").type == pa.int64()
    assert pa.types.is_fixed_size_list(table.schema.field("vector").type)
    assert table.schema.field("vector").type.value_type == pa.float32()
    assert table["id"].to_pylist() == [0, 1, 2, 3]
    assert table["vector"].to_pylist() == TABLE.tolist()


def test_many_row_groups_and_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 7)
    array = np.arange(3000, dtype="f4").reshape(1000, 3)
    pq.write_table(pa.table({"v": list(array)}), tmp_path / "a.parquet", row_group_size=99)
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.parquet"), array)


def test_which_column_is_taken(tmp_path):
    lists = TABLE.tolist()
    path = save(tmp_path / "a.parquet", a=lists, b=(TABLE + 1).tolist(), name=list("wxyz"))
    np.testing.assert_array_equal(read_vectors(path, key="b"), TABLE + 1)
    with pytest.raises(InputError, match="choose one with key: 'a', 'b'"):
        read_vectors(path)
    with pytest.raises(InputError, match="'name' is not a table"):
        read_vectors(path, key="name")
    with pytest.raises(InputError, match="no table of numbers"):
        read_vectors(save(path, name=[["a"], ["b"]], n=[1, 2]))
    with pytest.raises(InputError, match="'id' is the column of row numbers"):
        write_vectors(path, TABLE, key="id")


@pytest.mark.parametrize("batch", [2, 1000])
@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([[1.0, 2], [3], [4, 5]], "row 1 has 1 values, the first row has 2"),
        ([[1.0, 2], [3, 4], [5]], "row 2 has 1 values, the first row has 2"),
        ([[1.0], [2], None], "row 2 is null"),
        ([[1.0, 2], [3, None]], "row 1 holds a null"),
        ([[], []], "holds no vectors"),
        ([], "holds no vectors"),
    ],
)
def test_rows_that_are_not_vectors(tmp_path, monkeypatch, rows, reason, batch):
    monkeypatch.setattr(parquet, "_BATCH_ROWS", batch)
    path = save(tmp_path / "a.parquet", v=pa.array(rows, pa.list_(pa.float32())))
    with pytest.raises(InputError, match=reason):
        read_vectors(path)


def test_nulls_in_fixed_size_lists(tmp_path):
    path = save(tmp_path / "a.parquet", v=pa.array([[1.0, 2], None, [3, 4]], pa.list_(pa.float32(), 2)))
    with pytest.raises(InputError, match="row 1 is null"):
        read_vectors(path)
