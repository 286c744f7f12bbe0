"""Exact duplicates in a table."""

from __future__ import annotations

import torch
from torch import Tensor

from gqe.embeddings import blocks


def late_duplicates(table: Tensor, copies: int) -> Tensor:
    """(n,) True for items that at least `copies` items of lower id equal exactly.

    Args:
        table: (n, d) embeddings, float32 or a 16-bit type.
        copies: how many earlier duplicates make an item late, at least 1.
    """
    _, group, counts = torch.unique(_hashes(table), return_inverse=True, return_counts=True)
    order = torch.sort(group, stable=True).indices  # by group, within it by id
    starts = torch.cumsum(counts, dim=0) - counts
    earlier = torch.empty_like(order)
    earlier[order] = torch.arange(len(order), device=order.device) - starts[group[order]]

    mixed = torch.zeros_like(counts, dtype=torch.bool)  # different rows may share a hash
    suspects = torch.nonzero(counts[group] > copies)[:, 0]
    for part in blocks(len(suspects), table.shape[1] * 8):
        ids = suspects[part]
        first = order[starts[group[ids]]]
        mixed[group[ids][(table[ids] != table[first]).any(dim=1)]] = True
    return (earlier >= copies) & ~mixed[group]


def _hashes(table: Tensor) -> Tensor:
    """(n,) int64, equal for rows of equal bits."""
    factors = torch.randint(-(2**62), 2**62, (table.shape[1],), generator=torch.Generator().manual_seed(0))
    factors = factors.to(table.device)
    bits = torch.int32 if table.element_size() == 4 else torch.int16
    parts = blocks(len(table), table.shape[1] * 8)
    return torch.cat([(table[part].contiguous().view(bits) * factors).sum(dim=1) for part in parts])
