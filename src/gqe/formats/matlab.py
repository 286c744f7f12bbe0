"""MATLAB files, read only: level 5 (-v6, -v7), and level 7.3 as the HDF5 files they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gqe.formats.checks import Array, as_table, choose_key, explaining, is_table, optional_module
from gqe.formats.hdf5 import dataset, datasets_of
from gqe.formats.matlab5 import NUMBERS, opened_level_5

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def read_matlab(path: Path, key: str | None) -> Array:
    """Read a matrix as MATLAB shows it: what is d x n there is (d, n) here, for the caller to transpose."""
    with explaining(path, ".mat file"):
        if is_version_73(path):
            return _read_version_73(path, key)
        with opened_level_5(path) as file:
            usable = [name for name, variable in file.variables.items() if variable.kind in NUMBERS]
            chosen = choose_key(path, key, usable, list(file.variables))
            return as_table(file.numbers(chosen), f"{path} ({chosen!r})")


def matrix_names(path: Path) -> list[str]:
    """Names of the matrices of numbers in a file of either level."""
    with explaining(path, ".mat file"):
        if not is_version_73(path):
            with opened_level_5(path) as file:
                return [name for name, v in file.variables.items() if v.kind in NUMBERS and len(v.shape) == 2]
        with optional_module("h5py", "a MATLAB 7.3 file").File(path, "r") as file:
            return _matrices(datasets_of(path, file))


def is_version_73(path: Path) -> bool:
    """Whether a .mat file is HDF5 inside, after MATLAB's own 512 bytes or (other programs) from the start."""
    with path.open("rb") as stream:
        start = stream.read(520)
    return start[512:] == _HDF5_SIGNATURE or start[:8] == _HDF5_SIGNATURE


def _read_version_73(path: Path, key: str | None) -> Array:
    with optional_module("h5py", "a MATLAB 7.3 file").File(path, "r") as file:
        found = datasets_of(path, file)
        everything = [name for name in found if not name.startswith("#")]
        chosen = choose_key(path, key, _matrices(found), everything)
        # MATLAB stores columns first, so HDF5 sees every matrix transposed.
        return as_table(dataset(path, found[chosen]).T, f"{path} ({chosen!r})")


def _matrices(found: dict[str, Any]) -> list[str]:
    """Variables are what lies at the top; deeper down are the parts of cells and structures."""
    return [name for name, item in found.items() if "/" not in name and _is_matrix(item)]


def _is_matrix(item: Any) -> bool:
    kind = item.attrs.get("MATLAB_class", b"double")
    name = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    return name in NUMBERS and item.shape is not None and is_table(item.shape, item.dtype)
