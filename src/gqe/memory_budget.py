"""How much memory activations may take until a backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator

# Activations kept for a backward pass on a CPU, and the share of a GPU's free memory they may take.
_CPU_BYTES = 2 << 30
_GPU_SHARE = 0.6
# Activations of one chunk, the least a recomputed chunk needs. Few large chunks run best on a large GPU.
_CPU_CHUNK_BYTES = 256 << 20
_GPU_CHUNK_BYTES = 12 << 30
_GPU_CHUNK_SHARE = 0.08


class MemoryBudget:
    """Memory for kept activations."""

    def __init__(self, left: int, queries: Tensor) -> None:
        self.left = left
        self.token_bytes = queries.shape[1] * queries.element_size()
        device = queries.device.type
        autocast = torch.is_autocast_enabled(device)
        self.element_size = torch.get_autocast_dtype(device).itemsize if autocast else queries.element_size()

    def per_token(self, aggregator: Aggregator) -> int:
        """Bytes that a token and its activations take until the backward pass."""
        estimate = getattr(aggregator, "memory_per_token", None)
        kept = 8 * self.token_bytes if estimate is None else int(estimate()) * self.element_size
        return self.token_bytes + kept

    def allows(self, cost: int) -> bool:
        """Whether activations of that many bytes may be kept; if so they are counted."""
        if cost > self.left:
            return False
        self.left -= cost
        return True


def free_bytes(device: torch.device) -> int:
    """Bytes of activations that may be kept on a device."""
    if device.type != "cuda":
        return _CPU_BYTES
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(_GPU_SHARE * (torch.cuda.mem_get_info(device)[0] + unused))


def chunk_bytes(device: torch.device) -> int:
    """Bytes of activations of one chunk."""
    if device.type != "cuda":
        return _CPU_CHUNK_BYTES
    return min(_GPU_CHUNK_BYTES, int(_GPU_CHUNK_SHARE * torch.cuda.mem_get_info(device)[1]))
