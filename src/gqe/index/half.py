"""Exact neighbours on a GPU at the speed of 16-bit products.

The product of all pairs is computed in float16 (accumulated in float32, rounded once), which a GPU does ten
times faster than in float32. It only proposes candidates, more than are wanted; they are scored anew in
float32, and where rounding could have hidden a neighbour the query is compared with the whole table.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gqe.embeddings import blocks
from gqe.neighbors.candidates import Candidates, Engine, top

# Candidates beyond the wanted ones, so that the last of them lies clearly below the last wanted one.
_EXTRA = 76
# A cosine of unit vectors in float16 lies within this of the true one: inputs and result are each rounded to
# 11 bits, and rounding errors of the inputs of a long vector nearly cancel.
ERROR = 1e-3
# Bytes of the scores of one block of queries, on a GPU at most this share of its memory.
_SCORE_BYTES = {"cpu": 64 << 20, "cuda": 10 << 30}
_SCORE_SHARE = 1 / 8
# From so many queries on it pays to make a copy in 16 bits of a table in 32.
_MANY_QUERIES = 256


def serves(table: object, queries: int) -> bool:
    """Whether 16-bit products are the fastest way to compare so many queries with a table in memory."""
    if not isinstance(table, Tensor) or not len(table) or not queries:
        return False
    return table.dtype == torch.float16 or queries >= _MANY_QUERIES


def half_engine(table: Tensor, allowed: Tensor | None = None) -> Engine:
    """Candidates by float16 products with a table (n, d), with similarities that are never too small.

    Args:
        table: embeddings on the device where it computes; float16 ones are used as they are.
        allowed: (n,) bool, rows that may be found; the others get the similarity -inf. None for all.
    """
    halves = table.to(torch.float16)
    budget = _score_bytes(table.device)

    def candidates(queries: Tensor, wanted: int) -> Candidates:
        asked = queries.to(torch.float16)
        count = min(len(halves), wanted + _EXTRA)
        found = []
        for part in blocks(len(asked), 2 * len(halves), budget):
            scores = _products(asked[part], halves)
            if allowed is not None:
                scores.masked_fill_(~allowed, float("-inf"))
            best = top(scores, count)
            found.append(Candidates(best.ids, best.similarities.to(torch.float32) + ERROR))
        return joined(found)

    return candidates


def joined(parts: list[Candidates]) -> Candidates:
    """Candidates of several blocks of queries as one; a single block as it is."""
    return parts[0] if len(parts) == 1 else Candidates(*map(torch.cat, zip(*parts, strict=True)))


def _products(queries: Tensor, halves: Tensor) -> Tensor:
    """(m, n) products; a single query is read past the whole table fastest as a vector."""
    return torch.mv(halves, queries[0])[None] if len(queries) == 1 else queries @ halves.T


def _score_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return _SCORE_BYTES["cpu"]
    share = int(torch.cuda.get_device_properties(device).total_memory * _SCORE_SHARE)
    return min(_SCORE_BYTES["cuda"], share)
