"""`knn`: nearest neighbours by cosine, exact or approximate, the same answer in every batch size.

Candidates come from the fastest engine at hand: a matrix product, or, when an approximate answer will do,
cells for the lists of a whole database and an inverted file for other queries. They are then scored anew one
by one, see `gqe.neighbors.rescoring`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import as_table, blocks
from gqe.errors import InputError, short_repr
from gqe.neighbors.candidates import Engine, exact_engine
from gqe.neighbors.cells import approximate_lists
from gqe.neighbors.graph import NeighborGraph
from gqe.neighbors.inverted_file import inverted_file_engine
from gqe.neighbors.rescoring import SPARE, Rescorer
from gqe.progress import Progress, Report, reporting

_MOST = 1_000_000
_QUERY_BLOCK = {"cpu": 1024, "cuda": 4096}


def knn(
    database: Any,
    k: int,
    *,
    queries: Any = None,
    exclude: Any = None,
    recall: float | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    progress: Progress = False,
) -> NeighborGraph:
    """The k nearest neighbours by cosine of every query, or of every database item.

    Args:
        database: (n, d) embeddings, NumPy (also memory-mapped) or torch. n may be 0.
        k: how many neighbours, up to the size of the database or a million; where it has fewer, ids are -1.
        queries: (m, d) embeddings; None means the database itself, each item without itself (by id, so its
            exact duplicates stay).
        exclude: (m,) database ids, one a query, that must not be returned; -1 excludes nothing.
        recall: None for the exact answer; otherwise the share of true neighbours an approximate search
            must find, measured on a sample of the queries. Where an exact search is as fast (a small
            database, few queries, a GPU) it is used.
        device: "auto" (where the database is; a GPU for NumPy arrays if there is one), "cpu", "cuda"...
        seed: for the sampling and clustering of the approximate search.
        progress: True shows a bar on a terminal and a line every ten seconds elsewhere; or a function that is
            called with queries done, queries in all, and what is being done.

    Returns:
        NeighborGraph with (m, k) ids and similarities, ties by rising id.

    Example:
        >>> knn(np.eye(3)[[0, 0, 1]], k=1).ids.tolist()
        [[1], [0], [0]]
    """
    table = as_table(database, "database")
    asked = table if queries is None else as_table(queries, "queries", dim=table.shape[1])
    if queries is None and exclude is not None:
        raise InputError("exclude: the items of a graph already exclude themselves; give queries too")
    if queries is None:
        excluded: Tensor | None = torch.arange(len(table))
    else:
        excluded = excluded_ids(exclude, len(asked), len(table))
    place = resolve_device(device, table)
    with reporting(progress, "knn") as report:
        return nearest(table, asked, k, excluded, recall=recall, device=place, seed=seed, progress=report)


def nearest(
    table: Tensor,
    asked: Tensor,
    k: int,
    excluded: Tensor | None,
    *,
    device: torch.device,
    recall: float | None = None,
    seed: int = 0,
    progress: Report | None = None,
) -> NeighborGraph:
    """`knn` for embeddings that are already checked, which costs as much as the search for one query.

    Args:
        table: (n, d) from `as_table`.
        asked: (m, d) queries from `as_table`.
        k: how many neighbours.
        excluded: (m,) from `excluded_ids`, or None.
        device: where to compute.
        recall: see `knn`.
        seed: see `knn`.
        progress: called with queries done, queries in all, and what is being done.
    """
    check_approximation(recall, seed)
    asked_for = check_num_neighbors(k, len(table))
    k = min(asked_for, max(1, len(table)))
    ids = np.full((len(asked), k), -1, dtype=np.int32 if len(table) < 2**31 else np.int64)
    similarities = np.full(ids.shape, -np.inf, dtype=np.float32)
    if len(table) == 0 or len(asked) == 0:
        return NeighborGraph(ids, similarities).widen(asked_for)

    if device.type == "cuda" and table.nbytes < torch.cuda.mem_get_info(device)[0] // 2:
        table = table.to(device)
    fetch = min(len(table), k + SPARE + int(excluded is not None))
    engine: Engine = exact_engine(table)
    lists = found_share = None
    if recall is not None and asked is table and table.device.type == "cpu":
        lists = approximate_lists(table, fetch, recall, seed, progress)
    if lists is not None:
        found_share = lists.recall
    elif recall is not None:
        approximate = inverted_file_engine(table, asked, fetch, recall, engine, seed)
        if approximate is not None:
            engine, found_share = approximate
    rescorer = Rescorer(table, k, exact=found_share is None)
    for part in blocks(len(asked), 1, _QUERY_BLOCK.get(device.type, _QUERY_BLOCK["cuda"])):
        block = asked[part].to(device, torch.float32)
        omit = None if excluded is None else excluded[part].to(device)
        found = engine(block, fetch) if lists is None else lists.candidates(part, device)
        best = rescorer.rank(block, found, omit)
        ids[part], similarities[part] = best.ids.cpu().numpy(), best.similarities.cpu().numpy()
        if progress is not None:
            progress(part.stop, len(asked), "neighbours")
    return NeighborGraph(ids, similarities, found_share).widen(asked_for)


def check_num_neighbors(k: object, n: int) -> int:
    """Check how many of n items are asked for: up to all of them, or a million of a smaller database."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k: expected a whole number of at least 1, got {short_repr(k)}")
    if k > max(n, _MOST):
        raise InputError(f"k: at most {max(n, _MOST):,} of {n:,} items can be asked for; give a smaller k")
    return int(k)


def excluded_ids(exclude: Any, m: int, n: int) -> Tensor | None:
    """Check the ids (m,) that queries must not find in a database of n items."""
    if exclude is None:
        return None
    try:
        ids = np.asarray(exclude.cpu() if isinstance(exclude, Tensor) else exclude)
    except (ValueError, TypeError):
        raise InputError(f"exclude: expected {m} whole numbers, one a query") from None
    if ids.shape != (m,) or (m and ids.dtype.kind not in "iu"):
        raise InputError(f"exclude: expected {m} whole numbers, one a query, got {ids.dtype} {ids.shape}")
    if m and (ids.min() < -1 or ids.max() >= n):
        raise InputError(f"exclude: ids must lie between -1 and {n - 1}; -1 excludes nothing")
    return torch.from_numpy(ids.astype(np.int64))


def check_approximation(recall: object, seed: object) -> None:
    """Refuse a recall or a seed that makes no sense."""
    if recall is not None and not (
        isinstance(recall, int | float | np.number) and not isinstance(recall, bool) and 0 < recall <= 1
    ):
        raise InputError(f"recall: expected a number above 0 and at most 1, got {recall!r}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**31:
        raise InputError(f"seed: expected a whole number from 0 to 2**31 - 1, got {seed!r}")


def resolve_device(device: str | torch.device, table: Tensor | None = None) -> torch.device:
    """The device that "auto" means for this table, or the one named."""
    if device == "auto":
        if table is not None and table.device.type != "cpu":
            return table.device
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError(f"device: {device!r} is not a device; use auto, cpu, cuda or cuda:N") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device: no CUDA device is available here; use --device cpu or auto")
    try:
        torch.zeros(1, device=place).cpu()
    except (RuntimeError, NotImplementedError, AssertionError):
        raise InputError(f"device: {device!r} cannot be used here; use auto or cpu") from None
    return place
