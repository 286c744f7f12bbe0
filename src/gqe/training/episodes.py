"""Episodes: small databases with queries, each with classes of its own sizes, distractors and K.

Trained on one fixed database a model learns the class sizes of that database. An episode is what a user may
bring instead: one to over a hundred relevant items, many or few unrelated ones, any K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from gqe.errors import InputError
from gqe.training.spaces import LabelledSet, distort, synthesize, unit

_FOREIGN_TO_TINY = 0.85


@dataclass(frozen=True)
class EpisodeSettings:
    """What episodes look like.

    Attributes:
        queries: how many queries at most.
        items: smallest and largest database of an episode that expands queries only.
        items_both_sides: the same where the database is expanded, too (an item costs as much as a query).
        both_sides: share of the episodes that expand the database, too.
        k: the numbers of neighbours to draw from.
        undistorted: share of the episodes of a real set in its own space.
        foreign: share of the episodes with items of another space in the database, beside which all others
            look alike.
        tiny: share of the episodes whose classes have one to three items: expansion can only do harm there.
        whole: share of the other episodes whose classes have all the items they have in the set.
        weak: share of the maps to other spaces that leave few dimensions.
        singles: share of synthetic items of another space that have no class, as pictures of anything.
        regions: share of the episodes of a real set whose classes resemble each other.
        shares: how often each set is drawn, then how often a synthetic space is; equal if None.
    """

    queries: int = 128
    items: tuple[int, int] = (1000, 6000)
    items_both_sides: tuple[int, int] = (500, 1600)
    both_sides: float = 0.4
    k: tuple[int, ...] = (8, 12, 16, 24, 32, 32, 32, 32, 32, 48, 64)
    undistorted: float = 0.3
    foreign: float = 0.5
    tiny: float = 0.15
    whole: float = 0.0
    weak: float = 0.5
    singles: float = 0.6
    regions: float = 0.5
    shares: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Episode:
    """A database (n, d) with labels (n,), and queries (m, d) with labels (m,) that are not in it.

    `k` neighbours are read; where `both_sides` is set the database is expanded, too. `keep` is the share of
    neighbours that are found, as in an approximate graph.
    """

    database: Tensor
    labels: Tensor
    queries: Tensor
    query_labels: Tensor
    k: int
    both_sides: bool
    source: str
    keep: float = 1.0


def draw_episode(
    sets: Sequence[LabelledSet], settings: EpisodeSettings, seed: Sequence[int], device: str = "cpu"
) -> Episode:
    """Make an episode; the same seed makes the same one.

    Args:
        sets: labelled sets on the device; none leaves synthetic spaces only.
        settings: what it looks like.
        seed: whole numbers, such as (seed, step, place in the batch).
        device: where the sets are.
    """
    rng = np.random.default_rng(list(seed))
    noise = torch.Generator(device).manual_seed(int(rng.integers(2**62)))
    shares = np.asarray(settings.shares if settings.shares is not None else [1.0] * (len(sets) + 1))
    if len(shares) != len(sets) + 1 or shares.min() < 0 or shares.sum() <= 0:
        raise InputError(f"shares: expected {len(sets) + 1} numbers of at least 0, got {settings.shares}")
    chosen = int(rng.choice(len(shares), p=shares / shares.sum()))
    k = int(rng.choice(settings.k))
    both_sides = bool(rng.random() < settings.both_sides)
    low, high = settings.items_both_sides if both_sides else settings.items
    wanted = int(np.exp(rng.uniform(np.log(low), np.log(high))) * min(1.0, 40 / k))
    keep = rng.uniform(0.75, 1.0) if rng.random() < 0.2 else 1.0

    if chosen < len(sets):
        source = sets[chosen]
        sizes = [len(rows) for rows in source.members]
        order = (
            source.similar_classes(rng) if rng.random() < settings.regions else rng.permutation(len(sizes))
        )
        rows, labels, is_query, tiny = _plan(sizes, order, wanted, settings, rng)
        picked = np.concatenate(
            [rng.permutation(source.members[c])[:count] for c, count in zip(*rows, strict=True)]
        )
        x = source.embeddings[torch.from_numpy(picked).to(device)]
        plain = rng.random() < settings.undistorted
        x = x if plain else distort(x, source.spectrum, rng, noise, weak=settings.weak)
        name = source.name
    else:
        sizes = [150] * int(np.exp(rng.uniform(np.log(30), np.log(1500))))
        _, labels, is_query, tiny = _plan(sizes, rng.permutation(len(sizes)), wanted, settings, rng)
        labels = np.unique(labels, return_inverse=True)[1]
        x = synthesize(labels, rng, noise, device)
        x = x if rng.random() < 0.3 else distort(x, None, rng, noise, weak=settings.weak)
        name = "synthetic"
    items = torch.from_numpy(np.flatnonzero(~is_query)).to(device)
    database, own = x[items], torch.from_numpy(labels[~is_query]).to(device)
    if rng.random() < 0.25:
        database, own = _add_mixtures(database, own, rng, noise)
    # Among themselves items of tiny classes look like one class; unrelated items show how rare they are.
    if rng.random() < (max(settings.foreign, _FOREIGN_TO_TINY) if tiny else settings.foreign):
        database, own = _add_unrelated(database, own, wanted, settings.singles, sets, rng, noise, device)
    most = max(1, int(settings.queries * min(1.0, 40 / k)))
    held_out = torch.from_numpy(rng.permutation(np.flatnonzero(is_query))[:most])
    query_labels = torch.from_numpy(labels)[held_out].to(device)
    return Episode(database, own, x[held_out.to(device)], query_labels, k, both_sides, name, keep)


def _plan(
    sizes: Sequence[int],
    order: np.ndarray[Any, Any],
    wanted: int,
    settings: EpisodeSettings,
    rng: Generator,
) -> tuple[Any, Any, Any, bool]:
    """How many items of which class, the label of each item, which are queries, and whether all are tiny.

    Args:
        sizes: items each class has.
        order: the classes in the order they are taken.
        wanted: items in all.
        settings: how often classes are tiny, or whole.
        rng: decides.

    Returns:
        ((classes, counts), labels (n,), is_query (n,) bool, tiny); items of a class are adjacent.
    """
    have = np.asarray(sizes)[order]
    is_tiny = rng.random() < settings.tiny
    if is_tiny:
        size = rng.uniform(1, 4, len(order))
    elif settings.whole and rng.random() < settings.whole:
        size = have.astype(np.float64)
    elif rng.random() < 0.4:  # all sizes in one database
        size = np.exp(rng.uniform(0, np.log(rng.choice([30, 120, 120])), len(order)))
    else:  # about the same size everywhere
        size = np.exp(rng.uniform(np.log(6), np.log(100))) * rng.uniform(0.7, 1.4, len(order))
    size = np.maximum(1, size.astype(np.int64))

    # Some classes have queries. The others are the background, a few items of each; in some databases there
    # are hardly any.
    sparse = rng.random() < (0.7 if is_tiny else 0.35)
    main = (
        np.exp(rng.uniform(np.log(min(60, wanted)), np.log(wanted)))
        if sparse
        else wanted * rng.uniform(0.3, 0.95)
    )
    held = np.minimum(have - 1, rng.integers(1, 5, len(order)))
    size = np.minimum(size, have - held)
    able = (held >= 1) & (np.arange(len(order)) < max(2, int(len(order) * rng.uniform(0.3, 0.8))))
    queried = able & (np.cumsum(np.where(able, size, 0)) - np.where(able, size, 0) < main)
    others = np.flatnonzero(~queried)
    rest = max(0, wanted - int(size[queried].sum()))
    rest = int(rest * rng.uniform(0, 0.2)) if sparse else rest
    per_other = int(np.ceil(rest / max(1, len(others))))
    others = others[: int(np.ceil(rest / max(1, per_other)))] if rest else others[:0]

    chosen = np.concatenate([np.flatnonzero(queried), others])
    in_database = np.concatenate([size[queried], np.minimum(have[others], per_other)])
    as_query = np.concatenate([held[queried], np.zeros(len(others), np.int64)])
    counts = in_database + as_query
    labels = np.repeat(order[chosen], counts)
    place = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_query = place < np.repeat(as_query, counts)
    return (order[chosen], counts), labels, is_query, bool(is_tiny)


def _add_mixtures(
    database: Tensor, labels: Tensor, rng: Generator, noise: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Add mixtures of random items; each has a label of its own."""
    count = int(len(database) * rng.uniform(0.1, 0.7))
    parts = torch.randint(
        len(database), (int(rng.integers(2, 4)), count), generator=noise, device=labels.device
    )
    shares = torch.rand((*parts.shape, 1), generator=noise, device=labels.device)
    mixed = (database[parts] * shares).sum(dim=0)
    jitter = torch.randn(mixed.shape, generator=noise, device=labels.device) / mixed.shape[1] ** 0.5
    mixed = unit(unit(mixed) + rng.uniform(0, 0.7) * jitter)
    fresh = (1 << 40) + torch.arange(count, device=labels.device)
    return torch.cat([database, mixed]), torch.cat([labels, fresh])


