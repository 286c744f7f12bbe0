"""Which landmarks stand in the town, and which pictures of them exist.

The plan is thrown from a seed: neighbourhoods with a common style, landmarks in them, and walks around each
landmark during which pictures are taken. Someone who walks takes pictures in one light and from directions
that change little by little; someone else comes on another day. So pictures of a landmark form chains, and no
picture is like all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gqe.datasets.town.drawing import View
from gqe.datasets.town.families import FAMILIES
from gqe.datasets.town.scene import Landmark, dice
from gqe.errors import InputError

SPLITS = ("train", "val", "test")
ALIKE = 0.4


@dataclass(frozen=True)
class Size:
    """How large one split is.

    Attributes:
        neighbourhoods: Number of neighbourhoods.
        landmarks: Number of landmarks.
        queries: Queries for each landmark.
        distractors: Number of pictures of anything else.
        largest: Most database pictures of one landmark; the fewest are 5.
    """

    neighbourhoods: int
    landmarks: int
    queries: int
    distractors: int
    largest: int = 60


SIZES: dict[str, Size] = {
    "train": Size(neighbourhoods=30, landmarks=250, queries=0, distractors=0),
    "val": Size(neighbourhoods=10, landmarks=40, queries=2, distractors=1000),
    "test": Size(neighbourhoods=12, landmarks=60, queries=2, distractors=1500),
}


@dataclass(frozen=True)
class SplitPlan:
    """The pictures of one split.

    Attributes:
        name: Name of the split.
        database: Views in the order of the database.
        database_landmark: Number of the landmark of each, -1 for a distractor, (n,) int64.
        queries: Views that are asked for, never in the database.
        query_landmark: Number of the landmark of each, (m,) int64.
    """

    name: str
    database: tuple[View, ...]
    database_landmark: np.ndarray
    queries: tuple[View, ...]
    query_landmark: np.ndarray


def plan(split: str, seed: int = 0, scale: float = 1.0) -> SplitPlan:
    """Plan one split.

    Args:
        split: "train", "val" or "test".
        seed: Seed of the town.
        scale: Share of the landmarks and distractors, for small towns.

    Returns:
        The plan, the same for the same arguments.
    """
    if split not in SPLITS:
        raise InputError(f"split: unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    if not 0 < scale <= 1:
        raise InputError(f"scale: {scale} is not in (0, 1]; 1 is the whole town")
    if seed < 0:
        raise InputError(f"seed: {seed} is negative; choose 0 or more")
    size = SIZES[split]
    root = (seed, SPLITS.index(split))
    rng = dice(*root)
    areas = max(1, round(size.neighbourhoods * scale))
    families = np.concatenate([rng.permutation(len(FAMILIES)) for _ in range(-(-areas // len(FAMILIES)))])[
        :areas
    ]
    database: list[View] = []
    database_landmark: list[int] = []
    queries: list[View] = []
    query_landmark: list[int] = []
    for number in range(max(2, round(size.landmarks * scale))):
        area = number % areas
        landmark = _landmark(root, area, int(families[area]), number)
        chance = dice(*landmark.own, 1)
        count = round(float(np.exp(chance.uniform(np.log(5), np.log(size.largest)))))
        views = walks(landmark, count, chance)
        database += views
        database_landmark += [number] * count
        for _ in range(size.queries):
            # A visitor stands near a spot where others have stood, at an hour and with a camera of his own.
            near = views[int(chance.integers(count))]
            azimuth = near.azimuth + float(chance.normal(0, 0.2))
            fill = float(np.clip(near.fill * np.exp(chance.normal(0, 0.15)), 0.6, 1.7))
            visit = snapshot(landmark, azimuth, 5000 + len(queries), chance)
            queries.append(replace(visit, fill=fill, eye=near.eye))
            query_landmark.append(number)
    number, wanted = 10_000, len(database) + round(size.distractors * scale)
    while len(database) < wanted:
        area = number % areas
        landmark = _landmark(root, area, int(families[area]), number)
        chance = dice(*landmark.own, 1)
        views = walks(landmark, min(int(chance.integers(1, 9)), wanted - len(database)), chance)
        database += views
        database_landmark += [-1] * len(views)
        number += 1
    order = rng.permutation(len(database))  # no method may profit from the order of the rows
    return SplitPlan(
        split,
        tuple(database[i] for i in order),
        np.array(database_landmark, dtype=np.int64)[order],
        tuple(queries),
        np.array(query_landmark, dtype=np.int64),
    )


def _landmark(root: tuple[int, ...], area: int, family: int, number: int) -> Landmark:
    home = (*root, 1, area)
    kinds = dice(*home, 9).permutation(np.array(FAMILIES[family].kinds))[:4]
    own = (*root, 2, number)
    ordinary = number >= 10_000 and dice(*own, 9).random() < 0.35
    kind = "house" if ordinary else str(kinds[int(dice(*own, 8).integers(len(kinds)))])
    return Landmark(home, own, kind, family, ALIKE)


def walks(landmark: Landmark, count: int, rng: np.random.Generator) -> list[View]:
    """Pictures taken during walks around a landmark, about a dozen on each."""
    views: list[View] = []
    while len(views) < count:
        length = min(int(rng.integers(6, 18)), count - len(views))
        start = snapshot(landmark, float(rng.uniform(0, 2 * np.pi)), 0, rng)
        step = float(rng.choice([-1, 1])) * float(rng.uniform(0.06, 0.2))
        drift = float(rng.normal(0, 0.04))
        for index in range(length):
            views.append(
                View(
                    landmark=landmark,
                    seed=(*landmark.own, len(views)),
                    azimuth=start.azimuth + step * (index + float(rng.normal(0, 0.25))),
                    fill=float(np.clip(start.fill * np.exp(drift * index + rng.normal(0, 0.1)), 0.6, 1.7)),
                    focal=start.focal,
                    eye=start.eye,
                    aim=(float(rng.normal(0, 0.06)), float(rng.normal(0, 0.04))),
                    roll=float(rng.normal(0, 0.025)),
                    hour=float(np.clip(start.hour + 0.08 * index, 4.6, 23.5)),
                    weather=start.weather,
                    autumn=start.autumn,
                    in_the_way=int(rng.choice([0, 1, 2, 3], p=[0.4, 0.3, 0.2, 0.1])),
                    blur=abs(float(rng.normal(0, 0.3))),
                    noise=float(rng.uniform(1, 6)),
                    exposure=float(np.exp(rng.normal(0, 0.1))),
                )
            )
    return views


def snapshot(landmark: Landmark, azimuth: float, number: int, rng: np.random.Generator) -> View:
    """A single picture: any light, any distance."""
    late = rng.random() < 0.07
    hour = float(rng.uniform(18.5, 22.5)) if late else float(rng.uniform(7.3, 18.2))
    return View(
        landmark=landmark,
        seed=(*landmark.own, number),
        azimuth=azimuth,
        fill=float(np.clip(np.exp(rng.normal(np.log(0.95), 0.2)), 0.6, 1.6)),
        focal=float(rng.uniform(0.85, 1.5)),
        eye=float(rng.choice([1.7, 1.7, 1.7, 4.0, 4.0, 9.0, 16.0])),
        aim=(float(rng.normal(0, 0.08)), float(rng.normal(0, 0.05))),
        roll=float(rng.normal(0, 0.03)),
        hour=hour,
        weather=str(rng.choice(["clear", "cloudy", "fog", "rain", "snow"], p=[0.58, 0.28, 0.02, 0.07, 0.05])),
        autumn=bool(rng.random() < 0.3),
        in_the_way=int(rng.choice([0, 1, 2, 3, 4], p=[0.4, 0.3, 0.18, 0.08, 0.04])),
        blur=abs(float(rng.normal(0, 0.35))),
        noise=float(rng.uniform(1, 6)),
        exposure=float(np.exp(rng.normal(0, 0.1))),
    )
