"""Training tuples of the paper: a query, a positive, and negatives that are hard for the expanded query.

The scheme is that of Radenović et al. (TPAMI 2019): every so many tuples new query-positive pairs and a new
random pool are drawn, and the negatives of a query are the nearest pool items of other classes, one per class
at most. The paper mines with respect to the *expanded* query, so the model under training expands it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gqe.aggregators.base import positive_int
from gqe.embeddings import blocks
from gqe.errors import InputError

# Similarities of queries and pool held at a time.
_BLOCK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}


class Tuples(NamedTuple):
    """Ids into the training set: queries (t,), positives (t,), negatives (t, count), hardest first."""

    queries: Tensor
    positives: Tensor
    negatives: Tensor


def mine(
    embeddings: Tensor,
    labels: Any,
    expand: Callable[[Tensor], Tensor],
    *,
    tuples: int = 2000,
    pool: int = 20_000,
    negatives: int = 5,
    generator: torch.Generator | None = None,
) -> Tuples:
    """Draw tuples with hard negatives.

    Args:
        embeddings: (n, d) the training set.
        labels: (n,) classes; -1 is an item relevant to nobody, which can only be a negative.
        expand: gives the expanded queries (t, d) of the items with these ids (t,).
        tuples: how many; the paper mines new ones, from a new pool, after every 2000.
        pool: how many random items the negatives are searched in.
        negatives: how many per tuple.
        generator: makes the draw repeatable.

    Example:
        >>> vectors = torch.nn.functional.normalize(torch.randn(40, 8), dim=1)
        >>> found = mine(vectors, torch.arange(40) % 10, lambda ids: vectors[ids], tuples=3)
        >>> found.negatives.shape
        torch.Size([3, 5])
    """
    classes = _classes(labels, len(embeddings))
    queries, positives = draw_pairs(classes, tuples, generator=generator)
    size = min(positive_int("pool", pool), len(embeddings))
    items = torch.randperm(len(embeddings), generator=generator)[:size].sort().values
    with torch.no_grad():
        expanded = expand(queries)
        candidates = embeddings.index_select(0, items.to(embeddings.device)).to(expanded)
        found = hard_negatives(expanded, classes[queries], candidates, classes[items], negatives)
    return Tuples(queries, positives, items[found.to(items.device)])


def draw_pairs(labels: Any, count: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Random pairs of two different items of one class: ids (count,) of queries and of positives.

    Every item whose class has another one is a query with the same probability.
    """
    classes = _classes(labels)
    order = torch.argsort(classes, stable=True)
    order = order[classes[order] >= 0]
    _, sizes = torch.unique_consecutive(classes[order], return_counts=True)
    starts = torch.cumsum(sizes, 0) - sizes
    size, start = sizes.repeat_interleave(sizes), starts.repeat_interleave(sizes)
    usable = torch.nonzero(size > 1)[:, 0]
    if len(usable) == 0:
        raise InputError("labels: no class has two items; training needs pairs of the same class")
    picked = usable[torch.randint(len(usable), (positive_int("count", count),), generator=generator)]
    # Any other place within the class: 1..size-1 steps further, around its end.
    steps = 1 + (torch.rand(count, generator=generator, dtype=torch.float64) * (size[picked] - 1)).long()
    partner = start[picked] + (picked - start[picked] + steps) % size[picked]
    return order[picked], order[partner]


def hard_negatives(
    expanded: Tensor, query_labels: Any, pool: Tensor, pool_labels: Any, count: int = 5
) -> Tensor:
    """For each query the nearest pool items of other classes, at most one per class.

    Args:
        expanded: (t, d) expanded queries.
        query_labels: (t,) their classes.
        pool: (p, d) candidates.
        pool_labels: (p,) their classes; each item of class -1 is a class of its own.
        count: how many.

    Returns:
        (t, count) places in the pool, nearest first, ties by rising place.

    Example:
        >>> hard_negatives(torch.eye(2)[:1], [0], torch.eye(2)[[0, 0, 0, 1]], [0, 1, 1, 2], count=2)
        tensor([[1, 3]])
    """
    own = _classes(query_labels, len(expanded), "query_labels").to(expanded.device)
    classes = _classes(pool_labels, len(pool), "pool_labels").to(expanded.device)
    group, first_of = _groups(classes)
    budget = _BLOCK_BYTES.get(expanded.device.type, _BLOCK_BYTES["cuda"])
    parts = [
        _nearest_of_other_groups(expanded[part], own[part], pool, group, classes[first_of], count)
        for part in blocks(len(expanded), 32 * max(1, len(pool)), budget)
    ]
    return torch.cat(parts) if parts else torch.empty(0, count, dtype=torch.int64, device=expanded.device)


def _nearest_of_other_groups(
    expanded: Tensor, own: Tensor, pool: Tensor, group: Tensor, group_class: Tensor, count: int
) -> Tensor:
    """Groups by their best item: the same as items by falling similarity, one per group."""
    similarities = expanded @ pool.T
    index = group.expand_as(similarities)
    shape = (len(expanded), len(group_class))
    best = similarities.new_full(shape, float("-inf")).scatter_reduce(1, index, similarities, "amax")
    places = torch.arange(len(pool), device=pool.device).expand_as(index)
    tied = torch.where(similarities == best.gather(1, index), places, len(pool))
    place = tied.new_full(shape, len(pool)).scatter_reduce(1, index, tied, "amin")

    forbidden = (group_class == own[:, None]) & (own[:, None] >= 0)
    allowed = (~forbidden).sum(dim=1)
    if bool((allowed < count).any()):
        raise InputError(
            f"pool: only {int(allowed.min())} other classes for a query that needs {count} negatives,"
            " one a class; use a larger pool, more classes or fewer negatives"
        )
    by_place = place.argsort(dim=1)
    best = best.masked_fill(forbidden, float("-inf")).gather(1, by_place)
    nearest = best.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return place.gather(1, by_place.gather(1, nearest))


def _groups(classes: Tensor) -> tuple[Tensor, Tensor]:
    """A group number (p,) for each item, -1 items in groups of their own; and one item (groups,) of each."""
    alone = -1 - torch.arange(len(classes), device=classes.device)
    _, group = torch.unique(torch.where(classes < 0, alone, classes), return_inverse=True)
    first_of = torch.zeros(
        int(group.max()) + 1 if len(group) else 0, dtype=torch.int64, device=classes.device
    )
    first_of[group] = torch.arange(len(group), device=classes.device)
    return group, first_of


def _classes(labels: Any, n: int | None = None, name: str = "labels") -> Tensor:
    classes = torch.as_tensor(labels)
    if classes.ndim != 1 or classes.is_floating_point() or (n is not None and len(classes) != n):
        wanted = "(n,)" if n is None else f"({n},)"
        raise InputError(
            f"{name}: expected {wanted} whole numbers, got {tuple(classes.shape)} {classes.dtype}"
        )
    return classes.to(torch.int64)
