"""From candidates to neighbours: scored anew one by one, sorted, ties settled.

A matrix product rounds differently at different places. So similarities are computed again, row by row and
always in the same order of operations: only so do exact duplicates tie exactly, ties go to the lower id, and
a result does not depend on what else is in the batch.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gqe.embeddings import blocks, rows
from gqe.neighbors.candidates import Candidates, inner_products
from gqe.neighbors.duplicates import late_duplicates

# More candidates than asked for, to show whether the K-th place is tied.
SPARE = 4
# Two float32 computations of one cosine differ by less than this.
ROUNDING = 4e-6
# Rows gathered at a time; small enough to stay in a CPU's cache.
_GATHER_BYTES = {"cpu": 8 << 20, "cuda": 1 << 30}
# Queries with a tied K-th place that are compared with the whole table at a time.
_TIED_GROUP = 64


class Rescorer:
    """Ranks candidates from one table.

    Args:
        table: (n, d) checked embeddings.
        k: how many neighbours.
        exact: whether candidates hold the best rows of the table; then a tie at the last place is settled by
            looking at the whole table.
    """

    def __init__(self, table: Tensor, k: int, *, exact: bool) -> None:
        self.table = table
        self.k = k
        self.exact = exact

    def rank(self, queries: Tensor, found: Candidates, omit: Tensor | None) -> Candidates:
        """The best k candidates (m, k) without the omitted id (m,): falling similarity, then rising id."""
        best = self._best(queries, found.ids, omit)
        if self.exact and found.ids.shape[1] < len(self.table):
            unseen_may_reach = found.similarities[:, -1] + ROUNDING >= best.similarities[:, -1]
            tied = torch.nonzero(unseen_may_reach)[:, 0]
            eligible = self._eligible if len(tied) > _TIED_GROUP else None
            for group in blocks(len(tied), 1, _TIED_GROUP):
                mine = tied[group]
                omitted = None if omit is None else omit[mine]
                settled = self._rank_above(queries[mine], best.similarities[mine, -1], omitted, eligible)
                best.ids[mine], best.similarities[mine] = settled.ids, settled.similarities
        return best

    def _rank_above(
        self, queries: Tensor, thresholds: Tensor, omit: Tensor | None, eligible: Tensor | None
    ) -> Candidates:
        """The best k for queries whose K-th similarity reaches a threshold: everything near it is scored."""
        ids = torch.empty((len(queries), 0), dtype=torch.int64, device=queries.device)
        for part in blocks(len(self.table), self.table.shape[1] * 4, 4 * _gather_bytes(queries)):
            near = inner_products(queries, self.table[part]) >= thresholds[:, None] - 2 * ROUNDING
            if eligible is not None:
                near &= eligible[part].to(near.device)
            if bool(near.any()):
                ids = self._best(queries, torch.cat([ids, _positions(near, part.start)], dim=1), omit).ids
        return self._best(queries, ids, omit)

    def _best(self, queries: Tensor, ids: Tensor, omit: Tensor | None) -> Candidates:
        """Candidates (m, c) by falling similarity, ties by rising id, cut or filled up with -1 to (m, k)."""
        ids = torch.sort(ids, dim=1).values  # so that the stable sort below leaves ties in order of id
        if omit is not None:
            ids = ids.masked_fill(ids == omit[:, None], -1)
        similarities = cosines(queries, self.table, ids).masked_fill(ids < 0, float("-inf"))
        similarities, order = torch.sort(similarities, dim=1, descending=True, stable=True)
        ids, similarities = ids.gather(1, order)[:, : self.k], similarities[:, : self.k]
        short = self.k - ids.shape[1]
        if short > 0:
            ids = torch.nn.functional.pad(ids, (0, short), value=-1)
            similarities = torch.nn.functional.pad(similarities, (0, short), value=float("-inf"))
        return Candidates(ids, similarities)

    @cached_property
    def _eligible(self) -> Tensor:
        """(n,) False for items with more than k exact duplicates of lower id: those win every tie with it.

        Without this, a picture that stands ten thousand times in the database would cost each of its copies
        ten thousand comparisons.
        """
        return ~late_duplicates(self.table, self.k + 1)


def cosines(queries: Tensor, table: Tensor, ids: Tensor) -> Tensor:
    """Cosines (m, c) of queries and candidates, each computed the same way wherever it stands."""
    result = torch.empty(ids.shape, dtype=torch.float32, device=queries.device)
    budget = _gather_bytes(queries)
    row_bytes = table.shape[1] * 4
    for part in blocks(len(ids), ids.shape[1] * row_bytes, budget):
        for columns in blocks(ids.shape[1], (part.stop - part.start) * row_bytes, budget):
            neighbors = rows(table, ids[part, columns].clamp(min=0), queries.device)
            products = neighbors.mul_(queries[part, None])
            if products.shape[:2].numel() == 1:
                # The sum of one single long row would be split among threads, and rounded differently.
                products = products.expand(1, 2, -1).contiguous()
            result[part, columns] = products.sum(dim=2)[:, : columns.stop - columns.start]
    return result


def _positions(marks: Tensor, start: int) -> Tensor:
    """Ids (m, most) of the marked columns of each row (m, b), counted from `start`, filled up with -1."""
    row, column = torch.nonzero(marks, as_tuple=True)
    counts = marks.sum(dim=1)
    firsts = torch.cumsum(counts, dim=0) - counts
    place = torch.arange(len(row), device=marks.device) - firsts[row]
    ids = torch.full((len(marks), int(counts.max())), -1, device=marks.device)
    ids[row, place] = column + start
    return ids


def _gather_bytes(queries: Tensor) -> int:
    return _GATHER_BYTES.get(queries.device.type, _GATHER_BYTES["cuda"])
