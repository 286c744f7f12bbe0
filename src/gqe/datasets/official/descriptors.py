"""Descriptors of official pictures, in the layouts people keep them in.

| layout | holds | seen in |
| --- | --- | --- |
| one .mat | `X` (d, n) and `Q` (d, m) | the published descriptors of Radenović et al. |
| one .pkl, .npz, .h5, .safetensors | `db`/`query`, `vecs`/`qvecs`, `database`/`queries`, ... | re-rankers |
| two tables | (n, d) or (d, n) each | EGT, diffusion; any format of `gqe.formats` |
| one table and its names | any order, one name a line in TABLE.txt or TABLE.names.txt | own extraction |

Which axis is which, and which table is which, follows from the known numbers of pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gqe.datasets.official.tables import Table, candidates, find_files, one_table, tables_of
from gqe.errors import InputError

Array = NDArray[Any]

_PAIRS = (
    ("Q", "X"),
    ("query", "db"),
    ("queries", "db"),
    ("qvecs", "vecs"),
    ("queries", "database"),
    ("query", "index"),
    ("query", "gallery"),
)


def read_pair(
    source: str | None, folder: Path, *, names: Sequence[str], queries: Sequence[str], label: str
) -> tuple[Array, Array]:
    """Read the descriptors of queries and database.

    Args:
        source: a file, two files separated by a comma, a folder, a name within `folder`/descriptors, or None
            for what lies in `folder`/descriptors.
        folder: the folder of the data set.
        names: names of the n database pictures.
        queries: names of the m query pictures.
        label: what to call the data set in a message.

    Returns:
        (m, d) and (n, d), mapped where the files can be.

    Raises:
        InputError: no or too many files, or tables that do not fit the data set.
    """
    files = find_files(source, folder, label)
    found = [tables_of(path) for path in files] if len(files) <= 2 else []
    if len(files) > 2 or (len(files) == 2 and max(map(len, found)) > 1):
        listed = ", ".join(path.name for path in files[:8])
        raise InputError(f"{label}: {files[0].parent} holds {listed}; choose one: {label}@FILE or @FILE,FILE")
    tables = [table for tables in found for table in tables]
    named = _named_pair(tables)
    if named is not None:
        query = one_table(named[0], len(queries), f"{label} queries")
        database = one_table(named[1], len(names), f"{label} database")
    elif len(tables) == 1 or all(table.names is not None for table in tables):
        query, database = (_by_names(tables, wanted, label) for wanted in (queries, names))
    else:
        query, database = _pair_by_size(tables, len(names), len(queries), label)
    if query.shape[1] != database.shape[1]:
        raise InputError(
            f"{label}: queries have {query.shape[1]} dimensions, the database {database.shape[1]}; "
            "give files of the same network"
        )
    return query, database


def read_single(
    source: str | None, folder: Path, *, names: Sequence[str], part: str, label: str, published: bool = True
) -> Array:
    """Read the descriptors of one list of pictures: the table or file called `part`, or the only one.

    Args:
        source: as for `read_pair`.
        folder: the folder of the data set.
        names: names of the n pictures.
        part: "train" or "val".
        label: what to call it in a message.
        published: whether descriptors of these pictures are published, for the message.

    Returns:
        (n, d).
    """
    files = find_files(source, folder, label, published=published)
    so_called = [path for path in files if part in path.stem.lower()]
    if len(files) > 1:
        files = so_called
    if len(files) != 1:
        listed = ", ".join(path.name for path in candidates(folder / "descriptors")[:8])
        raise InputError(
            f"{label}: no single file is called {part!r} among {listed}; choose one: {label}@FILE"
        )
    tables = tables_of(files[0])
    chosen = [table for table in tables if table.key == part] or tables
    if len(chosen) != 1:
        keys = ", ".join(table.key for table in tables)
        raise InputError(f"{files[0]}: holds {keys or 'nothing'}; {label} needs a table called {part!r}")
    table = chosen[0]
    order = table.names
    if order is not None:
        return table.array[_places(order, names, table.where)]
    return one_table(table, len(names), label)


def _named_pair(tables: Sequence[Table]) -> tuple[Table, Table] | None:
    by_key = {table.key: table for table in tables}
    for query, database in _PAIRS:
        if query in by_key and database in by_key:
            return by_key[query], by_key[database]
    return None


def _pair_by_size(tables: Sequence[Table], n: int, m: int, label: str) -> tuple[Array, Array]:
    fitting = {count: [table for table in tables if count in table.array.shape] for count in (m, n)}
    # A dimension can equal a number of pictures; a table that fits as rows goes first.
    for count, fits in fitting.items():
        fits.sort(key=lambda table: table.array.shape[0] != count)
    query = fitting[m][0] if fitting[m] else None
    rest = [table for table in fitting[n] if table is not query]
    if query is None or not rest:
        sizes = ", ".join(f"{table.where} {table.array.shape}" for table in tables) or "no table"
        raise InputError(f"{label}: needs tables of {m} queries and {n} pictures, found {sizes}")
    return one_table(query, m, f"{label} queries"), one_table(rest[0], n, f"{label} database")


def _by_names(tables: Sequence[Table], wanted: Sequence[str], label: str) -> Array:
    """The rows of some pictures, from the smallest table that has them all."""
    missing = None
    for table in sorted(tables, key=lambda table: len(table.array)):
        if table.names is None:
            raise InputError(
                f"{table.where}: is one table {table.array.shape}; {label} needs queries and database: give "
                f"two files, or the names of its rows in {table.path.with_suffix('.names.txt').name}"
            )
        try:
            return table.array[_places(table.names, wanted, table.where)]
        except InputError as error:
            missing = error
    raise missing if missing is not None else InputError(f"{label}: no descriptors")


def _places(order: Sequence[str], names: Sequence[str], where: str) -> NDArray[np.int64]:
    """Row of each name; folders and endings of pictures do not count."""
    rows = {_plain(name): row for row, name in enumerate(order)}
    missing = [name for name in names if _plain(name) not in rows]
    if missing:
        raise InputError(f"{where}: has no row for {missing[0]!r} and {len(missing) - 1} other pictures")
    return np.array([rows[_plain(name)] for name in names], np.int64)


def _plain(name: str) -> str:
    last = PurePosixPath(name.strip().replace("\\", "/")).name
    stem, dot, ending = last.rpartition(".")
    return stem if dot and ending.lower() in ("jpg", "jpeg", "png") else last
