"""Vectors in a pickle, read only: an array, or a dictionary of arrays by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gqe.errors import InputError
from gqe.formats import safe_pickle
from gqe.formats.checks import Array, as_table, choose_key, is_table


def read_pickle(path: Path, key: str | None) -> Array:
    """Read a table from a pickle without running anything in it."""
    content = safe_pickle.load(path)
    if isinstance(content, np.ndarray):
        if key is not None:
            raise InputError(f"{path}: holds a single array without a name; leave out key={key!r}")
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
