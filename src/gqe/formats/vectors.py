"""Vectors from and to files; the ending of the name says which kind of file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gqe.errors import InputError
from gqe.formats import safe_pickle
from gqe.formats.atomic import atomic_path
from gqe.formats.checks import (
    Array,
    as_table,
    choose_key,
    existing_file,
    is_table,
    map_array,
    one_line,
    wrap_parse_errors,
)
from gqe.formats.faiss_files import read_faiss
from gqe.formats.hdf5 import read_hdf5, write_hdf5
from gqe.formats.matlab import read_matlab
from gqe.formats.numpy_files import read_npy, read_npz, write_npy, write_npz
from gqe.formats.parquet import read_parquet, write_parquet
from gqe.formats.vecs import BIN_DTYPES, VECS_DTYPES, read_bin, read_vecs, write_bin, write_vecs

_SAFETENSORS_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    **{f"I{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
}


def _read_safetensors(path: Path, key: str | None) -> Array:
    """Map one tensor of a safetensors file. NumPy has no bfloat16: such tensors cannot be chosen."""
    from safetensors import safe_open

    with wrap_parse_errors(path, "safetensors file"):
        with safe_open(path, framework="numpy"):
            pass  # the library checks header, offsets and file size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header: dict[str, Any] = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        usable = [
            name
            for name, item in header.items()
            if item["dtype"] in _SAFETENSORS_DTYPES and len(item["shape"]) == 2
        ]
        chosen = choose_key(path, key, usable, list(header))
        item = header[chosen]
        dtype, offset = _SAFETENSORS_DTYPES[item["dtype"]], 8 + length + item["data_offsets"][0]
        return as_table(map_array(path, dtype, tuple(item["shape"]), offset), f"{path} ({chosen!r})")


def _read_pickle(path: Path, key: str | None) -> Array:
    """Read an array, or one of a dictionary of arrays, without running anything in the pickle."""
    content = safe_pickle.load(path)
    if isinstance(content, np.ndarray):
        _refuse_key(path, key)
        return as_table(content, path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}, not an array or a dictionary of arrays")
    arrays = {name: value for name, value in content.items() if isinstance(name, str)}
    usable = [
        name
        for name, value in arrays.items()
        if isinstance(value, np.ndarray) and is_table(value.shape, value.dtype)
    ]
    chosen = choose_key(path, key, usable, list(arrays))
    return as_table(arrays[chosen], f"{path} ({chosen!r})")


class _Format(NamedTuple):
    """How files of one ending are read and written; `has_keys`: they hold arrays by name."""

    read: Callable[..., Array]
    write: Callable[..., None] | None = None
    has_keys: bool = True


_FORMATS = {
    ".npy": _Format(read_npy, write_npy, has_keys=False),
    **{
        ending: _Format(partial(read_vecs, ending=ending), partial(write_vecs, ending=ending), has_keys=False)
        for ending in VECS_DTYPES
    },
    **{
        ending: _Format(partial(read_bin, ending=ending), partial(write_bin, ending=ending), has_keys=False)
        for ending in BIN_DTYPES
    },
    ".npz": _Format(read_npz, write_npz),
    ".hdf5": _Format(read_hdf5, write_hdf5),
    ".h5": _Format(read_hdf5, write_hdf5),
    ".parquet": _Format(read_parquet, write_parquet),
    ".safetensors": _Format(_read_safetensors),
    ".mat": _Format(read_matlab),
    ".pkl": _Format(_read_pickle),
    ".pickle": _Format(_read_pickle),
    ".faiss": _Format(read_faiss, has_keys=False),
}

READABLE_ENDINGS = tuple(_FORMATS)
WRITABLE_ENDINGS = tuple(ending for ending, format in _FORMATS.items() if format.write is not None)


def read_vectors(path: str | os.PathLike[str], *, key: str | None = None) -> Array:
    """Read a table of vectors; the ending says how.

    | ending | key | memory |
    | --- | --- | --- |
    | .npy, .fvecs, .bvecs, .ivecs, .fbin, .u8bin, .i8bin | none | mapped |
    | .npz | array | mapped; read if compressed |
    | .hdf5, .h5 (ann-benchmarks) | dataset, default "train" | mapped; read if chunked or compressed |
    | .safetensors | tensor | mapped |
    | .parquet | column of lists | read |
    | .mat | matrix, as MATLAB shows it | read; of version 7.3 like HDF5 |
    | .pkl, .pickle (nothing in it is run) | entry of a dictionary | read |
    | .faiss | none | read, with the index around it |

    A mapped array is read-only and takes no memory; its pages are read from the file when they are used. The
    file must stay as it is meanwhile (files written by this package are replaced, never changed).
    The numbers are not checked: `gqe.embeddings` does that.

    Args:
        path: the file.
        key: which array of a file of several. Without it the only table, else the first found of
            "embeddings", "vectors", "database", "queries".

    Returns:
        (n, d) array in the type of the file.

    Raises:
        InputError: the file is missing, broken, of unknown ending, or holds no such table.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "vectors.fvecs"
        >>> write_vectors(path, np.ones((3, 4), np.float32))
        >>> read_vectors(path).shape
        (3, 4)
    """
    found = existing_file(path)
    ending = _ending(found)
    if ending in (".csv", ".tsv", ".txt"):
        comma = ", delimiter=','" if ending == ".csv" else ""
        load = f"np.loadtxt({str(found)!r}, dtype='float32'{comma})"
        told = "sentences go to gqe index build --model; if these are numbers, " if ending == ".txt" else ""
        raise InputError(
            f"{path}: text is not read; {told}convert it once in Python:"
            f" np.save({str(found.with_suffix('.npy'))!r}, {load})"
        )
    if ending not in _FORMATS:
        raise InputError(
            f"{path}: unknown ending {ending!r}; vectors are read from {', '.join(READABLE_ENDINGS)}"
        )
    return _FORMATS[ending].read(found, *_key_arguments(path, ending, key))


def write_vectors(path: str | os.PathLike[str], array: Any, *, key: str | None = None) -> None:
    """Write a table of vectors; the ending says how.

    The file is written beside its target, flushed and renamed: an existing file, with all it holds, is
    replaced at once or, after any error, not at all. Rows are written in blocks, so a mapped table may have
    any size.

    Args:
        path: a name ending in .npy, .npz, .fvecs, .bvecs, .ivecs, .fbin, .u8bin, .i8bin, .hdf5, .h5 or
            .parquet.
        array: (n, d) real numbers. .npy, .npz and HDF5 keep their type. The files of float32 take any float
            and whole numbers of up to 16 bits, the files of whole numbers only types that fit exactly.
        key: name of the array in .npz (default "embeddings"), of the dataset in HDF5 (default "train"), of
            the column in Parquet (default "vector", beside the row number "id").

    Raises:
        InputError: the array is no table of numbers, the file cannot hold it, or it cannot be written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "vectors.npz"
        >>> write_vectors(path, np.eye(2), key="queries")
        >>> read_vectors(path, key="queries")
        memmap([[1., 0.],
                [0., 1.]])
    """
    ending = _writable_ending(path)
    try:
        table = np.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"array: cannot be used as a NumPy array: {one_line(error)}; give an (n, d) array"
        ) from error
    as_table(table, "array")
    arguments, write = _key_arguments(path, ending, key), _FORMATS[ending].write
    assert write is not None  # the ending is a writable one
    try:
        with atomic_path(path) as temporary:
            write(temporary, table, *arguments)
    except InputError:
        raise
    except (OSError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise InputError(
            f"{path}: could not be written: {one_line(error)}; the old file is untouched"
        ) from error


def convert(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, key: str | None = None
) -> tuple[int, int]:
    """Write the vectors of one file into a file of another kind.

    A source that is mapped (see `read_vectors`) is copied in blocks and may be larger than memory. In files
    of the TEXMEX kinds (.fvecs and so on) every row's dimension is checked on the way.

    Args:
        source: the file to read.
        target: the file to write; replaced if it exists.
        key: which array of `source`, where it holds several.

    Returns:
        (n, d), the size of the table.

    Raises:
        InputError: as `read_vectors` and `write_vectors`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_vectors(folder / "a.npy", np.ones((3, 4), np.float32))
        >>> convert(folder / "a.npy", folder / "b.fbin")
        (3, 4)
    """
    _writable_ending(target)  # before a long read
    table = read_vectors(source, key=key)
    ending = _ending(Path(source))
    if ending in VECS_DTYPES:
        table = read_vecs(Path(source), ending, check_every_row=True)
    write_vectors(target, table)
    return table.shape[0], table.shape[1]


def _ending(path: Path) -> str:
    # big-ann-benchmarks names the first part of a file "base.1B.fbin.crop_nb_10000000".
    return Path(re.sub(r"\.crop_nb_\d+$", "", path.name)).suffix.lower()


def _writable_ending(path: str | os.PathLike[str]) -> str:
    ending = Path(path).suffix.lower()
    if ending in (".mat", ".pkl", ".pickle", ".faiss"):
        raise InputError(f"{path}: {ending} files are read, not written; write .npy or .npz")
    if ending not in WRITABLE_ENDINGS:
        raise InputError(
            f"{path}: unknown ending {ending!r}; vectors are written to {', '.join(WRITABLE_ENDINGS)}"
        )
    return ending


def _key_arguments(path: str | os.PathLike[str], ending: str, key: str | None) -> tuple[str | None, ...]:
    """What the reader or writer of an ending takes beside the file: (key,), or nothing."""
    if not _FORMATS[ending].has_keys:
        _refuse_key(path, key)
        return ()
    if key is not None and (not isinstance(key, str) or not key or "\0" in key):
        raise InputError(f"key: {key!r} is not a name; give the name of an array")
    return (key,)


def _refuse_key(path: str | os.PathLike[str], key: str | None) -> None:
    if key is not None:
        raise InputError(f"{path}: holds a single array without a name; leave out key={key!r}")
