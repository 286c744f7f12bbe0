"""Telling a query apart from its surroundings.

What lies just beyond a query's neighbours resembles it most of all that it does not look for. Rocchio's
relevance feedback ("Relevance feedback in information retrieval", 1971) takes away the mean of such items
beside adding relevant ones. Here they are those at the ranks `FIRST` to `LAST` of the query's own list, so
that no search is added: the first one brings a longer list.

In a class of many hundred items these are relevant, too, and must stay. Then the nearest items are hardly
more similar to each other than to them. So the surroundings are taken away only as far as the nearest items
keep apart from them, measured by their own scatter (as Fisher's discriminant does).
"""

from __future__ import annotations

from numbers import Real
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import blocks, rows
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph
from gqe.neighbors.candidates import Candidates
from gqe.transfer import to_device

# Neighbours in arrays, or in tensors on the device where a search has found them.
Neighbors: TypeAlias = NeighborGraph | Candidates

# Ranks of the surroundings: far enough behind for most classes, near enough to be what is mistaken for them.
FIRST, LAST = 64, 192
# So many nearest items are asked how far they keep apart.
NEAREST = 8
# By so many times their own scatter: not at all apart, and wholly. Classes of Gaussian clouds stay below the
# first, whatever their noise; pictures, sentences and digits lie above the second.
_TOGETHER, _APART = 0.3, 0.6


def checked_contrast(value: object) -> float:
    """Check the share of the surroundings that is taken away: at least 0 and below 1."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else -1.0
    if not 0 <= number < 1:
        raise InputError(f"contrast: expected a number of at least 0 and below 1, such as 0.4, got {value!r}")
    return number


def read_of_query(graph_k: int, contrast: float) -> int:
    """How many neighbours of a query are read: those of aggregators, and its surroundings if taken away."""
    return max(graph_k, LAST) if contrast else graph_k


def told_apart(expanded: Tensor, table: Tensor, neighbors: Neighbors, contrast: float) -> Tensor:
    """(m, d) unit vectors along `expanded - contrast * mean of the surroundings`, as far as those are apart.

    A query with no more than `FIRST` neighbours has no surroundings and stays as it is.

    Args:
        expanded: (m, d) unit vectors.
        table: (n, d) the database.
        neighbors: (m, LAST) of the queries before they were expanded; fewer where there are fewer.
        contrast: how much is taken away.
    """
    if not contrast or neighbors.ids.shape[1] <= FIRST or not len(table):
        return expanded
    ids = _numbers(neighbors, table)
    parts = [expanded]
    for part in blocks(len(ids), ids.shape[1] * table.shape[1] * 4):
        around, shares = _surroundings(table, ids[part], expanded.device)
        parts.append(expanded[part] - contrast * torch.bmm(shares[:, None], around)[:, 0])
    return torch.nn.functional.normalize(torch.cat(parts[1:] or parts), dim=1)


def shares_taken(
    table: Tensor, neighbors: NeighborGraph, contrast: float, device: torch.device
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Ids (m, r) of the surroundings, -1 = missing, and the share of each (m, r) that is taken away."""
    around = neighbors.ids[:, FIRST:LAST]
    if not around.shape[1] or not len(table):
        return around, np.zeros(around.shape, dtype=np.float32)
    ids = _numbers(neighbors, table)
    parts = [
        _surroundings(table, ids[part], device)[1]
        for part in blocks(len(ids), ids.shape[1] * table.shape[1] * 4)
    ]
    shares = torch.cat(parts) if parts else torch.zeros(around.shape)
    return around, contrast * shares.cpu().numpy()


def _numbers(neighbors: Neighbors, table: Tensor) -> Tensor:
    """(m, NEAREST + r) rows of the nearest items and of the surroundings, -1 = missing."""
    ids = neighbors.ids
    if not isinstance(ids, Tensor):
        ids = torch.from_numpy(np.ascontiguousarray(ids[:, :LAST], dtype=np.int64))
    read = torch.cat([ids[:, :NEAREST], ids[:, FIRST:LAST]], dim=1)
    return to_device(read, table.device).to(torch.int64)


def _surroundings(table: Tensor, ids: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """The surroundings (b, r, d), and the share of each (b, r): together as much as they are apart."""
    present = (ids >= 0).to(device, torch.float32)
    read = rows(table, ids.clamp(min=0), device)
    near, around = read[:, :NEAREST], read[:, NEAREST:]
    there = present[:, NEAREST:]
    shares = there / there.sum(dim=1, keepdim=True).clamp(min=1)
    middle = near.mean(dim=1)
    within = (NEAREST * middle.square().sum(dim=1) - 1) / (NEAREST - 1)
    across = (middle[:, None] @ torch.bmm(shares[:, None], around).mT)[:, 0, 0]
    gap = (within - across) / (1 - within).clamp(min=1e-6)
    apart = ((gap - _TOGETHER) / (_APART - _TOGETHER)).clamp(0, 1)
    return around, shares * apart[:, None]
