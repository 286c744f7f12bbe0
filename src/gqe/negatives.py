"""Negative feedback: what lies just beyond the neighbours of a query is subtracted from it.

Items just beyond a query's neighbours are the most similar ones that it does not look for. Rocchio's
relevance feedback ("Relevance feedback in information retrieval", 1971) subtracts the mean of such items
beside adding relevant ones. Here they are those at `NEGATIVE_RANKS` of the query's own list: no search is
added, the first one brings a longer list.

In a class of many hundred items these are relevant, too, and must stay. Then the nearest items are hardly
more similar to each other than to them. So the negatives are subtracted only as far as the nearest items are
apart from them, in units of their own scatter (as in Fisher's discriminant).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import blocks
from gqe.neighbors import NeighborGraph
from gqe.neighbors.candidates import Candidates
from gqe.query_options import NEGATIVE_RANKS
from gqe.source import LevelSource
from gqe.transfer import to_device

NEAREST = 8
"""How many nearest items are compared with the negatives."""
_TOGETHER, _APART = 0.3, 0.6
"""Distances in units of the scatter: below the first nothing is subtracted, from the second on all. Classes
of Gaussian clouds stay below the first, whatever their noise; pictures, sentences and digits lie above the
second."""
_FIRST, _LAST = NEGATIVE_RANKS


def subtract_negatives(
    expanded: Tensor, source: LevelSource, neighbors: NeighborGraph | Candidates, contrast: float
) -> Tensor:
    """(m, d) unit vectors along `expanded - contrast * mean of the negatives`, as far as those are apart.

    A query with no more neighbours than the first rank has no negatives and stays as it is.

    Args:
        expanded: (m, d) unit vectors.
        source: the database.
        neighbors: (m, last rank) of the queries before they were expanded; fewer where there are fewer.
        contrast: the weight of the negatives.
    """
    if not contrast or neighbors.ids.shape[1] <= _FIRST or not len(source):
        return expanded
    ids = _read_ids(neighbors)
    parts = [expanded]
    for part in blocks(len(ids), ids.shape[1] * source.dim * 4):
        negatives, shares = _negatives(source, ids[part], expanded.device)
        parts.append(expanded[part] - contrast * torch.bmm(shares[:, None], negatives)[:, 0])
    return torch.nn.functional.normalize(torch.cat(parts[1:] or parts), dim=1)


def negative_weights(
    source: LevelSource, neighbors: NeighborGraph | Candidates, contrast: float
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Ids (m, r) of the negatives, -1 = missing, and the weight (m, r) with which each is subtracted."""
    around = np.asarray(neighbors.ids[:, _FIRST:_LAST])
    if not contrast or not around.shape[1] or not len(source):
        return around, np.zeros(around.shape, dtype=np.float32)
    ids = _read_ids(neighbors)
    parts = [
        _negatives(source, ids[part], source.device)[1]
        for part in blocks(len(ids), ids.shape[1] * source.dim * 4)
    ]
    shares = torch.cat(parts) if parts else torch.zeros(around.shape)
    return around, contrast * shares.cpu().numpy()


def _read_ids(neighbors: NeighborGraph | Candidates) -> Tensor:
    """(m, NEAREST + r) ids of the nearest items and of the negatives, -1 = missing."""
    ids = torch.as_tensor(neighbors.ids)
    return torch.cat([ids[:, :NEAREST], ids[:, _FIRST:_LAST]], dim=1).to(torch.int64)


def _negatives(source: LevelSource, ids: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """The negatives (b, r, d), and the share of each (b, r): together as much as they are apart."""
    present = to_device(ids >= 0, device).to(torch.float32)
    rows = source.rows(0, ids.clamp(min=0).flatten()).to(device, torch.float32)
    rows = rows.reshape(*ids.shape, source.dim)
    near, around = rows[:, :NEAREST], rows[:, NEAREST:]
    there = present[:, NEAREST:]
    shares = there / there.sum(dim=1, keepdim=True).clamp(min=1)
    middle = near.mean(dim=1)
    within = (NEAREST * middle.square().sum(dim=1) - 1) / (NEAREST - 1)
    across = (middle[:, None] @ torch.bmm(shares[:, None], around).mT)[:, 0, 0]
    gap = (within - across) / (1 - within).clamp(min=1e-6)
    apart = ((gap - _TOGETHER) / (_APART - _TOGETHER)).clamp(0, 1)
    return around, shares * apart[:, None]
