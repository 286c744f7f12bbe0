"""Where an index computes: on a CPU from the mapped files, on a GPU from its own memory as far as they fit.

Precision on a GPU: neighbours are the exact ones in every storage. Encoders (`Attention`) of an index that
stores everything in 16 bits or fewer compute in bfloat16, while sums stay in float32. As soon as one table is
stored in float32, everything is computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gqe.embeddings import blocks
from gqe.index.tables import Table
from gqe.transfer import to_device


class DeviceCache:
    """A device and what lies in its memory of one version of an index.

    Args:
        device: where to compute.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = torch.empty(0, device=device).device  # "cuda" with its number, as tensors name it
        self._tables: dict[str, Table | Tensor] = {}

    def table(self, name: str, table: Table) -> Table | Tensor:
        """A table of this version in the memory of the device; as it lies on disk where it does not fit."""
        if name not in self._tables:
            self._tables[name] = _loaded(table, self.device) if keeps(self.device, table) else table
        return self._tables[name]


def keeps(device: torch.device, table: Table) -> bool:
    """Whether a device has memory of its own with room for a table: half of what is free is for the work."""
    if device.type != "cuda":
        return False
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return table.nbytes < (torch.cuda.mem_get_info(device)[0] + unused) // 2


def _loaded(table: Table, device: torch.device) -> Tensor:
    """All rows on a device; a GPU fetches some while the next ones are read."""
    if device.type != "cuda":
        return table.to(device)
    result = torch.empty(table.shape, dtype=table.dtype, device=device)
    for part in blocks(len(table), table.shape[1] * table.element_size()):
        result[part] = to_device(table[part], device)
    return result


def encoder_type(device: torch.device, storage: Sequence[str]) -> torch.dtype:
    """What encoders compute in, given how the tables of the index are stored."""
    short = device.type == "cuda" and "float32" not in storage
    return torch.bfloat16 if short else torch.float32
