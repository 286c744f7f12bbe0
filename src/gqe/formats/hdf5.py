"""HDF5 in the layout of ann-benchmarks: datasets train, test, neighbors, distances."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from gqe.errors import InputError
from gqe.formats.checks import (
    USUAL_KEYS,
    Array,
    as_table,
    check_growth,
    choose_key,
    is_table,
    map_array,
    optional_module,
    row_blocks,
    wrap_parse_errors,
)

_PURPOSE = "an HDF5 file"
_COPY = "copy the values into one file"
# gzip, shuffle, checksum (Fletcher), LZF: what h5py writes when asked to compress. Others are rare, and their
# decoders trust the file or are loaded as programs.
_FILTERS = {1, 2, 3, 32000}
_CHECKSUM, _CHECKSUM_BYTES = 3, 4


def read_hdf5(path: Path, key: str | None) -> Array:
    """Map a contiguous dataset; one in chunks (every compressed one) lies in pieces and is read whole."""
    h5py = optional_module("h5py", _PURPOSE)
    with wrap_parse_errors(path, "HDF5 file"), h5py.File(path, "r") as file:
        found = list_datasets(path, file)
        _refuse_sparse(path, file, found)
        usable = [
            name
            for name, data in found.items()
            if data.shape is not None and is_table(data.shape, data.dtype)
        ]
        chosen = choose_key(path, key and key.strip("/"), usable, list(found), ("train", *USUAL_KEYS))
        return as_table(read_dataset(path, found[chosen]), f"{path} ({chosen!r})")


def list_datasets(path: Path, file: Any) -> dict[str, Any]:
    """All datasets of an open file by name; a file that has others read is refused.

    HDF5 can name other files on this machine, whose bytes then stand for values, and filters that the
    library loads as programs. Links that are no more than a second name within the file are not followed.
    """
    h5py = optional_module("h5py", _PURPOSE)
    found: dict[str, Any] = {}
    seen = set()
    groups = [("", file)]
    while groups:
        prefix, group = groups.pop()
        for name in group:
            full = f"{prefix}{name}"
            link = group.id.links.get_info(name.encode("utf-8", "surrogateescape"))
            if link.type == h5py.h5l.TYPE_SOFT:
                continue
            if link.type != h5py.h5l.TYPE_HARD:
                raise InputError(f"{path}: {full!r:.60} is a link out of the file; {_COPY}")
            item = group[name]
            if isinstance(item, h5py.Dataset):
                _refuse_foreign(path, full, item)
                found[full] = item
            elif isinstance(item, h5py.Group) and link.u not in seen:
                # A group can lie within itself; `link.u` is its place in the file.
                seen.add(link.u)
                groups.append((f"{full}/", item))
    return dict(sorted(found.items()))


def _refuse_foreign(path: Path, name: str, data: Any) -> None:
    if data.external is not None or data.is_virtual:
        raise InputError(f"{path}: {name!r:.60} keeps its values in other files; {_COPY}")
    if _filters(data) - _FILTERS:
        raise InputError(
            f"{path}: {name!r:.60} is packed by a filter that is not read here; write it with gzip or none"
        )


def _filters(data: Any) -> set[int]:
    properties = data.id.get_create_plist()
    return {properties.get_filter(number)[0] for number in range(properties.get_nfilters())}


def read_dataset(path: Path, data: Any) -> Array:
    """The values of an h5py dataset of `path`: mapped where the file holds them as NumPy would."""
    h5py = optional_module("h5py", _PURPOSE)
    offset = data.id.get_offset()
    # An unusual number type is converted by the library while reading, so its bytes cannot be mapped.
    as_numpy = data.id.get_type() == h5py.h5t.py_create(data.dtype)
    if offset is None or not as_numpy:
        values_at_once = max(data.size, math.prod(data.chunks or ()))
        check_growth(path, values_at_once * data.dtype.itemsize, path.stat().st_size)
        if data.chunks is not None:
            _check_chunks(path, data)
        values: Array = data[...]
        return values
    return map_array(path, data.dtype, data.shape, offset)


def _check_chunks(path: Path, data: Any) -> None:
    """Refuse chunks that the library would read beyond their ends."""
    size = path.stat().st_size
    least = 1 + (_CHECKSUM_BYTES if _CHECKSUM in _filters(data) else 0)

    def check(chunk: Any) -> None:
        if chunk.size < least or not 0 <= chunk.byte_offset <= size - chunk.size:
            raise ValueError(f"a chunk of {chunk.size} bytes at {chunk.byte_offset}")

    data.id.chunk_iter(check)


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


def _refuse_sparse(path: Path, file: Any, found: dict[str, Any]) -> None:
    kinds = {str(file.attrs.get(name, "")).lower() for name in ("type", "distance")}
    if kinds & {"sparse", "jaccard"} or "size_train" in found:
        raise InputError(f"{path}: holds sets of items (sparse, Jaccard), not vectors; give a dense file")
