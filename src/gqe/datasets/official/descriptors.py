"""Descriptors of official pictures, in the layouts people keep them in.

| layout | holds | seen in |
| --- | --- | --- |
| one .mat | `X` (d, n) and `Q` (d, m) | the published descriptors of Radenović et al. |
| one .pkl, .npz, .h5, .safetensors | `db`/`query`, `vecs`/`qvecs`, `database`/`queries`, ... | re-rankers |
| two tables | (n, d) or (d, n) each | EGT, diffusion; any format of `gqe.formats` |
| one table and its names | any order, one name per line in TABLE.txt or TABLE.names.txt | own extraction |

Which axis is which, and which table is which, follows from the known numbers of pictures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats import READABLE_ENDINGS, read_arrays, read_vectors, safe_pickle
from gqe.formats.checks import Array, existing_file, is_table, optional_module, wrap_parse_errors
from gqe.formats.hdf5 import list_datasets
from gqe.formats.matlab import matrix_names

_PAIRS = (
    ("Q", "X"),
    ("query", "db"),
    ("queries", "db"),
    ("qvecs", "vecs"),
    ("queries", "database"),
    ("query", "index"),
    ("query", "gallery"),
)


@dataclass(frozen=True, eq=False)
class DescriptorTable:
    """An array of a file: its key ("" if the file has only one), and the names of its rows where given."""

    path: Path
    key: str
    array: Array
    names: list[str] | None = None

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.path} ({self.key!r})" if self.key else str(self.path)

    def rows(self, count: int, label: str) -> Array:
        """The table as (count, d), transposed if it is stored as (d, count)."""
        rows, columns = self.array.shape
        if rows == count:
            return self.array
        if columns == count:
            return self.array.T
        raise InputError(f"{self.where}: is {rows} x {columns}; {label} has {count} pictures")

    def rows_of(self, names: Sequence[str]) -> Array:
        """The rows of these pictures; folders and endings in names do not count."""
        places = {_picture_name(name): row for row, name in enumerate(self.names or ())}
        missing = [name for name in names if _picture_name(name) not in places]
        if missing:
            raise InputError(
                f"{self.where}: has no row for {missing[0]!r} and {len(missing) - 1} other pictures"
            )
        return self.array[np.array([places[_picture_name(name)] for name in names], np.int64)]


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
    found = [read_tables(path) for path in files] if len(files) <= 2 else []
    if len(files) > 2 or (len(files) == 2 and max(map(len, found)) > 1):
        listed = ", ".join(path.name for path in files[:8])
        raise InputError(f"{label}: {files[0].parent} holds {listed}; choose one: {label}@FILE or @FILE,FILE")
    tables = [table for tables in found for table in tables]
    by_key = {table.key: table for table in tables}
    pair = next((pair for pair in _PAIRS if by_key.keys() >= set(pair)), None)
    if pair is None and (len(tables) == 1 or all(table.names is not None for table in tables)):
        query, database = (_select_by_name(tables, wanted, label) for wanted in (queries, names))
    else:
        if pair is not None:
            query_table, database_table = by_key[pair[0]], by_key[pair[1]]
        else:
            query_table, database_table = _pair_by_size(tables, len(names), len(queries), label)
        query = query_table.rows(len(queries), f"{label} queries")
        database = database_table.rows(len(names), f"{label} database")
    if query.shape[1] != database.shape[1]:
        raise InputError(
            f"{label}: queries have {query.shape[1]} dimensions, the database {database.shape[1]}; "
            "give files of the same network"
        )
    return query, database


def read_single(source: str | None, folder: Path, *, names: Sequence[str], part: str, label: str) -> Array:
    """Read the descriptors of one list of pictures: the table or file called `part`, or the only one.

    Args:
        source: as for `read_pair`.
        folder: the folder of the data set.
        names: names of the n pictures.
        part: "train" or "val".
        label: what to call it in a message.

    Returns:
        (n, d).
    """
    files = find_files(source, folder, label, published=False)
    if len(files) > 1:
        files = [path for path in files if part in path.stem.lower()]
    if len(files) != 1:
        listed = ", ".join(path.name for path in _list_vector_files(folder / "descriptors")[:8])
        raise InputError(
            f"{label}: no single file is called {part!r} among {listed}; choose one: {label}@FILE"
        )
    tables = read_tables(files[0])
    chosen = [table for table in tables if table.key == part] or tables
    if len(chosen) != 1:
        keys = ", ".join(table.key for table in tables)
        raise InputError(f"{files[0]}: holds {keys or 'nothing'}; {label} needs a table called {part!r}")
    return chosen[0].rows(len(names), label) if chosen[0].names is None else chosen[0].rows_of(names)


def find_files(source: str | None, folder: Path, label: str, *, published: bool = True) -> list[Path]:
    """The files meant by a source, see `read_pair`; `published`: whether there are any to download."""
    own = folder / "descriptors"
    if source is None:
        found = _list_vector_files(own)
        if not found:
            get = f"get the published ones with `gqe data get {folder.name}`, or " if published else ""
            raise InputError(f"{label}: no descriptors in {own}; {get}name yours: {label}@FILE")
        return found
    found = []
    for name in (part.strip() for part in source.split(",")):
        path = next((path for path in (Path(name).expanduser(), own / name) if path.exists()), None)
        if path is not None and path.is_dir():
            chosen = _list_vector_files(path)
            if not chosen:
                raise InputError(
                    f"{path}: holds no file of vectors; {label} reads {', '.join(READABLE_ENDINGS)}"
                )
        elif path is not None and path.is_file():
            chosen = [path]
        else:
            chosen = [path for path in _list_vector_files(own) if name and path.name.startswith(name)]
            if not chosen:
                raise InputError(f"{name or label + '@'}: no such file, nor in {own}; check the name")
        found += chosen
    return found


def read_tables(path: Path) -> list[DescriptorTable]:
    """All tables of a file, mapped where the format allows it."""
    path = existing_file(path)
    ending = path.suffix.lower()
    if ending == ".npz":
        arrays: dict[Any, Any] = dict(read_arrays(path))
    elif ending in (".pkl", ".pickle"):
        content = safe_pickle.load(path)
        arrays = content if isinstance(content, dict) else {"": content}
    else:
        arrays = {key: read_vectors(path, key=key or None) for key in _list_keys(path, ending)}
    tables = [
        DescriptorTable(path, key, value)
        for key, value in arrays.items()
        if isinstance(key, str) and isinstance(value, np.ndarray) and is_table(value.shape, value.dtype)
    ]
    if not tables:
        raise InputError(f"{path}: holds no table of numbers; give a file of descriptors")
    for beside in (path.with_suffix(".names.txt"), path.with_suffix(".txt")):
        if len(tables) == 1 and beside.is_file():
            with wrap_parse_errors(beside, "list of names"):
                names = beside.read_text(encoding="utf-8").splitlines()
            array = tables[0].array
            if len(names) not in array.shape:
                raise InputError(
                    f"{path}: is {array.shape}, its list of names has {len(names)} lines; remove or repair it"
                )
            array = array if len(array) == len(names) else array.T
            return [DescriptorTable(path, tables[0].key, array, names)]
    return tables


def _list_vector_files(folder: Path) -> list[Path]:
    """Files of vectors in a folder, or in its folders `query` and `gallery`, by number in their names."""

    def numbers_and_text(path: Path) -> list[tuple[int, str]]:  # part2 before part10
        parts = re.split(r"(\d{1,18})", path.name)
        return [(int(text), "") if text.isdecimal() else (-1, text) for text in parts]

    found = [
        path
        for place in (folder, folder / "query", folder / "gallery")
        if place.is_dir()
        for path in place.iterdir()
        if path.is_file() and path.suffix.lower() in READABLE_ENDINGS and not path.name.startswith(".")
    ]
    return sorted(found, key=numbers_and_text)


def _list_keys(path: Path, ending: str) -> list[str]:
    if ending == ".mat":
        return matrix_names(path)
    if ending in (".h5", ".hdf5"):
        h5py = optional_module("h5py", path.name)
        with wrap_parse_errors(path, f"{ending} file"), h5py.File(path, "r") as file:
            found = list_datasets(path, file)
            return [name for name, item in found.items() if "/" not in name and item.ndim == 2]
    if ending == ".safetensors":
        from safetensors import safe_open

        with wrap_parse_errors(path, ".safetensors file"), safe_open(path, framework="np") as file:
            return list(file.keys())
    return [""]


def _pair_by_size(
    tables: Sequence[DescriptorTable], n: int, m: int, label: str
) -> tuple[DescriptorTable, DescriptorTable]:
    # A dimension can equal a number of pictures; a table that fits as rows goes first.
    fits_queries, fits_database = (
        sorted(
            (table for table in tables if count in table.array.shape),
            key=lambda table: table.array.shape[0] != count,
        )
        for count in (m, n)
    )
    for query in fits_queries[:1]:
        for database in fits_database:
            if database is not query:
                return query, database
    sizes = ", ".join(f"{table.where} {table.array.shape}" for table in tables) or "no table"
    raise InputError(f"{label}: needs tables of {m} queries and {n} pictures, found {sizes}")


def _select_by_name(tables: Sequence[DescriptorTable], wanted: Sequence[str], label: str) -> Array:
    """The rows of some pictures, from the smallest table that has them all."""
    missing = InputError(f"{label}: no descriptors")
    for table in sorted(tables, key=lambda table: len(table.array)):
        if table.names is None:
            raise InputError(
                f"{table.where}: is one table {table.array.shape}; {label} needs queries and database: give "
                f"two files, or the names of its rows in {table.path.with_suffix('.names.txt').name}"
            )
        try:
            return table.rows_of(wanted)
        except InputError as error:
            missing = error
    raise missing


def _picture_name(name: str) -> str:
    last = PurePosixPath(name.strip().replace("\\", "/")).name
    stem, dot, ending = last.rpartition(".")
    return stem if dot and ending.lower() in ("jpg", "jpeg", "png") else last
