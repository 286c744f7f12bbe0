"""`knn`: nearest neighbours by cosine, exact or approximate, the same answer in every batch size.

Candidates come from the fastest engine at hand (faiss on a CPU, torch on a GPU, an inverted file when an
approximate answer will do). Their similarities are then computed again, row by row and always in the same
order of operations, because a matrix product rounds differently at different places: only so do exact
duplicates tie exactly, ties go to the lower id, and a result does not depend on what else is in the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import as_table, blocks, rows
from gqe.errors import InputError
from gqe.neighbors.candidates import Candidates, Engine, exact_engine
from gqe.neighbors.graph import NeighborGraph
from gqe.neighbors.inverted_file import inverted_file_engine

# More candidates than asked for: one may be the item itself, the others show whether the K-th place is tied.
_SPARE = 4
# Two float32 computations of one cosine differ by less than this.
_ROUNDING = 4e-6
_QUERY_BLOCK = 4096


def knn(
    database: Any,
    k: int,
    *,
    queries: Any = None,
    exclude: Any = None,
    recall: float | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
) -> NeighborGraph:
    """The k nearest neighbours by cosine of every query, or of every database item.

    Args:
        database: (n, d) embeddings, NumPy (also memory-mapped) or torch. n may be 0.
        k: how many neighbours; where the database has fewer, ids are -1.
        queries: (m, d) embeddings; None means the database itself, each item without itself (by id, so its
            exact duplicates stay).
        exclude: (m,) database ids, one a query, that must not be returned; -1 excludes nothing.
        recall: None for the exact answer; otherwise the share of true neighbours an approximate search
            must find, measured on a sample of the queries. Small databases are always searched exactly.
        device: "auto" (where the database is; a GPU for NumPy arrays if there is one), "cpu", "cuda"...
        seed: for the sampling and clustering of the approximate search.

    Returns:
        NeighborGraph with (m, k) ids and similarities, ties by rising id.

    Example:
        >>> knn(np.eye(3)[[0, 0, 1]], k=1).ids.tolist()
        [[1], [0], [0]]
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k: expected a whole number of at least 1, got {k!r}")
    if recall is not None and not 0 < recall <= 1:
        raise InputError(f"recall: expected a number above 0 and at most 1, got {recall!r}")
    table = as_table(database, "database")
    asked = table if queries is None else as_table(queries, "queries", dim=table.shape[1])
    excluded = _excluded(exclude, len(asked), len(table), itself=queries is None)
    place = resolve_device(device, table)

    fetch = min(len(table), int(k) + _SPARE + int(excluded is not None))
    if fetch == 0 or len(asked) == 0:
        return _empty(len(asked), int(k))
    if place.type == "cuda" and table.element_size() * table.numel() < torch.cuda.mem_get_info(place)[0] // 2:
        table = table.to(place)
    engine: Engine = exact_engine(table, place)
    exact, found_share = True, None
    if recall is not None:
        approximate = inverted_file_engine(table, asked, fetch, recall, engine, seed)
        if approximate is not None:
            engine, found_share = approximate
            exact = False

    ids = np.empty((len(asked), int(k)), dtype=np.int32 if len(table) < 2**31 else np.int64)
    similarities = np.empty(ids.shape, dtype=np.float32)
    for part in blocks(len(asked), 1, _QUERY_BLOCK):
        block = asked[part].to(place, torch.float32)
        omit = None if excluded is None else excluded[part].to(place)
        best = _rank(block, table, engine(block, fetch), int(k), omit, exact=exact)
        ids[part], similarities[part] = best.ids.cpu().numpy(), best.similarities.cpu().numpy()
    return NeighborGraph(ids, similarities, found_share)


def resolve_device(device: str | torch.device, table: Tensor | None = None) -> torch.device:
    """The device that "auto" means for this table, or the one named."""
    if device == "auto":
        if table is not None and table.device.type != "cpu":
            return table.device
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise InputError(f"device: {device!r} is not a device; use auto, cpu, cuda or cuda:N") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device: no CUDA device is available here; use --device cpu or auto")
    return place


