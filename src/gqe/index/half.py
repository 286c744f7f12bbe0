"""Exact neighbours on a GPU at the speed of 16-bit products.

The product of all pairs is computed in float16 (accumulated in float32, rounded once), which a GPU does ten
times faster than in float32. It only proposes candidates, more than are wanted; they are scored anew in
float32, and where rounding could have hidden a neighbour the query is compared with the whole table.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gqe.embeddings import blocks
from gqe.neighbors.candidates import Candidates, Engine
from gqe.neighbors.candidates import _top as top

# Candidates beyond the wanted ones, so that the last of them lies clearly below the last wanted one.
_EXTRA = 76
# A cosine of unit vectors in float16 lies within this of the true one: inputs and result are each rounded to
# 11 bits, and rounding errors of the inputs of a long vector nearly cancel.
ERROR = 1e-3
_SCORE_BYTES = {"cpu": 64 << 20, "cuda": 10 << 30}


def half_engine(table: Tensor) -> Engine:
    """Candidates by float16 products with a table (n, d), with similarities that are never too small.

    Args:
        table: embeddings on the device where it computes; float16 ones are used as they are.
    """
    halves = table.to(torch.float16)
    budget = _SCORE_BYTES.get(table.device.type, _SCORE_BYTES["cuda"])

    def candidates(queries: Tensor, wanted: int) -> Candidates:
        asked = queries.to(torch.float16)
        count = min(len(halves), wanted + _EXTRA)
        found = []
        for part in blocks(len(asked), 2 * len(halves), budget):
            best = top(asked[part] @ halves.T, count)
            found.append(Candidates(best.ids, best.similarities.to(torch.float32) + ERROR))
        return Candidates(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    return candidates
