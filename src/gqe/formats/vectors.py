"""Vectors from and to files; the ending of the name says which kind of file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats import bigann, vecs
from gqe.formats.atomic import replacing
from gqe.formats.bigann import read_bigann, write_bigann
from gqe.formats.checks import Array, as_table, existing_file, one_line
from gqe.formats.hdf5 import read_hdf5, write_hdf5
from gqe.formats.matlab import read_matlab
from gqe.formats.numpy_files import read_npy, read_npz, write_npy, write_npz
from gqe.formats.parquet import read_parquet, write_parquet
from gqe.formats.pickled_vectors import read_pickle
from gqe.formats.safetensors_files import read_safetensors
from gqe.formats.vecs import read_vecs, write_vecs

# Files of one array without a name, and files of arrays by name.
_UNNAMED_READERS: dict[str, Callable[[Path], Array]] = {
    ".npy": read_npy,
    **{ending: partial(read_vecs, ending=ending) for ending in vecs.DTYPES},
    **{ending: partial(read_bigann, ending=ending) for ending in bigann.DTYPES},
}
_NAMED_READERS: dict[str, Callable[[Path, str | None], Array]] = {
    ".npz": read_npz,
    ".hdf5": read_hdf5,
    ".h5": read_hdf5,
    ".parquet": read_parquet,
    ".safetensors": read_safetensors,
    ".mat": read_matlab,
    ".pkl": read_pickle,
    ".pickle": read_pickle,
}
_UNNAMED_WRITERS: dict[str, Callable[[Path, Array], None]] = {
    ".npy": write_npy,
    **{ending: partial(write_vecs, ending=ending) for ending in vecs.DTYPES},
    **{ending: partial(write_bigann, ending=ending) for ending in bigann.DTYPES},
}
_NAMED_WRITERS: dict[str, Callable[[Path, Array, str | None], None]] = {
    ".npz": write_npz,
    ".hdf5": write_hdf5,
    ".h5": write_hdf5,
    ".parquet": write_parquet,
}

READABLE_ENDINGS = (*_UNNAMED_READERS, *_NAMED_READERS)
WRITABLE_ENDINGS = (*_UNNAMED_WRITERS, *_NAMED_WRITERS)


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
    if ending in _NAMED_READERS:
        return _NAMED_READERS[ending](found, _checked_key(key))
    if ending not in _UNNAMED_READERS:
        raise InputError(
            f"{path}: unknown ending {ending!r}; vectors are read from {', '.join(READABLE_ENDINGS)}"
        )
    _refuse_key(path, key)
    return _UNNAMED_READERS[ending](found)


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
    if ending in _UNNAMED_WRITERS:
        _refuse_key(path, key)
        write = _UNNAMED_WRITERS[ending]
    else:
        named_writer, name = _NAMED_WRITERS[ending], _checked_key(key)

        def write(temporary: Path, table: Array) -> None:
            named_writer(temporary, table, name)

    try:
        with replacing(path) as temporary:
            write(temporary, table)
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
    if ending in vecs.DTYPES:
        table = read_vecs(Path(source), ending, check_every_row=True)
    write_vectors(target, table)
    return table.shape[0], table.shape[1]


def _ending(path: Path) -> str:
    # big-ann-benchmarks names the first part of a file "base.1B.fbin.crop_nb_10000000".
    return Path(re.sub(r"\.crop_nb_\d+$", "", path.name)).suffix.lower()


def _writable_ending(path: str | os.PathLike[str]) -> str:
    ending = Path(path).suffix.lower()
    if ending in (".mat", ".pkl", ".pickle"):
        raise InputError(f"{path}: {ending} files are read, not written; write .npy or .npz")
    if ending not in WRITABLE_ENDINGS:
        raise InputError(
            f"{path}: unknown ending {ending!r}; vectors are written to {', '.join(WRITABLE_ENDINGS)}"
        )
    return ending


def _checked_key(key: str | None) -> str | None:
    if key is not None and (not isinstance(key, str) or not key or "\0" in key):
        raise InputError(f"key: {key!r} is not a name; give the name of an array")
    return key


def _refuse_key(path: str | os.PathLike[str], key: str | None) -> None:
    if key is not None:
        raise InputError(f"{path}: holds a single array without a name; leave out key={key!r}")
