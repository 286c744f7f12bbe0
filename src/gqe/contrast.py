"""Telling a query apart from its surroundings.

What lies just beyond a query's neighbours resembles it most of all that it does not look for. Rocchio's
relevance feedback ("Relevance feedback in information retrieval", 1971) takes away the mean of such items
beside adding relevant ones. Here they are those at the ranks `FIRST` to `LAST` of the query's own list, so
that no search is added: the first one brings a longer list.
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
from gqe.transfer import sent

# Neighbours in arrays, or in tensors on the device where a search has found them.
Neighbors: TypeAlias = NeighborGraph | Candidates

# Ranks of the surroundings: far enough behind for most classes, near enough to be what is mistaken for them.
FIRST, LAST = 64, 192


def checked_contrast(value: object) -> float:
    """Check the share of the surroundings that is taken away: at least 0 and below 1."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else -1.0
    if not 0 <= number < 1:
        raise InputError(f"contrast: expected a number of at least 0 and below 1, such as 0.4, got {value!r}")
    return number


def told_apart(expanded: Tensor, table: Tensor, neighbors: Neighbors, contrast: float) -> Tensor:
    """(m, d) unit vectors along `expanded - contrast * mean of the surroundings`.

    A query with no more than `FIRST` neighbours has no surroundings and stays as it is.

    Args:
        expanded: (m, d) unit vectors.
        table: (n, d) the database.
        neighbors: (m, LAST) of the queries before they were expanded; fewer where there are fewer.
        contrast: how much is taken away.
    """
    ids = neighbors.ids[:, FIRST:LAST]
    if not contrast or not ids.shape[1] or not len(table):
        return expanded
    if not isinstance(ids, Tensor):
        ids = torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64))
    ids = sent(ids, table.device).to(torch.int64)
    parts = [expanded]
    for part in blocks(len(ids), ids.shape[1] * table.shape[1] * 4):
        some = ids[part]
        present = (some >= 0).to(expanded.device, torch.float32)
        shares = contrast * present / present.sum(dim=1, keepdim=True).clamp(min=1)
        around = rows(table, some.clamp(min=0), expanded.device)
        parts.append(expanded[part] - torch.bmm(shares[:, None], around)[:, 0])
    return torch.nn.functional.normalize(torch.cat(parts[1:] or parts), dim=1)


def shares_taken(
    neighbors: NeighborGraph, contrast: float
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Ids (m, r) of the surroundings, -1 = missing, and the share of each (m, r) that is taken away."""
    ids = neighbors.ids[:, FIRST:LAST]
    present = (ids >= 0).astype(np.float32)
    return ids, contrast * present / present.sum(axis=1, keepdims=True).clip(min=1)
