"""Safetensors, read only: named tensors behind a JSON header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gqe.formats.checks import Array, as_table, choose_key, explaining, mapped

_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    **{f"I{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
}


def read_safetensors(path: Path, key: str | None) -> Array:
    """Map one tensor of a safetensors file. NumPy has no bfloat16: such tensors cannot be chosen."""
    from safetensors import safe_open

    with explaining(path, "safetensors file"):
        with safe_open(path, framework="numpy"):
            pass  # the library checks header, offsets and file size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header: dict[str, Any] = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        usable = [
            name for name, item in header.items() if item["dtype"] in _DTYPES and len(item["shape"]) == 2
        ]
        chosen = choose_key(path, key, usable, list(header))
        item = header[chosen]
        offset = 8 + length + item["data_offsets"][0]
        return as_table(
            mapped(path, _DTYPES[item["dtype"]], tuple(item["shape"]), offset), f"{path} ({chosen!r})"
        )
