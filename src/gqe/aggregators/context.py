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
# How many neighbour lists show the landscape of a database, and how few and how many items its background.
LISTS = 4096
_FEWEST, _MOST = 256, 1024
# Two groups of items stand apart if this share of the variance lies between them: it is 0.64 for a normal
# distribution cut in two and 0.75 for an even one.
_PARTED = 0.82
# The place in a list that tells whether an item has company.
_FOURTH = PLACES.index(4)
# The 5th percentile of a normal distribution lies this many deviations below the median.
_FIFTH_PERCENTILE = 1.645
# How near the nearest pair of a database is, as a share of what is possible, where descriptors are good.
_TWINS = 0.95
# A tenth of the items have a neighbour nearer than this quantile.
_TENTH = round(0.9 * (QUANTILES - 1))
# As a share of the nearest pair's similarity, and in deviations of the background: below the first that
# neighbour says nothing of noise, from the second on it is sure.
_LONELY, _PAIRED = 0.7, 0.8
_BY_CHANCE, _NEVER_BY_CHANCE = 4.5, 5.5


def lists_sample(n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The items of n, always the same ones, whose neighbour lists show the landscape and who has company."""
    return np.sort(np.random.default_rng(0).permutation(n)[:LISTS])


def with_company(lists: Tensor) -> Tensor:
    """The items among whom the `background` is measured: all, or those with company where others have none.

    Thousands of strangers may lie beside what is searched for. Measured among them, all road signs are alike:
    what counts is how similar unrelated items are that could be taken for each other. So where the items part
    into two groups by the similarity of their fourth neighbours (at the threshold of Otsu, 1979), only the
    group that has near ones counts.

    Args:
        lists: (n, places) `profiles` of items, those of `lists_sample` in a large database.

    Returns:
        (p,) places of the chosen items, in rising order; at least 256, if there are so many, at most 1024.
    """
    n, device = len(lists), lists.device
    chosen = torch.arange(n, device=device)
    if n > _FEWEST:
        nearness, order = lists[:, _FOURTH].double().clamp(min=-1.0).sort(descending=True, stable=True)
        count, upper = chosen[1:], nearness.cumsum(0)
        apart = upper[:-1] / count - (upper[-1] - upper[:-1]) / (n - count)
        between = (count / n) * (1 - count / n) * apart**2
        best = between.argmax()
        if between[best] > _PARTED * nearness.var(correction=0):
            chosen = order[: max(int(best) + 1, _FEWEST)].sort().values
    kept = min(len(chosen), _MOST)
    return chosen[torch.arange(kept, device=device) * len(chosen) // max(kept, 1)]


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


def resolved(grounds: Tensor, usual: Tensor) -> Tensor:
    """Backgrounds of levels, with less spread where descriptors are noisy.

    Noise puts a ceiling on all similarities, so that even two views of one thing are few deviations of the
    background apart from strangers. There is noise where the nearest pair of the database is far from equal,
    and yet a tenth of the items have a neighbour nearly as near as that (in a database of strangers few do)
    and nearer than strangers are by chance.

    Args:
        grounds: (levels, 2) `background` of levels, the original embeddings first.
        usual: (QUANTILES, places) the `landscape`.

    Returns:
        (levels, 2) medians as they are, and deviations.
    """
    mean = grounds[0, 0]
    nearest, tenth = (usual[[-1, _TENTH], 0] - mean).clamp(min=1e-6)
    ceiling = (nearest / (1 - mean).clamp(min=1e-3) / _TWINS).clamp(max=1.0)
    paired = (tenth / nearest - _LONELY) / (_PAIRED - _LONELY)
    meant = (tenth / grounds[0, 1] - _BY_CHANCE) / (_NEVER_BY_CHANCE - _BY_CHANCE)
    sure = paired.clamp(0.0, 1.0) * meant.clamp(0.0, 1.0)
    return torch.stack([grounds[:, 0], grounds[:, 1] * ceiling ** (2 * sure)], dim=1)


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
