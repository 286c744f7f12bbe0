"""Parquet: vectors as a column of lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats.checks import (
    Array,
    check_growth,
    check_stored_as,
    choose_key,
    optional_module,
    row_blocks,
    wrap_parse_errors,
)

_PURPOSE = "a Parquet file"
_BATCH_ROWS = 16_384


def read_parquet(path: Path, key: str | None) -> Array:
    """Read a column of equally long lists of numbers; the file itself is mapped while it is decoded."""
    pq = optional_module("pyarrow.parquet", _PURPOSE)
    with wrap_parse_errors(path, "Parquet file"), pq.ParquetFile(path, memory_map=True) as file:
        schema = file.schema_arrow
        usable = [field.name for field in schema if _value_dtype(field.type) is not None]
        name = choose_key(path, key, usable, list(schema.names))
        column = schema.field(name).type
        dtype = _value_dtype(column)
        assert dtype is not None  # choose_key returns a usable column
        size = path.stat().st_size
        check_growth(path, _values(file.metadata, name) * dtype.itemsize, size)
        table: Array | None = None
        start = 0
        for batch in file.iter_batches(_BATCH_ROWS, columns=[name]):
            rows = _rows(
                f"{path} ({name!r})", batch.column(name), start, table.shape[1] if table is not None else None
            )
            if table is None:
                check_growth(path, file.metadata.num_rows * rows.shape[1] * dtype.itemsize, size)
                table = np.empty((file.metadata.num_rows, rows.shape[1]), dtype)
            table[start : start + len(rows)] = rows
            start += len(rows)
        if table is None:
            table = np.empty((0, getattr(column, "list_size", 0)), dtype)
        if start != len(table) or table.shape[1] == 0:
            raise InputError(f"{path}: {name!r} holds no vectors; write it again with at least one")
        return table


def write_parquet(path: Path, array: Array, key: str | None) -> None:
    """Write the columns id (int64, 0..n-1) and vector (fixed-size lists of float32)."""
    pa, pq = optional_module("pyarrow", _PURPOSE), optional_module("pyarrow.parquet", _PURPOSE)
    check_stored_as(array, np.dtype("f4"), ".parquet")
    name = key or "vector"
    if name == "id":
        raise InputError("key: 'id' is the column of row numbers; name the vectors otherwise")
    vector = pa.list_(pa.field("element", pa.float32(), nullable=False), array.shape[1])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field(name, vector, nullable=False)])
    # A dictionary of distinct values only costs time with floats.
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        start = 0
        for block in row_blocks(array, np.dtype("f4")):
            ids = pa.array(np.arange(start, start + len(block)))
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), type=vector)
            writer.write_batch(pa.record_batch([ids, vectors], schema=schema))
            start += len(block)


def _values(metadata: Any, name: str) -> int:
    """How many values a column promises."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    return sum(chunk.num_values for chunk in chunks if chunk.path_in_schema.partition(".")[0] == name)


def _value_dtype(column: Any) -> np.dtype[Any] | None:
    """The NumPy type of the numbers in a list column, None for any other column."""
    types = optional_module("pyarrow.types", _PURPOSE)
    if not (types.is_list(column) or types.is_large_list(column) or types.is_fixed_size_list(column)):
        return None
    value = column.value_type
    return np.dtype(value.to_pandas_dtype()) if types.is_floating(value) or types.is_integer(value) else None


def _rows(source: str, lists: Any, start: int, dimension: int | None) -> Array:
    """The lists of one batch as (rows, d); `start` is the number of their first row."""
    pc = optional_module("pyarrow.compute", _PURPOSE)
    if lists.null_count:
        row = start + int(np.flatnonzero(np.asarray(lists.is_null()))[0])
        raise InputError(f"{source}: row {row} is null; every row needs a vector")
    lengths = np.asarray(pc.list_value_length(lists))
    dimension = int(lengths[0]) if dimension is None else dimension
    wrong = np.flatnonzero(lengths != dimension)
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"{source}: row {start + row} has {int(lengths[row])} values, the first row has {dimension}; "
            "all vectors must have the same dimension"
        )
    values = lists.flatten()
    if values.null_count:
        row = start + int(np.flatnonzero(np.asarray(values.is_null()))[0]) // dimension
        raise InputError(f"{source}: row {row} holds a null; every value must be a number")
    return np.asarray(values).reshape(len(lengths), dimension)
