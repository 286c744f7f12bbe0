"""The built-in town: a data set that needs no download.

Landmarks of a made-up town are drawn as pictures: churches, castles, towers, bridges and rows of houses,
seen from many directions and distances, by day and by night, in rain and snow, behind trees and people.
Landmarks of one neighbourhood look alike. The descriptors (EfficientNet-Lite0 with GeM pooling, PCA-whitened
to 256 dimensions) come with the package; pictures are drawn when asked for.

Relevance is geometry: two pictures of a landmark share what is visible in both. Half of the view or more is
Easy, 15 % or more is Hard, less is Junk. Training, validation and test landmarks are different ones.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gqe.datasets.base import Benchmark, TrainingSet
from gqe.datasets.town import files
from gqe.datasets.town.drawing import draw
from gqe.datasets.town.making import make
from gqe.datasets.town.plan import SplitPlan
from gqe.datasets.town.plan import plan as plan_split
from gqe.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["load", "load_train", "make", "picture"]


def load(split: str = "test", *, path: str | os.PathLike[str] | None = None) -> Benchmark:
    """Load a split to judge by.

    Args:
        split: "val" to choose settings, "test" to report.
        path: A town made with `make`, None for the one that comes with the package.

    Returns:
        The benchmark: queries (m, 256) and database (n, 256) float32 of unit length, ground truth in the
        layout of Revisited Oxford and Paris, and pictures on demand.

    Example:
        >>> town = load("val")
        >>> town.database.shape[1], sorted(town.ground_truth["gnd"][0])
        (256, ['bbx', 'easy', 'hard', 'junk'])
    """
    if split not in ("val", "test"):
        raise InputError(
            f"split: {split!r} has no queries; choose val or test (load_train gives the training set)"
        )
    arrays = files.read(path)
    seed, scale = files.settings_of(arrays)
    queries, database = arrays[f"{split}_queries"], arrays[f"{split}_database"]

    def drawn(kind: str, index: int) -> Image.Image:
        return picture(split, kind, index, seed=seed, scale=scale)

    landmarks = len(set(arrays[f"{split}_query_landmarks"].tolist()))
    distractors = int((arrays[f"{split}_database_landmarks"] < 0).sum())
    return Benchmark(
        name="town" if split == "test" else f"town-{split}",
        queries=files.unpacked(queries),
        database=files.unpacked(database),
        ground_truth=files.unpacked_truth(arrays, split),
        description=(
            f"a drawn town, {split} split: {len(queries)} queries for {landmarks} landmarks among "
            f"{len(database)} pictures, {distractors} of them distractors"
        ),
        picture=drawn,
    )


def load_train(*, path: str | os.PathLike[str] | None = None) -> TrainingSet:
    """Load the training landmarks: embeddings (n, 256) float32 of unit length, labels (n,) int64.

    Example:
        >>> train = load_train()
        >>> len(train.embeddings) == len(train.labels)
        True
    """
    arrays = files.read(path)
    labels = arrays["train_labels"].astype(np.int64)
    return TrainingSet(
        name="town-train",
        embeddings=files.unpacked(arrays["train"]),
        labels=labels,
        description=f"a drawn town, {len(labels)} pictures of {len(np.unique(labels))} training landmarks",
    )


def picture(
    split: str, kind: str, index: int, *, size: int = 224, seed: int = 0, scale: float = 1.0
) -> Image.Image:
    """Draw one picture of the town.

    Args:
        split: "train", "val" or "test".
        kind: "query" or "database".
        index: Row of the picture among the queries or in the database.
        size: Width and height in pixels.
        seed: Seed of the town.
        scale: Share of the town that was made.

    Returns:
        An RGB picture.

    Example:
        >>> picture("test", "query", 0).size
        (224, 224)
    """
    if kind not in ("query", "database"):
        raise InputError(f"kind: {kind!r} is not query or database")
    chosen = _planned(split, seed, scale)
    views = chosen.queries if kind == "query" else chosen.database
    if not 0 <= index < len(views):
        raise InputError(f"index: {index} is not one of the {len(views)} {kind} pictures of {split}")
    return draw(views[index], size)


@lru_cache(maxsize=4)
def _planned(split: str, seed: int, scale: float) -> SplitPlan:
    return plan_split(split, seed, scale)
