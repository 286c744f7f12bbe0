"""What is known about the items beside their embeddings: columns in Parquet, and filters on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import DamagedError, InputError, StorageError
from gqe.filters import filter_mask, parse_filter
from gqe.formats.checks import existing_file, one_line, optional_module, wrap_parse_errors

_PURPOSE = "metadata"

# What `filter` can be: values or bounds by column, see `gqe.filters`, or a function of the table of all items
# to one truth value each.
Filter = Mapping[str, Any] | Callable[[Any], Any]


def as_metadata(metadata: Any, count: int) -> Any:
    """Metadata as a pyarrow Table of `count` rows: from one, a dictionary of columns, or a Parquet file."""
    pa = optional_module("pyarrow", _PURPOSE)
    if isinstance(metadata, str | os.PathLike):
        path = existing_file(metadata)
        with wrap_parse_errors(path, "Parquet file"):
            table = optional_module("pyarrow.parquet", _PURPOSE).read_table(path)
    elif isinstance(metadata, pa.Table):
        table = metadata
    elif isinstance(metadata, Mapping):
        try:
            table = pa.table(dict(metadata))
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise InputError(f"metadata: not columns of one type and length ({one_line(error)})") from None
    else:
        raise InputError("metadata: expected columns by name, a pyarrow Table or the path of a Parquet file")
    if table.num_rows != count:
        raise InputError(f"metadata: {table.num_rows} rows for {count} vectors; give one for each")
    return table.combine_chunks()


def conform_metadata(metadata: Any, count: int, schema: Any) -> Any:
    """Metadata of new items, brought to the columns of the index."""
    pa = optional_module("pyarrow", _PURPOSE)
    if metadata is None:
        raise InputError(f"metadata: this index has the columns {', '.join(schema.names)}; give them")
    table = as_metadata(metadata, count)
    if set(table.column_names) != set(schema.names):
        raise InputError(
            f"metadata: columns {', '.join(table.column_names)}, the index has {', '.join(schema.names)}"
        )
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"metadata: values do not fit the index's columns ({one_line(error)})") from None


def write_metadata(path: Path, table: Any) -> None:
    """One Parquet file."""
    optional_module("pyarrow.parquet", _PURPOSE).write_table(table, path)


def metadata_bytes(table: Any) -> bytes:
    """A table as bytes that differ if anything in it does."""
    pa = optional_module("pyarrow", _PURPOSE)
    content = pa.BufferOutputStream()
    with optional_module("pyarrow.ipc", _PURPOSE).new_stream(content, table.schema) as writer:
        writer.write_table(table)
    return bytes(content.getvalue())


def concat_metadata(first: Any, second: Any) -> Any:
    """The rows of two tables of equal columns."""
    return optional_module("pyarrow", _PURPOSE).concat_tables([first, second]).combine_chunks()


def read_metadata(contents: list[np.ndarray[Any, Any]]) -> Any:
    """All rows of Parquet files, each as bytes."""
    pa, pq = optional_module("pyarrow", _PURPOSE), optional_module("pyarrow.parquet", _PURPOSE)
    try:
        tables = [pq.read_table(pa.BufferReader(pa.py_buffer(content))) for content in contents]
        return pa.concat_tables(tables).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system; pyarrow's own has none
            raise StorageError.of(error, "metadata", "read") from error
        raise DamagedError(f"metadata: damaged ({one_line(error)}); run `gqe index verify`") from None


def allowed_by(chosen: Filter, table: Any) -> np.ndarray[Any, Any]:
    """(n,) bool, which rows of a metadata table a filter lets through."""
    if isinstance(chosen, Mapping):
        return filter_mask(parse_filter(chosen, scalars=False), table)
    if not callable(chosen):
        raise InputError(
            f"filter: expected {{column: value}} or a function of the table, got {type(chosen).__name__}"
        )
    answer = chosen(table)
    try:
        marks = np.asarray(answer)
    except (ValueError, TypeError):
        marks = np.empty(0)
    if marks.dtype != bool and marks.dtype == object and all(m is None or isinstance(m, bool) for m in marks):
        marks = marks == True  # noqa: E712  # unknown (None) is not allowed
    if marks.shape != (table.num_rows,) or marks.dtype != bool:
        raise InputError(
            f"filter: the function must give {table.num_rows} truth values, got {marks.dtype} {marks.shape}"
        )
    return marks
