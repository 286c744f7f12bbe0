"""What a change of the database puts out of date: levels of items, and statistics of the space.

Of every item it is known how many levels are *valid*, counted from the lowest. Level i of an item is computed
from its own neighbour list and from level i-1 of the items in it. An aggregator with `needs_context` reads
the lists of these neighbours, too: -1 valid levels say that all levels of those that read this item's list
are out of date as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gqe.aggregators import Aggregator
from gqe.aggregators.context import PLACES

Array = np.ndarray[Any, Any]


def valid_levels(stack: Sequence[Aggregator], changed_at: Array) -> Array:
    """(p,) how many levels of items stay valid when their own lists change.

    Args:
        stack: the aggregators of the levels that are stored.
        changed_at: (p,) the first place of each list that changed; at least the lists' width if none.
    """
    valid = np.full(len(changed_at), len(stack))
    for level in range(len(stack), 0, -1):
        valid[changed_at < stack[level - 1].k] = level - 1
    if any(aggregator.needs_context for aggregator in stack):
        valid[changed_at < PLACES[-1]] = -1
    return valid


def reads_outdated(aggregator: Aggregator, neighbors: Array, outdated: Array) -> Array:
    """(p,) bool, which items read an item whose level below is out of date; for them, too, it is the next.

    Args:
        aggregator: of the level above.
        neighbors: (p, width) numbers, -1 = none.
        outdated: (n,) bool, by number: for level i, the items with fewer than i-1 valid levels.
    """
    read = neighbors[:, : aggregator.k]
    return np.asarray((outdated[read.clip(min=0)] & (read >= 0)).any(axis=1))


def statistics_outdated(items: int, items_measured: int) -> bool:
    """Whether a database has doubled or halved since its statistics were measured."""
    return items != items_measured and (items >= 2 * items_measured or 2 * items <= items_measured)