def _add_unrelated(
    database: Tensor,
    labels: Tensor,
    wanted: int,
    singles: float,
    sets: Sequence[LabelledSet],
    rng: Generator,
    noise: torch.Generator,
    device: str,
) -> tuple[Tensor, Tensor]:
    """Add items of another space, as photographs of anything beside pictures of road signs.

    They come from any of the sets, randomly rotated, or are synthetic.
    """
    count = int(max(wanted - len(database), 0.4 * wanted) * rng.uniform(0.5, 1.0)) + 1
    if sets and rng.random() < 0.4:
        source = sets[int(rng.integers(len(sets)))]
        picked = rng.permutation(len(source.embeddings))[:count]
        groups = source.classes[picked]
        foreign = source.embeddings[torch.from_numpy(picked).to(device)]
    else:
        # Groups of any size, or a group for each item.
        groups = rng.integers(max(1, int(count / np.exp(rng.uniform(0, 3)))), size=count)
        groups = np.arange(count) if rng.random() < singles else groups
        foreign = synthesize(groups, rng, noise, device)
    rotation = torch.randn((foreign.shape[1], database.shape[1]), generator=noise, device=device)
    # Their mean is moved part of the way to the mean of the database, so that the two may overlap.
    foreign = unit(unit(foreign @ rotation) + rng.uniform(0, 1.5) * database.mean(dim=0))
    fresh = (1 << 41) + torch.from_numpy(groups).to(device)
    return torch.cat([database, foreign]), torch.cat([labels, fresh])
