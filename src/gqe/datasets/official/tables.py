"""Tables in files of several layouts: which files there are, what they hold, which way round they lie."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gqe.errors import InputError
from gqe.formats import READABLE_ENDINGS, read_arrays, read_vectors, safe_pickle
from gqe.formats.checks import existing_file, explaining, is_table, optional_module
from gqe.formats.hdf5 import list_datasets
from gqe.formats.matlab import matrix_names

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Table:
    """An array of a file: its key ("" if the file has only one), and the names of its rows where given."""

    path: Path
    key: str
    array: Array
    names: list[str] | None = None

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.path} ({self.key!r})" if self.key else str(self.path)


def find_files(source: str | None, folder: Path, label: str, *, published: bool = True) -> list[Path]:
    """The files meant by a source; see `gqe.datasets.official.descriptors.read_pair`."""
    if source is None:
        found = candidates(folder / "descriptors")
        if not found:
            get = f"get the published ones with `gqe data get {folder.name}`, or " if published else ""
            raise InputError(
                f"{label}: no descriptors in {folder / 'descriptors'}; {get}name yours: {label}@FILE"
            )
        return found
    return [path for name in source.split(",") for path in _named(name.strip(), folder, label)]


def candidates(folder: Path) -> list[Path]:
    """Files of vectors in a folder, or in its folders `query` and `gallery`, by number in their names."""
    if not folder.is_dir():
        return []
    found = [
        path
        for place in (folder, folder / "query", folder / "gallery")
        if place.is_dir()
        for path in place.iterdir()
        if path.is_file() and path.suffix.lower() in READABLE_ENDINGS and not path.name.startswith(".")
    ]
    return sorted(found, key=lambda path: _natural(path.name))


def tables_of(path: Path) -> list[Table]:
    """All tables of a file, mapped where the format allows it."""
    path = existing_file(path)
    ending = path.suffix.lower()
    if ending == ".npz":
        arrays: dict[str, Any] = dict(read_arrays(path))
    elif ending in (".pkl", ".pickle"):
        content = safe_pickle.load(path)
        arrays = content if isinstance(content, dict) else {"": content}
    else:
        keys = _keys(path, ending)
        arrays = {key: read_vectors(path, key=key or None) for key in keys}
    tables = {
        key: value
        for key, value in arrays.items()
        if isinstance(key, str) and isinstance(value, np.ndarray) and is_table(value.shape, value.dtype)
    }
    if not tables:
        raise InputError(f"{path}: holds no table of numbers; give a file of descriptors")
    names = _row_names(path) if len(tables) == 1 else None
    return [_with_names(path, key, array, names) for key, array in tables.items()]


def one_table(table: Table, count: int, label: str) -> Array:
    """A table as (count, d), turned if it lies the other way round."""
    rows, columns = table.array.shape
    if rows == count:
        return table.array
    if columns == count:
        return table.array.T
    raise InputError(f"{table.where}: is {rows} x {columns}; {label} has {count} pictures")


def _named(name: str, folder: Path, label: str) -> list[Path]:
    for path in (Path(name).expanduser(), folder / "descriptors" / name):
        if path.is_dir():
            found = candidates(path)
            if not found:
                raise InputError(
                    f"{path}: holds no file of vectors; {label} reads {', '.join(READABLE_ENDINGS)}"
                )
            return found
        if path.is_file():
            return [path]
    alike = [path for path in candidates(folder / "descriptors") if name and path.name.startswith(name)]
    if not alike:
        raise InputError(
            f"{name or label + '@'}: no such file, nor in {folder / 'descriptors'}; check the name"
        )
    return alike


def _keys(path: Path, ending: str) -> list[str]:
    if ending == ".mat":
        return matrix_names(path)
    if ending in (".h5", ".hdf5"):
        h5py = optional_module("h5py", f"{path.name}")
        with explaining(path, f"{ending} file"), h5py.File(path, "r") as file:
            found = list_datasets(path, file)
            return [name for name, item in found.items() if "/" not in name and item.ndim == 2]
    if ending == ".safetensors":
        safetensors = optional_module("safetensors", f"{path.name}")
        with explaining(path, ".safetensors file"), safetensors.safe_open(path, framework="np") as file:
            return list(file.keys())
    return [""]


def _row_names(path: Path) -> list[str] | None:
    for beside in (path.with_suffix(".names.txt"), path.with_suffix(".txt")):
        if beside.is_file():
            with explaining(beside, "list of names"):
                return beside.read_text(encoding="utf-8").splitlines()
    return None


def _with_names(path: Path, key: str, array: Array, names: list[str] | None) -> Table:
    if names is None:
        return Table(path, key, array)
    if len(names) not in array.shape:
        raise InputError(
            f"{path}: is {array.shape}, its list of names has {len(names)} lines; remove or repair it"
        )
    return Table(path, key, array if len(array) == len(names) else array.T, names)


def _natural(name: str) -> list[tuple[int, str]]:
    """part2 before part10."""
    return [(int(text), "") if text.isdecimal() else (-1, text) for text in re.split(r"(\d{1,18})", name)]
