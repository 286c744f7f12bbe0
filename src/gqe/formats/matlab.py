"""MATLAB files, read only: level 5 (-v6, -v7) through SciPy, level 7.3 as the HDF5 files they are."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats.checks import Array, as_table, choose_key, explaining, is_table, optional_module
from gqe.formats.hdf5 import dataset

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_NUMBERS = {"double", "single"} | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def read_matlab(path: Path, key: str | None) -> Array:
    """Read a matrix as MATLAB shows it: what is d x n there is (d, n) here, for the caller to transpose."""
    with explaining(path, ".mat file"):
        if is_version_73(path):
            return _read_version_73(path, key)
        scipy_io = require_level_5(path)
        found = {name: kind for name, _, kind in scipy_io.whosmat(path)}
        usable = [name for name, kind in found.items() if kind in _NUMBERS]
        chosen = choose_key(path, key, usable, list(found))
        matrix: Array = np.asarray(scipy_io.loadmat(path, variable_names=[chosen])[chosen])
        return as_table(matrix, f"{path} ({chosen!r})")


def is_version_73(path: Path) -> bool:
    """Whether a .mat file is HDF5 inside, after MATLAB's own 512 bytes or (other programs) from the start."""
    with path.open("rb") as stream:
        start = stream.read(520)
    return start[512:] == _HDF5_SIGNATURE or start[:8] == _HDF5_SIGNATURE


def require_level_5(path: Path) -> Any:
    """Return scipy.io if the file has the header of a level 5 MAT-file.

    SciPy takes a file without it for the headerless level 4, as which any bytes can be read.
    """
    with path.open("rb") as stream:
        header = stream.read(128)
    if header[126:128] not in (b"IM", b"MI"):
        raise InputError(f"{path}: is not a MATLAB file of version 5 or later; save it with -v7")
    return importlib.import_module("scipy.io")  # slow to import, rarely needed


def _read_version_73(path: Path, key: str | None) -> Array:
    h5py = optional_module("h5py", "a MATLAB 7.3 file")
    with h5py.File(path, "r") as file:
        usable = [name for name, item in file.items() if isinstance(item, h5py.Dataset) and _is_matrix(item)]
        everything = [name for name in file if not name.startswith("#")]
        chosen = choose_key(path, key, usable, everything)
        # MATLAB stores columns first, so HDF5 sees every matrix transposed.
        return as_table(dataset(path, file[chosen]).T, f"{path} ({chosen!r})")


def _is_matrix(item: Any) -> bool:
    kind = item.attrs.get("MATLAB_class", b"double")
    name = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    return name in _NUMBERS and item.shape is not None and is_table(item.shape, item.dtype)