def _excluded(exclude: Any, m: int, n: int, *, itself: bool) -> Tensor | None:
    if exclude is None:
        return torch.arange(m) if itself else None
    if itself:
        raise InputError("exclude: the items of a graph already exclude themselves; give queries too")
    ids = np.asarray(exclude.cpu() if isinstance(exclude, Tensor) else exclude)
    if ids.shape != (m,) or ids.dtype.kind not in "iu":
        raise InputError(f"exclude: expected {m} whole numbers, one a query, got {ids.dtype} {ids.shape}")
    if m and (ids.min() < -1 or ids.max() >= n):
        raise InputError(f"exclude: ids must lie between -1 and {n - 1}; -1 excludes nothing")
    return torch.from_numpy(ids.astype(np.int64))


def _empty(m: int, k: int) -> NeighborGraph:
    return NeighborGraph(np.full((m, k), -1, np.int32), np.full((m, k), -np.inf, np.float32))


def _rank(
    queries: Tensor, table: Tensor, found: Candidates, k: int, omit: Tensor | None, *, exact: bool
) -> Candidates:
    """The best k of the candidates: scored anew, without the omitted id, sorted, ties settled."""
    best = _sorted(queries, table, found.ids, omit)
    kth = best.similarities[:, min(k, best.ids.shape[1]) - 1]
    unseen_may_reach = found.similarities[:, -1] + _ROUNDING >= kth
    if exact and found.ids.shape[1] < len(table) and bool(unseen_may_reach.any()):
        tied = torch.nonzero(unseen_may_reach)[:, 0]
        for row, near in zip(tied.tolist(), _all_at_least(queries[tied], table, kth[tied]), strict=True):
            mine = slice(row, row + 1)
            again = _sorted(queries[mine], table, near[None], None if omit is None else omit[mine])
            width = min(k, len(near))
            best.ids[row, :width] = again.ids[0, :width]
            best.similarities[row, :width] = again.similarities[0, :width]
    short = k - best.ids.shape[1]
    if short > 0:
        best = Candidates(
            torch.nn.functional.pad(best.ids, (0, short), value=-1),
            torch.nn.functional.pad(best.similarities, (0, short), value=float("-inf")),
        )
    return Candidates(best.ids[:, :k], best.similarities[:, :k])


def _sorted(queries: Tensor, table: Tensor, ids: Tensor, omit: Tensor | None) -> Candidates:
    """Candidates (m, c) by falling similarity, ties by rising id; omitted and missing ones last, as -1."""
    ids = torch.sort(ids, dim=1).values  # so that the stable sort below leaves ties in order of id
    similarities = _cosines(queries, table, ids)
    gone = ids < 0
    if omit is not None:
        gone = gone | (ids == omit[:, None])
    similarities = similarities.masked_fill(gone, float("-inf"))
    similarities, order = torch.sort(similarities, dim=1, descending=True, stable=True)
    ids = ids.masked_fill(gone, -1).gather(1, order)
    return Candidates(ids, similarities)


def _cosines(queries: Tensor, table: Tensor, ids: Tensor) -> Tensor:
    """Cosines (m, c) of queries and candidates, each computed the same way wherever it stands."""
    result = torch.empty(ids.shape, dtype=torch.float32, device=queries.device)
    for part in blocks(len(ids), ids.shape[1] * table.shape[1] * 4, 8 << 20):
        neighbors = rows(table, ids[part].clamp(min=0), queries.device)
        result[part] = neighbors.mul_(queries[part, None]).sum(dim=2)
    return result


def _all_at_least(queries: Tensor, table: Tensor, thresholds: Tensor) -> list[Tensor]:
    """For each query the ids of every item whose similarity may reach its threshold."""
    reached: list[list[Tensor]] = [[] for _ in range(len(queries))]
    for group in blocks(len(queries), 1, 64):
        for part in blocks(len(table), table.shape[1] * 4):
            scores = queries[group] @ table[part].to(queries.device, torch.float32).T
            enough = scores >= thresholds[group, None] - 2 * _ROUNDING
            for row, mine in enumerate(enough, start=group.start):
                reached[row].append(torch.nonzero(mine)[:, 0] + part.start)
    return [torch.cat(parts) for parts in reached]
