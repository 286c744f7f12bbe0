"""A landmark on its square: the building, the houses around it, the trees, the hills beyond."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gqe.datasets.town.families import FAMILIES, Colour
from gqe.datasets.town.landmarks import KINDS
from gqe.datasets.town.mesh import Builder, Mesh
from gqe.datasets.town.parts import Yard
from gqe.datasets.town.styles import Style, building_style, neighbourhood_style

GROUNDS: dict[str, tuple[Colour, Colour]] = {
    # the square, and the land around it
    "cobbles": ((176, 166, 152), (140, 158, 104)),
    "water": ((186, 178, 164), (92, 138, 164)),
    "paving": ((200, 192, 178), (152, 166, 118)),
    "sand": ((222, 204, 166), (204, 186, 140)),
    "grass": ((186, 176, 150), (124, 164, 92)),
    "gravel": ((206, 198, 180), (128, 150, 96)),
}


@dataclass(frozen=True)
class Landmark:
    """Where chance begins for one landmark.

    Attributes:
        neighbourhood: Seeds of its neighbourhood.
        own: Seeds of the landmark itself.
        kind: Name of its kind, "house" for an ordinary street.
        family: Index of the neighbourhood's family.
        alike: How much it looks like its neighbours, 0..1.
    """

    neighbourhood: tuple[int, ...]
    own: tuple[int, ...]
    kind: str
    family: int
    alike: float


@dataclass(frozen=True)
class Tree:
    """A tree of the square."""

    x: float
    y: float
    height: float
    kind: str
    seed: int


@dataclass(frozen=True)
class Scene:
    """A landmark on its square, ready to be seen.

    Attributes:
        mesh: Landmark and houses.
        radius: Half the diagonal of the landmark's footprint in metres.
        height: Height of the landmark in metres.
        trees: Trees of the square.
        square: Colour of the square.
        land: Colour of the land around it.
        water: Whether that land is water.
        hills: Amplitudes and phases of the skyline, (waves, 3).
        paving: Number of rays in the paving of the square.
    """

    mesh: Mesh
    radius: float
    height: float
    trees: tuple[Tree, ...]
    square: Colour
    land: Colour
    water: bool
    hills: np.ndarray
    paving: int


def dice(*seeds: int) -> np.random.Generator:
    """A source of chance that depends on the seeds and on nothing else."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))


def house(yard: Yard, x: float, y: float) -> None:
    """An ordinary house of the neighbourhood."""
    w, d, h = yard.between(8, 13), yard.between(8, 11), yard.between(6, 11)
    span_x, span_y = (x - w / 2, x + w / 2), (y - d / 2, y + d / 2)
    front = int(np.argmax([y, -x, -y, x]))  # the side that looks at the square
    yard.block(span_x, span_y, (0, h), front=front, plain=True)
    yard.roof(span_x, span_y, h, yard.between(3, 5), yard.style.roof_kind, eaves=0.3)


def build(landmark: Landmark) -> Scene:
    """Build the scene of a landmark."""
    home_dice = dice(*landmark.neighbourhood)
    family = FAMILIES[landmark.family]
    home = neighbourhood_style(family, home_dice)
    rng = dice(*landmark.own)
    site = Builder()
    if landmark.kind == "house":
        yard = Yard(site, building_style(home, rng, landmark.alike), rng)
        for x in (-10.0, 0.0, 10.0)[: int(rng.integers(1, 4))]:
            yard.style = building_style(home, rng, landmark.alike)
            house(yard, x + 0.01, -1.0)
    else:
        KINDS[landmark.kind](Yard(site, building_style(home, rng, landmark.alike), rng))
    low = np.min([box[0] for box in site.boxes], axis=0)
    high = np.max([box[1] for box in site.boxes], axis=0)
    radius = float(np.hypot(max(-low[0], high[0]), max(-low[1], high[1])))
    site.building_own = False
    _add_houses(site, landmark, home, radius, rng)
    trees = []
    for _ in range(int(rng.integers(2, 8))):
        angle, out = float(rng.uniform(0, 2 * np.pi)), radius + float(rng.uniform(3, 12))
        kind = family.trees
        height = float(rng.uniform(5, 10))
        trees.append(Tree(out * np.cos(angle), out * np.sin(angle), height, kind, int(rng.integers(1 << 30))))
    square, land = GROUNDS[family.ground]
    hills = np.stack(
        [home_dice.uniform(0.2, 1, 5), home_dice.uniform(0, 6.28, 5), home_dice.integers(1, 9, 5)], axis=1
    )
    return Scene(
        mesh=site.finish(),
        radius=radius,
        height=float(high[2]),
        trees=tuple(trees),
        square=square,
        land=land,
        water=family.ground == "water",
        hills=hills,
        paving=int(home_dice.integers(8, 20)),
    )


def _add_houses(
    site: Builder, landmark: Landmark, home: Style, radius: float, rng: np.random.Generator
) -> None:
    """Put houses of the neighbourhood around the square; the same few designs return all over it."""
    lots = int(rng.integers(6, 10))
    turn = float(rng.uniform(0, 2 * np.pi))
    for lot in range(lots):
        angle = turn + 2 * np.pi * (lot + float(rng.uniform(-0.2, 0.2))) / lots
        out = radius + float(rng.uniform(18, 30))
        design = dice(*landmark.neighbourhood, 77, int(rng.integers(6)))
        yard = Yard(site, building_style(home, design, 0.7), design)
        house(yard, out * float(np.cos(angle)), out * float(np.sin(angle)))
