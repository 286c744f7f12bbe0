"""What models know of a whole database: the similarity of unrelated items, and how near neighbours are.

A cosine of 0.4 is a near duplicate in one space and says nothing in another. Two measurements make it
readable anywhere. The *background* is the similarity of unrelated items: the median of random pairs and the
deviation below it. The *neighbor similarity quantiles* tell how near the neighbours of items are all over
the database. Both are measured on a sample of items, which is always the same one, and saved with an index
or a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators.context import PLACES, QUANTILES, list_profiles

if TYPE_CHECKING:
    from gqe.source import LevelSource

Ids = np.ndarray[Any, np.dtype[np.int64]]

MAX_LISTS = 4096
"""Neighbour lists that are sampled."""
_MIN_ITEMS, _MAX_ITEMS = 256, 1024
"""Items among whom the background is measured."""
_SEPARATED = 0.82
"""Two groups of items are separate if this share of the variance lies between them: it is 0.64 for a normal
distribution cut in two and 0.75 for a uniform one."""
_FOURTH = PLACES.index(4)
_FIFTH_PERCENTILE = 1.645
"""The 5th percentile of a normal distribution lies this many deviations below the median."""
_NEAR_DUPLICATE = 0.95
"""How similar the nearest pair of a database is where descriptors are good, as a share of what is
possible."""
_TENTH = round(0.9 * (QUANTILES - 1))
"""A tenth of the items have a neighbour nearer than this quantile."""
_UNPAIRED, _PAIRED = 0.7, 0.8
"""That neighbour's similarity as a share of the nearest pair's: below the first it says nothing about noise,
from the second on it counts wholly."""
_BY_CHANCE, _NOT_BY_CHANCE = 4.5, 5.5
"""The same in deviations of the background."""


class SpaceStatistics:
    """Measurements of one database for one stack: read by every aggregator with `needs_context`.

    Args:
        quantiles: (QUANTILES, len(PLACES)), see `neighbor_similarity_quantiles`; measured when needed if
            None.
        backgrounds: (2,) for each level, the embeddings first; further ones are measured when needed.
        sample: where they are measured; drawn when needed if None.
    """

    def __init__(
        self, quantiles: Any = None, backgrounds: Sequence[Any] = (), sample: ListSample | None = None
    ) -> None:
        self.quantiles = None if quantiles is None else torch.as_tensor(quantiles, dtype=torch.float32)
        self.backgrounds = [torch.as_tensor(pair, dtype=torch.float32) for pair in backgrounds]
        self._sample = sample
        self._on_device: dict[int, tuple[Tensor, Tensor]] = {}

    def read(self, level: int, source: LevelSource) -> tuple[Tensor, Tensor]:
        """What an aggregator of a level reads, on the source's device.

        Returns:
            (2, 2) backgrounds of the original embeddings and of this level, adjusted for noise, and the
            quantiles.
        """
        if level not in self._on_device:
            self.measure(level, source)
            assert self.quantiles is not None
            both = torch.stack([self.backgrounds[i].to(source.device) for i in (0, level)])
            quantiles = self.quantiles.to(source.device)
            self._on_device[level] = adjust_for_noise(both, quantiles), quantiles
        return self._on_device[level]

    @torch.no_grad()
    def measure(self, level: int, source: LevelSource) -> None:
        """Measure what is not known yet, up to the background of a level."""
        if self.quantiles is not None and len(self.backgrounds) > level:
            return
        if self._sample is None:
            self._sample = sample_lists(source)
        sample = self._sample
        if self.quantiles is None:
            self.quantiles = sample.quantiles
        items = torch.from_numpy(sample.items)
        for i in range(len(self.backgrounds), level + 1):
            self.backgrounds.append(background(source.rows(i, items)))

    def to_config(self) -> tuple[list[list[float]], list[list[float]]]:
        """Quantiles and backgrounds as lists of numbers; empty where they were not measured."""
        quantiles: list[list[float]] = [] if self.quantiles is None else self.quantiles.tolist()
        return quantiles, [pair.tolist() for pair in self.backgrounds]


class ListSample(NamedTuple):
    """Neighbour lists of sampled items.

    Attributes:
        items: (p,) among whom the background is measured.
        quantiles: see `neighbor_similarity_quantiles`.
    """

    items: Ids
    quantiles: Tensor

    @classmethod
    def of(cls, items: Ids, profiles: Tensor) -> ListSample:
        """From sampled items (s,) and the profiles (s, len(PLACES)) of their lists."""
        chosen = without_outliers(profiles).cpu().numpy()
        return cls(items[chosen], neighbor_similarity_quantiles(profiles))


def sample_lists(source: LevelSource) -> ListSample:
    """Sample a database."""
    every = source.items()
    items = every[sample_places(len(every))]
    return ListSample.of(items, source.profiles(torch.from_numpy(items)))


def sample_places(n: int) -> Ids:
    """Which of n items are sampled, always the same ones, in rising order."""
    return np.sort(np.random.default_rng(0).permutation(n)[:MAX_LISTS])


def without_outliers(profiles: Tensor) -> Tensor:
    """The items among whom the `background` is measured: those with near neighbours, or all.

    Thousands of unrelated items may lie beside what is searched for. Measured among them, all road signs are
    alike: what counts is how similar unrelated items are that could be mistaken for each other. So where the
    items form two groups by the similarity of their fourth neighbours (at the threshold of Otsu, 1979), only
    the group with near neighbours counts.

    Args:
        profiles: (n, places) of items, those of `sample_places` in a large database.

    Returns:
        (p,) places of the chosen items, in rising order; at least 256, if there are so many, at most 1024.
    """
    n, device = len(profiles), profiles.device
    chosen = torch.arange(n, device=device)
    if n > _MIN_ITEMS:
        nearness, order = profiles[:, _FOURTH].double().clamp(min=-1.0).sort(descending=True, stable=True)
        count, upper = chosen[1:], nearness.cumsum(0)
        distance = upper[:-1] / count - (upper[-1] - upper[:-1]) / (n - count)
        between = (count / n) * (1 - count / n) * distance**2
        best = between.argmax()
        if between[best] > _SEPARATED * nearness.var(correction=0):
            chosen = order[: max(int(best) + 1, _MIN_ITEMS)].sort().values
    size = min(len(chosen), _MAX_ITEMS)
    return chosen[torch.arange(size, device=device) * len(chosen) // max(size, 1)]


def background(rows: Tensor) -> Tensor:
    """Similarity of unrelated items: the median of random pairs, and the deviation below it.

    Only the lower half of the distribution measures the deviation: the upper tail holds the related pairs,
    whose share differs from database to database.

    Args:
        rows: (n, d) embeddings of items `without_outliers`, on any device.

    Returns:
        (2,) float32 median and deviation; (0, 1/sqrt(d)), that of random directions, for fewer than 3 items.
    """
    n, d = rows.shape
    if n < 3:
        return torch.tensor([0.0, d**-0.5], device=rows.device)
    rows = rows.to(torch.float32)
    above, right = torch.triu_indices(n, n, offset=1, device=rows.device)
    with torch.autocast(rows.device.type, enabled=False):
        pairs = (rows @ rows.T)[above, right]
    low, middle = torch.quantile(pairs, torch.tensor([0.05, 0.5], device=rows.device))
    # Copies of one item would give a deviation of 0; 1e-3 is below that of any real space.
    return torch.stack([middle, ((middle - low) / _FIFTH_PERCENTILE).clamp(min=1e-3)])


def neighbor_similarity_quantiles(profiles: Tensor) -> Tensor:
    """How near neighbours are all over the database.

    Args:
        profiles: (n, places) `list_profiles` of database items; -inf where a list ends.

    Returns:
        (QUANTILES, places) evenly spaced quantiles at each place; 0 everywhere for no items.
    """
    if len(profiles) == 0:
        return profiles.new_zeros((QUANTILES, profiles.shape[1]))
    shares = torch.linspace(0, 1, QUANTILES, device=profiles.device)
    return torch.quantile(profiles.float().clamp(min=-1.0), shares, dim=0)


def adjust_for_noise(backgrounds: Tensor, quantiles: Tensor) -> Tensor:
    """Backgrounds of levels, with a smaller deviation where descriptors are noisy.

    Noise puts a ceiling on all similarities, so that even two views of one thing are few deviations of the
    background apart from unrelated items. There is noise where the nearest pair of the database is far from
    equal, and yet a tenth of the items have a neighbour nearly as near as that (among unrelated items few do)
    and nearer than unrelated items are by chance.

    Args:
        backgrounds: (levels, 2) of levels, the original embeddings first.
        quantiles: (QUANTILES, places) `neighbor_similarity_quantiles`.

    Returns:
        (levels, 2) medians as they are, and deviations.
    """
    mean = backgrounds[0, 0]
    nearest, tenth = (quantiles[[-1, _TENTH], 0] - mean).clamp(min=1e-6)
    ceiling = (nearest / (1 - mean).clamp(min=1e-3) / _NEAR_DUPLICATE).clamp(max=1.0)
    paired = (tenth / nearest - _UNPAIRED) / (_PAIRED - _UNPAIRED)
    significant = (tenth / backgrounds[0, 1] - _BY_CHANCE) / (_NOT_BY_CHANCE - _BY_CHANCE)
    certainty = paired.clamp(0.0, 1.0) * significant.clamp(0.0, 1.0)
    return torch.stack([backgrounds[:, 0], backgrounds[:, 1] * ceiling ** (2 * certainty)], dim=1)


__all__ = [
    "MAX_LISTS",
    "ListSample",
    "SpaceStatistics",
    "adjust_for_noise",
    "background",
    "list_profiles",
    "neighbor_similarity_quantiles",
    "sample_lists",
    "sample_places",
    "without_outliers",
]
