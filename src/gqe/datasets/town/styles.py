"""How a neighbourhood looks: colours, windows, walls and roofs that its buildings have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gqe.datasets.town.families import Colour, Family


@dataclass(frozen=True)
class Style:
    """The dice thrown: what one building (or the typical building of one neighbourhood) looks like.

    Attributes:
        family: The family it comes from.
        wall: Colour of the walls.
        wall2: Colour of a second kind of wall (annexes, bands).
        trim: Colour of frames and cornices.
        roof: Colour of the roof.
        door: Colour of doors, shutters and awnings.
        pattern: What the walls are made of.
        window: Shape of the windows.
        roof_kind: Shape of a plain roof.
        floor: Height of a storey in metres.
        bay: Distance between windows in metres.
        window_width: Width of a window as a share of the bay.
        window_height: Height of a window as a share of the storey.
        mullions: Vertical bars in a window.
        sills: Whether windows have sills.
        hoods: Whether windows have a hood above them.
        flowers: Whether windows have flower boxes.
    """

    family: Family
    wall: Colour
    wall2: Colour
    trim: Colour
    roof: Colour
    door: Colour
    pattern: str
    window: str
    roof_kind: str
    floor: float
    bay: float
    window_width: float
    window_height: float
    mullions: int
    sills: bool
    hoods: bool
    flowers: bool


def shift(colour: Colour, amount: float, rng: np.random.Generator) -> Colour:
    """Move a colour a little, as paint weathers."""
    moved = np.asarray(colour) + rng.normal(0, amount, 3) + rng.normal(0, amount)
    return mix_to_colour(moved)


def mix_to_colour(values: np.ndarray) -> Colour:
    """Round three numbers to a colour."""
    r, g, b = np.clip(np.rint(values), 0, 255).astype(int).tolist()
    return (r, g, b)


def blend(a: Colour, b: Colour, share: float) -> Colour:
    """Mix two colours: share 0 gives a, share 1 gives b."""
    return mix_to_colour(np.asarray(a) * (1 - share) + np.asarray(b) * share)


def choose(options: tuple[Colour, ...], rng: np.random.Generator) -> Colour:
    """Pick one colour."""
    return options[int(rng.integers(len(options)))]


def neighbourhood_style(family: Family, rng: np.random.Generator) -> Style:
    """Throw the dice for a neighbourhood."""

    def word(options: tuple[str, ...]) -> str:
        return options[int(rng.integers(len(options)))]

    return Style(
        family=family,
        wall=shift(choose(family.walls, rng), 6, rng),
        wall2=shift(choose(family.walls, rng), 6, rng),
        trim=shift(choose(family.trims, rng), 5, rng),
        roof=shift(choose(family.roofs, rng), 6, rng),
        door=shift(choose(family.doors, rng), 6, rng),
        pattern=word(family.patterns),
        window=word(family.windows),
        roof_kind=word(family.roof_kinds),
        floor=float(rng.uniform(3.0, 4.4)),
        bay=float(rng.uniform(2.4, 4.0)),
        window_width=float(rng.uniform(0.36, 0.62)),
        window_height=float(rng.uniform(0.48, 0.7)),
        mullions=int(rng.integers(0, 3)),
        sills=bool(rng.random() < 0.6),
        hoods=bool(rng.random() < 0.35),
        flowers=bool(rng.random() < 0.25),
    )


def building_style(home: Style, rng: np.random.Generator, alike: float) -> Style:
    """Vary a neighbourhood's style for one of its buildings.

    Args:
        home: Style of the neighbourhood.
        rng: Source of chance.
        alike: Between 0 (any building of the family) and 1 (a twin of its neighbours).

    Returns:
        The style of the building.
    """
    fresh = neighbourhood_style(home.family, rng)
    keep = rng.random(17) < alike
    return Style(
        family=home.family,
        wall=shift(home.wall if keep[0] else fresh.wall, 5, rng),
        wall2=home.wall2 if keep[1] else fresh.wall2,
        trim=home.trim if keep[2] else fresh.trim,
        roof=shift(home.roof if keep[3] else fresh.roof, 4, rng),
        door=home.door if keep[4] else fresh.door,
        pattern=home.pattern if keep[5] else fresh.pattern,
        window=home.window if keep[6] else fresh.window,
        roof_kind=home.roof_kind if keep[7] else fresh.roof_kind,
        floor=home.floor * float(rng.uniform(0.92, 1.08)) if keep[8] else fresh.floor,
        bay=home.bay * float(rng.uniform(0.9, 1.1)) if keep[9] else fresh.bay,
        window_width=home.window_width if keep[10] else fresh.window_width,
        window_height=home.window_height if keep[11] else fresh.window_height,
        mullions=home.mullions if keep[12] else fresh.mullions,
        sills=home.sills if keep[13] else fresh.sills,
        hoods=home.hoods if keep[14] else fresh.hoods,
        flowers=home.flowers if keep[15] else fresh.flowers,
    )
