"""Expanding what was expanded: each round searches again with what came of the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gqe.embeddings import rows
from gqe.hierarchy import Hierarchy, Weights, row_scaled
from gqe.neighbors import NeighborGraph

# Gives the neighbours of queries (m, d).
Find: TypeAlias = Callable[[Tensor], NeighborGraph]


def expand_in_rounds(hierarchy: Hierarchy, queries: Tensor, find: Find, rounds: int) -> Tensor:
    """(m, d) queries expanded, and what came of it expanded again, so many times in all.

    Surroundings are taken away at the end: what is told apart from them is worth more with more behind it.
    """
    for _ in range(rounds - 1):
        queries = hierarchy.climbed(queries, find(queries))
    return hierarchy.expand(queries, find(queries))


def weights_in_rounds(hierarchy: Hierarchy, queries: Tensor, find: Find, rounds: int) -> Weights:
    """The weight of every database item in each query expanded by `expand_in_rounds`."""
    weights = hierarchy.weights(queries, find(queries), contrast=None if rounds == 1 else 0.0)
    for left in range(rounds - 2, -1, -1):
        # The query of the next round is (own * query + items @ database) / length.
        used = np.unique(weights.items.indices)
        table = rows(hierarchy.database, torch.from_numpy(used), torch.device("cpu")).numpy()
        sums = weights.own[:, None] * queries.cpu().float().numpy() + weights.items[:, used] @ table
        lengths = np.linalg.norm(sums, axis=1)
        expanded = torch.from_numpy(sums / lengths[:, None]).to(queries.device, torch.float32)
        again = hierarchy.weights(expanded, find(expanded), contrast=0.0 if left else None)
        before = row_scaled(weights.items, again.own)
        items = sparse.csr_array(before + row_scaled(again.items, lengths))
        weights = Weights(items, weights.own * again.own)
    return weights
