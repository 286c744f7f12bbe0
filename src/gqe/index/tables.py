"""Embeddings as they are stored: float32, float16 or int8, looking like a torch tensor to the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import as_tensor
from gqe.errors import InputError
from gqe.index.rows import Rows, as_bytes
from gqe.transfer import Arriving

STORAGES = ("float32", "float16", "int8")
_TORCH = {"float32": torch.float32, "float16": torch.float16, "int8": torch.float32}


class Table:
    """Stored embeddings (n, d) with as much of a tensor's interface as searching and expanding use.

    float32 and float16 come as they are. int8 rows are whole numbers that were a unit vector's direction;
    they come as float32 of unit length.

    Args:
        rows: where they are.
        storage: how a row is stored.
        dimension: d.
    """

    def __init__(self, rows: Rows, storage: str, dimension: int) -> None:
        self.rows = rows
        self.storage = storage
        self.shape = torch.Size((rows.count, dimension))
        self.dtype = _TORCH[storage]
        self.device = torch.device("cpu")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows as a tensor."""
        return self.shape.numel() * self.element_size()

    def element_size(self) -> int:
        """Bytes of a number as it comes."""
        return 2 if self.storage == "float16" else 4

    def index_select(self, _: int, numbers: Tensor) -> Tensor:
        """(p, d) rows by number."""
        return decoded(self.rows.take(numbers.numpy()), self.storage, self.shape[1])

    def __getitem__(self, wanted: slice | Tensor) -> Tensor:
        if isinstance(wanted, Tensor):
            return self.index_select(0, wanted)
        start, stop, step = wanted.indices(len(self))
        assert step == 1
        return decoded(self.rows.block(start, stop), self.storage, self.shape[1])

    def to(self, *target: Any) -> Tensor:
        """All rows as a tensor of another type or on another device."""
        return self[:].to(*target)


def row_type(storage: str, dimension: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The NumPy type and the shape of one row in a file."""
    if storage == "int8":
        return np.dtype([("values", "i1", (dimension,)), ("scale", "<f4")]), ()
    return np.dtype("<f4" if storage == "float32" else "<f2"), (dimension,)


def leaving(vectors: Tensor, storage: str) -> Arriving:
    """Unit vectors (n, d) on their way to the host in the type they are stored in, to be `encoded` there."""
    return Arriving(vectors.detach().to(_TORCH[storage]))


def encoded(vectors: Tensor | Arriving, storage: str) -> np.ndarray[Any, Any]:
    """Unit vectors (n, d) as they are stored."""
    arriving = vectors if isinstance(vectors, Arriving) else leaving(vectors, storage)
    (vectors,) = arriving.wait()
    if storage != "int8":
        return vectors.numpy()
    values = torch.round(vectors * (127 / vectors.abs().amax(dim=1, keepdim=True).clamp(min=1e-30)))
    result = np.empty(len(vectors), row_type("int8", vectors.shape[1])[0])
    result["values"] = values.to(torch.int8).numpy()
    # Squares of whole numbers are summed without rounding, so the scale never depends on the batch.
    squares = (values.to(torch.float64) ** 2).sum(dim=1)
    result["scale"] = squares.rsqrt().to(torch.float32).numpy()
    return result


def decoded(content: np.ndarray[Any, Any], storage: str, dimension: int) -> Tensor:
    """Stored rows (n, row bytes) as vectors (n, d): float32, or float16 for that storage."""
    if not len(content):
        return torch.empty((0, dimension), dtype=_TORCH[storage])
    if storage != "int8":
        return as_tensor(content).view(_TORCH[storage])
    values = as_tensor(content)[:, :dimension].view(torch.int8)
    scale = np.ascontiguousarray(content[:, dimension:]).view(np.float32)
    return values.to(torch.float32) * torch.from_numpy(scale)


def rounded(vectors: Tensor, storage: str) -> Tensor:
    """What a reader would see of these vectors (n, d) had they been stored."""
    if storage == "float32":
        return vectors
    if storage == "float16":
        return vectors.to(torch.float16)
    return decoded(as_bytes(encoded(vectors, storage)), storage, vectors.shape[1])


def checked_storage(storage: object, levels: int) -> list[str]:
    """One storage for each stored level, given as one name or a list of names (the last one repeats)."""
    names = [storage] if isinstance(storage, str) else _listed(storage)
    if not names or any(name not in STORAGES for name in names):
        raise InputError(
            f"storage: expected {', '.join(STORAGES)}, or a list of them by level, got {storage!r}"
        )
    if len(names) > levels:
        raise InputError(
            f"storage: {len(names)} types for {levels} stored levels; give one for each, or one for all"
        )
    return [*names, *names[-1:] * (levels - len(names))]


def _listed(values: object) -> list[str]:
    return list(values) if isinstance(values, list | tuple) else []
