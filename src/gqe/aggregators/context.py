"""Neighbour lists as similarity-only aggregators read them: a few places of each, and how dense that is.

What is measured of the whole database is in `gqe.statistics`.
"""

from __future__ import annotations

import torch
from torch import Tensor

PLACES = (1, 2, 4, 8, 16, 32)
"""The places of an item's neighbour list that its profile holds: the list on a logarithmic scale."""
QUANTILES = 33
"""How finely the neighbour similarities of a database are known."""
_EQUAL = 1e-5
"""Similarities closer than this count as equal: those of duplicates differ by rounding."""


def list_profiles(similarities: Tensor) -> Tensor:
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


def density_rank(values: Tensor, quantiles: Tensor) -> Tensor:
    """The share of the database whose neighbours are less similar than each value.

    Whatever cosines mean in a space, this is 0.5 for an item like most others, and 1 in the densest region.
    Of equal quantiles, as duplicates give them, the first counts.

    Args:
        values: (places, ...) similarities.
        quantiles: (QUANTILES, places) the `gqe.statistics.neighbor_similarity_quantiles`.

    Returns:
        (places, ...) shares in [0, 1].
    """
    grid = quantiles.T.contiguous()
    flat = values.flatten(1).contiguous()
    above = torch.searchsorted(grid, flat - _EQUAL).clamp(1, QUANTILES - 1)
    low, high = grid.gather(1, above - 1), grid.gather(1, above)
    within = ((flat - low) / (high - low).clamp(min=1e-6)).clamp(0, 1)
    return ((above - 1 + within) / (QUANTILES - 1)).reshape(values.shape)
