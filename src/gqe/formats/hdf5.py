"""HDF5 in the layout of ann-benchmarks: datasets train, test, neighbors, distances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gqe.errors import InputError
from gqe.formats.blocks import row_blocks
from gqe.formats.checks import (
    USUAL_KEYS,
    Array,
    as_table,
    choose_key,
    explaining,
    is_table,
    mapped,
    optional_module,
)

_PURPOSE = "an HDF5 file"


def read_hdf5(path: Path, key: str | None) -> Array:
    """Map a contiguous dataset; one in chunks (every compressed one) lies in pieces and is read whole."""
    h5py = optional_module("h5py", _PURPOSE)
    with explaining(path, "HDF5 file"), h5py.File(path, "r") as file:
        _refuse_sparse(path, file)
        found: dict[str, Any] = {}
        file.visititems(
            lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None
        )
        usable = [
            name
            for name, data in found.items()
            if data.shape is not None and is_table(data.shape, data.dtype)
        ]
        chosen = choose_key(path, key and key.strip("/"), usable, list(found), ("train", *USUAL_KEYS))
        return as_table(dataset(path, found[chosen]), f"{path} ({chosen!r})")


def dataset(path: Path, data: Any) -> Array:
    """The values of an h5py dataset of `path`: mapped where the file holds them as NumPy would."""
    h5py = optional_module("h5py", _PURPOSE)
    offset = data.id.get_offset()
    # An unusual number type is converted by the library while reading, so its bytes cannot be mapped.
    as_numpy = data.id.get_type() == h5py.h5t.py_create(data.dtype)
    if offset is None or data.external is not None or not as_numpy:
        values: Array = data[...]
        return values
    return mapped(path, data.dtype, data.shape, offset)


def write_hdf5(path: Path, array: Array, key: str | None) -> None:
    """Write a table as one contiguous dataset, "train" unless `key` names it."""
    h5py = optional_module("h5py", _PURPOSE)
    with h5py.File(path, "w") as file:
        file.attrs.update(type="dense", distance="angular", dimension=array.shape[1])
        file.attrs["point_type"] = "float" if array.dtype.kind == "f" else "int"
        data = file.create_dataset(key or "train", array.shape, array.dtype)
        start = 0
        for block in row_blocks(array, array.dtype):
            data[start : start + len(block)] = block
            start += len(block)


def _refuse_sparse(path: Path, file: Any) -> None:
    kinds = {str(file.attrs.get(name, "")).lower() for name in ("type", "distance")}
    if kinds & {"sparse", "jaccard"} or "size_train" in file:
        raise InputError(f"{path}: holds sets of items (sparse, Jaccard), not vectors; give a dense file")
