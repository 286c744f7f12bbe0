"""What a similarity-only aggregator knows of the space around a neighbourhood.

A cosine of 0.4 is a near duplicate in one space and a stranger in another. Two things make it readable
anywhere: the similarity of unrelated items (the background), and how near the neighbours' own neighbours are
(their profiles: a neighbour whose own list is full of nearer items does not return the node's interest).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

# The places of an item's neighbour list that its profile keeps: the list on a logarithmic scale.
PLACES = (1, 2, 4, 8, 16, 32)
# How finely the landscape of a database is known.
QUANTILES = 33
# How many neighbour lists show the landscape of a database, and which share of those items, the ones with
# most company, show its background: no fewer than so many.
_LISTS = 4096
_COMPANY, _FEWEST = 4, 256
# The place in a list that tells whether an item has company.
_FOURTH = PLACES.index(4)
# The 5th percentile of a normal distribution lies this many deviations below the median.
_FIFTH_PERCENTILE = 1.645


def lists_sample(n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The items of n, always the same ones, whose neighbour lists show the landscape and who has company."""
    return np.sort(np.random.default_rng(0).permutation(n)[:_LISTS])


def with_company(lists: Tensor) -> Tensor:
    """The items whose fourth neighbour is nearest: those among whom the `background` is measured.

    Thousands of strangers may lie beside what is searched for. Measured among them, all road signs are alike:
    what counts is how similar unrelated items are that could be taken for each other.

    Args:
        lists: (n, places) `profiles` of items, those of `lists_sample` in a large database.

    Returns:
        (p,) places of the chosen items, in rising order: a quarter of all, or 256 if that is more.
    """
    count = min(len(lists), max(_FEWEST, len(lists) // _COMPANY))
    return lists[:, _FOURTH].sort(descending=True, stable=True).indices[:count].sort().values


def background(rows: Tensor) -> Tensor:
    """Similarity of unrelated items: the median of random pairs, and the spread below it.

    Only the lower half of the distribution measures the spread: the upper tail holds the related pairs, whose
    share differs from database to database.

    Args:
        rows: (n, d) embeddings of items `with_company`, on any device.

    Returns:
        (2,) float32 median and deviation; (0, 1/sqrt(d)), that of random directions, for fewer than 3 items.
    """
    n, d = rows.shape
    if n < 3:
        return torch.tensor([0.0, d**-0.5], device=rows.device)
    rows = rows.to(torch.float32)
    above, right = torch.triu_indices(n, n, offset=1, device=rows.device)
    pairs = (rows @ rows.T)[above, right]
    low, middle = torch.quantile(pairs, torch.tensor([0.05, 0.5], device=rows.device))
    # Copies of one item would give a spread of 0; 1e-3 is below that of any real space.
    return torch.stack([middle, ((middle - low) / _FIFTH_PERCENTILE).clamp(min=1e-3)])


def profiles(similarities: Tensor) -> Tensor:
    """The similarities at PLACES of each neighbour list.

    Args:
        similarities: (n, K) falling similarities; -inf where a neighbour is missing.

    Returns:
        (n, len(PLACES)); a list shorter than a place gives -inf there.
    """
    short = PLACES[-1] - similarities.shape[1]
    if short > 0:
        similarities = torch.nn.functional.pad(similarities, (0, short), value=float("-inf"))
    return similarities[:, [place - 1 for place in PLACES]]


def landscape(lists: Tensor) -> Tensor:
    """How near neighbours are all over the database: what is crowded here, and what is not.

    Args:
        lists: (n, places) `profiles` of database items; -inf where a list ends.

    Returns:
        (QUANTILES, places) evenly spread quantiles at each place; 0 everywhere for no items.
    """
    if len(lists) == 0:
        return lists.new_zeros((QUANTILES, lists.shape[1]))
    shares = torch.linspace(0, 1, QUANTILES, device=lists.device)
    return torch.quantile(lists.float().clamp(min=-1.0), shares, dim=0)


def crowding(values: Tensor, quantiles: Tensor) -> Tensor:
    """The share of the database that is less crowded than each value says.

    Whatever cosines mean in a space, this is 0.5 for an item as most others, and 1 in the densest spot.

    Args:
        values: (places, ...) similarities.
        quantiles: (QUANTILES, places) a `landscape`.

    Returns:
        (places, ...) shares in [0, 1].
    """
    grid = quantiles.T.contiguous()
    flat = values.flatten(1).contiguous()
    above = torch.searchsorted(grid, flat).clamp(1, QUANTILES - 1)
    low, high = grid.gather(1, above - 1), grid.gather(1, above)
    within = ((flat - low) / (high - low).clamp(min=1e-6)).clamp(0, 1)
    return ((above - 1 + within) / (QUANTILES - 1)).reshape(values.shape)
