"""Exact candidates: the best rows of a table by inner product, in blocks of bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from gqe.embeddings import blocks

# Bytes of the scores of one block of queries against one block of rows.
_SCORE_BYTES = {"cpu": 64 << 20, "cuda": 2 << 30}
# Columns in a pile, see `top`.
_PILE = 16


class Candidates(NamedTuple):
    """Rows of a table for each query, best first: (m, c) int64 ids (-1 missing), float32 similarities."""

    ids: Tensor
    similarities: Tensor


# Gives the best `count` rows for a block of queries (m, d).
Engine: TypeAlias = Callable[[Tensor, int], Candidates]


def exact_engine(table: Tensor) -> Engine:
    """Matrix product and top-k by torch: faster than faiss's flat index on a CPU, too (benchmarks/knn.py)."""
    return lambda queries, count: exact_candidates(queries, table, count)


def exact_candidates(queries: Tensor, table: Tensor, count: int, allowed: Tensor | None = None) -> Candidates:
    """The best `count` rows of the table (n, d) for queries (m, d) float32, wherever the table lies.

    Rows that are not allowed, (n,) False, get the similarity -inf.
    """
    best: Candidates | None = None
    budget = _SCORE_BYTES.get(queries.device.type, _SCORE_BYTES["cuda"])
    for part in blocks(len(table), max(len(queries), table.shape[1]) * 4, budget):
        scores = inner_products(queries, table[part])
        if allowed is not None:
            scores.masked_fill_(~allowed[part].to(scores.device), float("-inf"))
        here = top(scores, count)
        here = Candidates(here.ids + part.start, here.similarities)
        best = here if best is None else merge_candidates(best, here, count)
    assert best is not None
    return best


def inner_products(queries: Tensor, block: Tensor) -> Tensor:
    """(m, b) products of queries (m, d) with rows (b, d), computed on the queries' device in full float32."""
    # Training code may have allowed TF32 or bfloat16 products, which would lose true neighbours here.
    with _precision("highest"):
        return queries @ block.to(queries.device, torch.float32).T


def rough_products(queries: Tensor, block: Tensor) -> Tensor:
    """The same for candidates that will be ranked anew, from factors in bfloat16 where that is faster.

    Products of unit vectors of 2048 dimensions change by at most 5e-4; a CPU with AMX is three times faster.
    """
    with _precision("medium"):
        return queries @ block.to(queries.device, torch.float32).T


def top(scores: Tensor, count: int) -> Candidates:
    """The best `count` columns of each row of scores (m, b): all of them if there are no more.

    The columns are dealt into piles. The best `count` columns lie in the `count` piles of the best maxima,
    and maxima are found several times faster than torch.topk goes through all columns.
    """
    m, width = scores.shape
    piles = width // _PILE
    if piles <= 2 * count:
        best = torch.topk(scores, min(count, width), dim=1)
        return Candidates(best.indices, best.values)
    maxima = scores[:, : piles * _PILE].view(m, _PILE, piles).amax(dim=1)
    chosen = torch.topk(maxima, count, dim=1, sorted=False).indices
    steps = torch.arange(0, piles * _PILE, piles, device=scores.device)
    rest = torch.arange(piles * _PILE, width, device=scores.device).expand(m, -1)
    ids = torch.cat([(chosen[:, None] + steps[:, None]).reshape(m, -1), rest], dim=1)
    best = torch.topk(scores.gather(1, ids), count, dim=1)
    return Candidates(ids.gather(1, best.indices), best.values)


def merge_candidates(first: Candidates, second: Candidates, count: int) -> Candidates:
    """The best `count` of two lists of candidates (m, .), ties in any order."""
    similarities = torch.cat([first.similarities, second.similarities], dim=1)
    top = torch.topk(similarities, min(count, similarities.shape[1]), dim=1)
    return Candidates(torch.cat([first.ids, second.ids], dim=1).gather(1, top.indices), top.values)


@contextmanager
def _precision(wanted: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    if before == wanted:
        yield
        return
    torch.set_float32_matmul_precision(wanted)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
