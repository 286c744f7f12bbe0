"""Neighbour lists after items were added and removed, without searching for all of them again.

A list holds a few neighbours more than aggregators read. A removed neighbour is deleted and the next one
moves up; only a list that has become too short is searched for again. What a list holds is always the exact
beginning of the item's true list (if it was found exactly): a new item is inserted only before the last one
known, since others that the list does not hold may lie behind that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import blocks
from gqe.neighbors.candidates import inner_products
from gqe.neighbors.rescoring import ROUNDING, cosines

Array = np.ndarray[Any, Any]

SPARE_NEIGHBORS = 8
"""Neighbours stored beyond those that aggregators read, for removals to use up."""
_SCORE_BYTES = 64 << 20


class NeighborLists(NamedTuple):
    """Neighbour lists of some items: ids (p, width), -1 = none, and falling similarities (p, width)."""

    ids: Array
    similarities: Array


class ItemChanges(NamedTuple):
    """A change of the database. An item with another embedding is removed and new.

    Attributes:
        removed: (n,) bool, by number.
        new: (m,) numbers of new items.
        vectors: (m, d) float32 embeddings of the new items.
        unchanged: how many items were there before and are there now with the same embedding.
    """

    removed: Array
    new: Array
    vectors: Tensor
    unchanged: int


class UpdatedLists(NamedTuple):
    """Lists after a change.

    Attributes:
        lists: the new lists, right where they are not `incomplete`.
        changed_at: (p,) the first place of each that changed, see `first_changes`.
        incomplete: (p,) bool, those that must be searched for again.
    """

    lists: NeighborLists
    changed_at: Array
    incomplete: Array


def update_lists(
    lists: NeighborLists, vectors: Tensor | None, changes: ItemChanges, min_neighbors: int
) -> UpdatedLists:
    """Delete removed items from lists and insert new ones; ties by rising number.

    Args:
        lists: of p unchanged items.
        vectors: (p, d) float32 embeddings of these items; not read if no items are new.
        changes: of the database.
        min_neighbors: how many neighbours a list must hold; a shorter one is incomplete.
    """
    there = lists.ids >= 0
    removed = there & changes.removed[lists.ids.clip(min=0)]
    after = NeighborLists(lists.ids.copy(), lists.similarities.copy())
    some = np.flatnonzero(removed.any(axis=1))
    after.ids[removed], after.similarities[removed] = -1, -np.inf
    order = np.argsort(removed[some], axis=1, kind="stable")
    for part in after:
        part[some] = np.take_along_axis(part[some], order, axis=1)
    incomplete = np.zeros(len(there), dtype=bool)
    if vectors is not None and len(changes.new) and len(there):
        knows_all = (there & ~removed).sum(axis=1) >= changes.unchanged - 1
        incomplete = _insert(after, vectors, changes, _last_known(lists, knows_all))
    incomplete |= (after.ids >= 0).sum(axis=1) < min_neighbors
    return UpdatedLists(after, first_changes(lists.ids, after.ids, changes.removed), incomplete)


def first_changes(before: Array, after: Array, removed: Array) -> Array:
    """(p,) the first place where lists (p, width) differ or held a removed item; the width if none."""
    different = (before != after) | ((before >= 0) & removed[before.clip(min=0)])
    return np.asarray(np.where(different.any(axis=1), different.argmax(axis=1), before.shape[1]))


def _last_known(lists: NeighborLists, knows_all: Array) -> NeighborLists:
    """The last places of lists: every item before them is known. Ids and similarities (p,)."""
    lengths = (lists.ids >= 0).sum(axis=1)
    last = np.maximum(lengths - 1, 0)[:, None]
    ids, similarities = (np.take_along_axis(part, last, axis=1)[:, 0] for part in lists)
    similarities = np.where(lengths == 0, np.inf, similarities)
    largest = np.iinfo(ids.dtype).max
    return NeighborLists(np.where(knows_all, largest, ids), np.where(knows_all, -np.inf, similarities))


def _insert(lists: NeighborLists, vectors: Tensor, changes: ItemChanges, last: NeighborLists) -> Array:
    """Insert new items before the last known places of lists, in place; returns (p,) which are incomplete."""
    rows, places, incomplete = _near_pairs(vectors, changes, last, lists.ids.shape[1])
    numbers, similarities = changes.new[places], np.empty(len(rows), dtype=np.float32)
    for part in blocks(len(rows), vectors.shape[1] * 4):
        others = torch.from_numpy(places[part])[:, None]
        similarities[part] = cosines(vectors[rows[part]], changes.vectors, others)[:, 0].numpy()
    tied = similarities == last.similarities[rows]
    known = (similarities > last.similarities[rows]) | (tied & (numbers < last.ids[rows]))
    rows, numbers, similarities = rows[known], numbers[known], similarities[known]
    if not len(rows):
        return incomplete
    some, row, counts = np.unique(rows, return_inverse=True, return_counts=True)
    column = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    new_ids = np.full((len(some), counts.max()), -1, dtype=lists.ids.dtype)
    new_similarities = np.full(new_ids.shape, -np.inf, dtype=np.float32)
    new_ids[row, column], new_similarities[row, column] = numbers, similarities
    ids = np.concatenate([lists.ids[some], new_ids], axis=1)
    joined = np.concatenate([lists.similarities[some], new_similarities], axis=1)
    order = np.lexsort((ids, -joined), axis=1)[:, : lists.ids.shape[1]]
    lists.ids[some] = np.take_along_axis(ids, order, axis=1)
    lists.similarities[some] = np.take_along_axis(joined, order, axis=1)
    return incomplete


def _near_pairs(
    vectors: Tensor, changes: ItemChanges, last: NeighborLists, width: int
) -> tuple[Array, Array, Array]:
    """Pairs of a list and a new item that may lie before its last known place, by rising list.

    Returns:
        (q,) lists, (q,) places of the new items, and (p,) bool, lists without pairs that must be searched
        for: nothing is known of them, or so many new items are near that a search is cheaper.
    """
    bounds = torch.from_numpy(last.similarities.astype(np.float32) - np.float32(ROUNDING))[:, None]
    unknown = torch.from_numpy(np.isposinf(last.similarities))
    counts = torch.zeros(len(vectors), dtype=torch.int64)
    pairs = []
    for part in blocks(len(changes.new), len(vectors) * 4, _SCORE_BYTES):
        near = inner_products(vectors, changes.vectors[part]) >= bounds
        counts += near.sum(dim=1)
        unknown |= counts > 2 * width
        near[unknown] = False
        pairs.append(torch.nonzero(near) + torch.tensor([0, part.start]))
    rows, places = torch.cat(pairs).unbind(dim=1)
    wanted = ~unknown[rows]
    rows, order = torch.sort(rows[wanted], stable=True)
    return rows.numpy(), places[wanted][order].numpy(), unknown.numpy()
