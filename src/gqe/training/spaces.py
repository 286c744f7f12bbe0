"""Embedding spaces to train in: labelled sets, random distortions of them, and synthetic spaces.

A model that is to work in unseen spaces must be trained in many. Distortions change what a cosine means (its
background, its noise, its spectrum, its dimension) and leave the labels as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from gqe.embeddings import as_table
from gqe.errors import InputError
from gqe.formats.checksums import checksum


@dataclass(frozen=True)
class LabelledSet:
    """Embeddings with class labels, perhaps rotated to their principal axes (which changes no cosine).

    Attributes:
        name: for errors and histories.
        embeddings: (n, d) float32, unit length.
        spectrum: (d,) deviation along each principal axis, the largest 1; None if they were not rotated.
        members: the rows of each class.
        classes: (n,) the class of each row, a place in `members`.
        centres: (classes, d) the mean of each class, of unit length.
        anchors: classes far from each other, so that each region of the space has some.
        checksum: of the embeddings and labels it was made from.
    """

    name: str
    embeddings: Tensor
    spectrum: Tensor | None
    members: Sequence[np.ndarray[Any, Any]]
    classes: np.ndarray[Any, Any]
    centres: np.ndarray[Any, Any]
    anchors: np.ndarray[Any, Any]
    checksum: str

    @classmethod
    def of(
        cls,
        name: str,
        embeddings: Any,
        labels: Any,
        device: str | torch.device = "cpu",
        *,
        principal: bool = True,
    ) -> LabelledSet:
        """Check and prepare a set.

        Args:
            name: for errors and histories.
            embeddings: (n, d) embeddings.
            labels: (n,) whole numbers; items labelled -1 belong to no class and only distract.
            device: where episodes of it are made.
            principal: rotate the embeddings to their principal axes. A model that reads coordinates needs
                them as they are.
        """
        table = as_table(embeddings, f"{name}: embeddings").to(device, torch.float32)
        given = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
        if given.shape != (len(table),) or given.dtype.kind not in "iu":
            raise InputError(
                f"{name}: labels: expected {len(table)} whole numbers, got {given.dtype} {given.shape}"
            )
        data = checksum(table, given)
        order = np.argsort(given, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(given[order])) + 1)
        members: list[np.ndarray[Any, Any]] = []
        for group in groups if len(order) else []:
            members += [group[i : i + 1] for i in range(len(group))] if given[group[0]] == -1 else [group]
        if sum(len(group) > 1 for group in members) < 2:
            raise InputError(f"{name}: labels: training needs at least two classes of two or more items")
        classes = np.empty(len(table), np.int64)
        classes[np.concatenate(members)] = np.repeat(np.arange(len(members)), [len(rows) for rows in members])
        centres = _centres(table, classes, len(members))
        anchors = _farthest_points(centres)
        if not principal:
            return cls(name, table, None, members, classes, centres, anchors, data)
        centred = table - table.mean(dim=0)
        values, axes = torch.linalg.eigh((centred.T @ centred / len(table)).double())
        spectrum = values.clamp(min=0).sqrt().flip(0).float()
        rotated, spectrum = table @ axes.flip(1).float(), spectrum / spectrum[0].clamp(min=1e-12)
        return cls(name, rotated, spectrum, members, classes, centres, anchors, data)

    def similar_classes(self, rng: Generator) -> np.ndarray[Any, Any]:
        """All classes, those similar to a random anchor, which are easily confused, first."""
        towards = self.centres @ self.centres[rng.choice(self.anchors)]
        return np.argsort(-towards - rng.normal(size=len(towards)) * rng.uniform(0, 0.2), kind="stable")


def fingerprint(sets: Sequence[LabelledSet], *settings: Any) -> str:
    """Identifies a training on these sets with these settings of its losses; see `train`."""
    return " ".join([*(each.checksum for each in sets), *map(repr, settings)])


def _centres(table: Tensor, classes: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    sums = torch.zeros((count, table.shape[1]), device=table.device)
    sums.index_add_(0, torch.from_numpy(classes).to(table.device), table)
    centres: np.ndarray[Any, Any] = unit(sums).cpu().numpy()
    return centres


def _farthest_points(centres: np.ndarray[Any, Any], most: int = 64) -> np.ndarray[Any, Any]:
    """Places of rows, each the farthest from all chosen before it."""
    chosen = [0]
    nearest = centres @ centres[0]
    for _ in range(min(most, len(centres)) - 1):
        chosen.append(int(nearest.argmin()))
        nearest = np.maximum(nearest, centres @ centres[chosen[-1]])
    return np.array(chosen)


def unit(x: Tensor) -> Tensor:
    """Rows of unit length."""
    return torch.nn.functional.normalize(x, dim=1)


def _normal(shape: tuple[int, ...], like: Tensor, noise: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=noise, device=like.device)


def distort(
    x: Tensor, spectrum: Tensor | None, rng: Generator, noise: torch.Generator, *, weak: float = 0.5
) -> Tensor:
    """The same items in another embedding space.

    Args:
        x: (n, d) unit vectors in their principal axes.
        spectrum: (d,) their deviations, or None to leave them.
        rng: decides what is done.
        noise: for random matrices and noise, on the device of x.
        weak: share of the maps that leave few dimensions.

    Returns:
        (n, d') unit vectors.
    """
    if spectrum is not None and rng.random() < 0.5:
        # Partly whitened, or the opposite; the deviation of small axes is bounded.
        x = unit(x * spectrum.clamp(min=0.02) ** rng.uniform(-0.6, 0.5))
    kind = rng.random()
    if kind < 0.7:
        x = unit(_mapped(x, rng, noise, weak, linear=kind < 0.4))
    if rng.random() < 0.55:
        level = np.exp(rng.uniform(np.log(0.05), np.log(0.9)))
        uneven = torch.exp(_normal((len(x), 1), x, noise) * rng.uniform(0, 0.6))
        x = unit(x + level * uneven * _normal(x.shape, x, noise) / x.shape[1] ** 0.5)
    if rng.random() < 0.35:
        # A common direction raises the background; an uneven share of it makes hubs.
        common = unit(_normal((1, x.shape[1]), x, noise)) * rng.uniform(0.1, 1.2)
        x = unit(x + common * torch.exp(_normal((len(x), 1), x, noise) * rng.uniform(0, 0.4)))
    return x


def _mapped(x: Tensor, rng: Generator, noise: torch.Generator, weak: float, *, linear: bool) -> Tensor:
    """Through a random matrix to another dimension, perhaps through a nonlinearity, as a network would."""
    # Few dimensions separate the classes badly, as a weak descriptor does.
    low, high = (12, 64) if rng.random() < weak else (48, 768)
    dim = int(np.exp(rng.uniform(np.log(low), np.log(high))))
    if linear and dim < x.shape[1] and rng.random() < 0.3:
        return x[:, :dim]
    y = x @ _normal((x.shape[1], dim), x, noise)
    if linear:
        return y
    kind = rng.integers(4)
    if kind == 0:
        return torch.relu(y + rng.uniform(-0.5, 0.7))
    if kind == 1:
        return torch.tanh(y * rng.uniform(0.5, 3.0))
    if kind == 2:
        return torch.relu(y) ** rng.uniform(0.5, 2.0)
    return y.sign() * y.abs() ** rng.uniform(0.3, 1.7)


def synthesize(labels: np.ndarray[Any, Any], rng: Generator, noise: torch.Generator, device: str) -> Tensor:
    """Items of a synthetic space: nested groups of classes, each a cloud, several clouds, or a curve.

    Args:
        labels: (n,) class of each item, 0 or more.
        rng: decides on the space.
        noise: for its coordinates, on the device.
        device: where.

    Returns:
        (n, d) unit vectors.
    """
    own = torch.from_numpy(np.ascontiguousarray(labels)).to(device)
    classes, dim = int(labels.max()) + 1, int(np.exp(rng.uniform(np.log(10), np.log(500))))
    like = torch.empty(0, device=device)
    scale = torch.arange(1, dim + 1, device=device) ** -rng.uniform(0.0, 0.8)
    families = max(1, int(classes / np.exp(rng.uniform(0, np.log(25)))))
    family = torch.randint(families, (classes,), generator=noise, device=device)
    kinship = rng.uniform(0.0, 0.85)
    centre = kinship**0.5 * _normal((families, dim), like, noise)[family]
    centre = (centre + (1 - kinship) ** 0.5 * _normal((classes, dim), like, noise))[own]

    spread = np.exp(rng.uniform(np.log(0.15), np.log(1.5)))
    spread = spread * torch.exp(_normal((classes, 1), like, noise) * rng.uniform(0, 0.5))[own]
    n, kind = len(labels), rng.integers(4)
    inner = _normal((n, dim), like, noise)
    if kind == 1:  # several clouds per class
        modes = int(rng.integers(2, 6))
        which = own * modes + torch.randint(modes, (n,), generator=noise, device=device)
        inner = _normal((classes * modes, dim), like, noise)[which] + rng.uniform(0.1, 0.6) * inner
    elif kind >= 2:  # a curve, as views of an object that rotates
        turns, length = int(rng.integers(1, 4)), rng.uniform(0.3, 1.0)
        at = torch.rand((n, 1), generator=noise, device=device) * length * 2 * torch.pi
        inner = rng.uniform(0.05, 0.5) * inner
        for turn in range(1, turns + 1):
            cosine = _normal((classes, dim), like, noise)[own] * torch.cos(turn * at)
            sine = _normal((classes, dim), like, noise)[own] * torch.sin(turn * at)
            inner = inner + (cosine + sine) / turn
    return unit((centre + spread * inner) * scale)
