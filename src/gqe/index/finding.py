"""Nearest rows of a stored table where some may not be found: removed ones, and what a filter leaves out.

On a GPU, and for many queries, the products of all pairs are computed in float16 (accumulated in float32,
rounded once), which a GPU does ten times faster than in float32. They only propose candidates, more than are
wanted; these are scored again in float32, and where rounding could have hidden a neighbour the query is
compared with the whole table.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import blocks
from gqe.index.shards import candidates_by_piece, has_pieces
from gqe.index.tables import Table
from gqe.neighbors.candidates import Candidates, Engine, exact_candidates, top
from gqe.neighbors.cells import ApproximateLists
from gqe.neighbors.duplicates import late_duplicates
from gqe.neighbors.graph import NeighborGraph
from gqe.neighbors.rescoring import SPARE, Rescorer
from gqe.neighbors.search import nearest
from gqe.transfer import to_device

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
# Where at most this share and this many bytes may be found, those rows are copied out and searched alone.
_FEW = 0.25
_COPY_BYTES = 256 << 20
_QUERY_BLOCK = {"cpu": 1024, "cuda": 4096}


def nearest_rows(
    table: Table | Tensor,
    queries: Tensor,
    k: int,
    *,
    device: torch.device,
    allowed: np.ndarray[Any, Any] | None = None,
    omit: Tensor | None = None,
    engine: Engine | None = None,
) -> Candidates:
    """The k nearest rows of each query, ties by rising number, on the device where they were found.

    Args:
        table: (n, d).
        queries: (m, d) checked.
        k: how many.
        device: where to compute.
        allowed: (n,) bool, the rows that may be found; None for all.
        omit: (m,) a row that each query must not find, -1 for none.
        engine: gives candidates approximately, only allowed ones; None for the exact answer.
    """
    tensor = cast(Tensor, table)
    fetch = min(len(table), k + SPARE + int(omit is not None))
    if engine is not None:
        return _rank(Rescorer(tensor, k, exact=False), engine, queries, fetch, omit, device)
    mask = None
    if allowed is not None:
        count = int(allowed.sum())
        if count <= _FEW * len(allowed) and count * table.shape[1] * 4 <= _COPY_BYTES:
            return _find_among(tensor, np.flatnonzero(allowed), queries, k, omit, device)
        mask = torch.from_numpy(allowed).to(table.device)
    in_pieces, use_half = has_pieces(table), half_is_faster(table, len(queries))
    if mask is None and not in_pieces and not use_half:
        return _as_candidates(nearest(tensor, queries, k, omit, device=device))

    def exact(block: Tensor, count: int) -> Candidates:
        if in_pieces:
            return candidates_by_piece(block, cast(Table, table), count, mask)
        return exact_candidates(block, tensor, count, mask)

    rescorer = Rescorer(tensor, k, exact=True) if mask is None else _MaskedRescorer(tensor, k, mask)
    return _rank(rescorer, half_engine(tensor, mask) if use_half else exact, queries, fetch, omit, device)


def rank_lists(
    table: Table | Tensor, lists: ApproximateLists, part: slice, k: int, device: torch.device
) -> Candidates:
    """The k nearest of the rows in the lists of some rows, none its own; ties by rising number."""
    rescorer, found = Rescorer(cast(Tensor, table), k, exact=False), []
    for start in range(part.start, part.stop, _QUERY_BLOCK["cpu"]):
        some = slice(start, min(start + _QUERY_BLOCK["cpu"], part.stop))
        own = torch.arange(some.start, some.stop, device=device)
        queries = table[some].to(device, torch.float32)
        found.append(rescorer.rank(queries, lists.candidates(some, device), own))
    return concat_candidates(found)


def _find_among(
    table: Tensor,
    chosen: np.ndarray[Any, Any],
    queries: Tensor,
    k: int,
    omit: Tensor | None,
    device: torch.device,
) -> Candidates:
    """Search a copy of the chosen rows; they stay in order, so ties do too."""
    part = table.index_select(0, torch.from_numpy(chosen).to(table.device))
    if omit is not None and len(chosen):
        place = np.searchsorted(chosen, omit.cpu().numpy()).clip(max=len(chosen) - 1)
        omit = torch.from_numpy(np.where(chosen[place] == omit.cpu().numpy(), place, -1))
    found = nearest(part, queries, k, omit if len(chosen) else None, device=device)
    ids = np.where(found.ids >= 0, chosen[found.ids.clip(min=0)] if len(chosen) else -1, -1)
    return _as_candidates(NeighborGraph(ids.astype(np.int64), found.similarities))


def _as_candidates(found: NeighborGraph) -> Candidates:
    return Candidates(torch.from_numpy(found.ids), torch.from_numpy(found.similarities))


def _rank(
    rescorer: Rescorer, engine: Engine, queries: Tensor, fetch: int, omit: Tensor | None, device: torch.device
) -> Candidates:
    """Score and rank the candidates of an engine again, in blocks of queries."""
    found = []
    for part in blocks(len(queries), 1, _QUERY_BLOCK.get(device.type, _QUERY_BLOCK["cuda"])):
        block = queries[part].to(device, torch.float32)
        left_out = None if omit is None else to_device(omit[part], device)
        found.append(rescorer.rank(block, engine(block, fetch), left_out))
    if not found:
        nothing = torch.empty((0, rescorer.k), device=device)
        return Candidates(nothing.to(torch.int64), nothing)
    return concat_candidates(found)


def half_is_faster(table: object, queries: int) -> bool:
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
    budget = _SCORE_BYTES.get(table.device.type, _SCORE_BYTES["cuda"])
    if table.is_cuda:
        memory = torch.cuda.get_device_properties(table.device).total_memory
        budget = min(budget, int(memory * _SCORE_SHARE))

    def candidates(queries: Tensor, wanted: int) -> Candidates:
        short = queries.to(torch.float16)
        count = min(len(halves), wanted + _EXTRA)
        found = []
        for part in blocks(len(short), 2 * len(halves), budget):
            # A single query is compared with the whole table fastest as a vector.
            one = part.stop - part.start == 1
            scores = torch.mv(halves, short[part.start])[None] if one else short[part] @ halves.T
            if allowed is not None:
                scores.masked_fill_(~allowed, float("-inf"))
            best = top(scores, count)
            found.append(Candidates(best.ids, best.similarities.to(torch.float32) + ERROR))
        return concat_candidates(found)

    return candidates


def concat_candidates(parts: list[Candidates]) -> Candidates:
    """Candidates of several blocks of queries as one; a single block as it is."""
    return parts[0] if len(parts) == 1 else Candidates(*map(torch.cat, zip(*parts, strict=True)))


class _MaskedRescorer(Rescorer):
    """Ranks as if the rows that may not be found were not there."""

    def __init__(self, table: Tensor, k: int, allowed: Tensor) -> None:
        super().__init__(table, k, exact=True)
        self.allowed = allowed

    def _best(self, queries: Tensor, ids: Tensor, omit: Tensor | None) -> Candidates:
        there = self.allowed.to(ids.device)[ids.clamp(min=0)]
        return super()._best(queries, ids.masked_fill(~there, -1), omit)

    @cached_property
    def _eligible(self) -> Tensor:
        chosen = torch.nonzero(self.allowed)[:, 0]
        eligible = torch.zeros(len(self.table), dtype=torch.bool, device=self.allowed.device)
        eligible[chosen] = ~late_duplicates(self.table.index_select(0, chosen), self.k + 1)
        return eligible
