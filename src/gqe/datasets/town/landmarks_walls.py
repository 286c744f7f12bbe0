"""Walls to keep out, to let through and to cross by: castles, gates, bridges."""

from __future__ import annotations

import numpy as np

from gqe.datasets.town.mesh import Wall, rectangle
from gqe.datasets.town.parts import Yard


def castle(yard: Yard) -> None:
    """A keep between round towers."""
    w, d, h = yard.between(16, 24), yard.between(14, 20), yard.between(8, 11)
    yard.block((-w / 2, w / 2), (-d / 2, d / 2), (0, h), front=0)
    yard.battlements((-w / 2, w / 2), (-d / 2, d / 2), h)
    keep, tall = yard.between(3.5, 5), h + yard.between(5, 9)
    yard.block((-keep, keep), (-keep, keep), (h + 1.8, tall), plain=True)
    yard.spire(
        0,
        0,
        tall,
        keep,
        yard.between(6, 9),
        yard.style.roof,
        str(yard.rng.choice(["battlements", "pyramid", "lantern"])),
    )
    cap = yard.tower_cap()
    for sx in (-1, 1):
        for sy in (-1, 1):
            r, top = yard.between(2.2, 3.2), h + yard.between(1, 7)
            x, y = sx * (w / 2 + r), sy * (d / 2 + r)
            yard.drum(x, y, (0, top), r, sides=10)
            if yard.chance(0.75):
                yard.dome(x, y, top, r * 1.2, yard.between(4, 7), cap, yard.style.roof)
    if yard.chance(0.5):
        yard.flag(0, 0, tall + 6)


def gate(yard: Yard) -> None:
    """A gate one can look through."""
    w, d, h = yard.between(12, 18), yard.between(4.5, 7), yard.between(10, 16)
    pier = (w - yard.between(4, 6)) / 2
    arch = h * yard.between(0.45, 0.6)
    for x in ((-w / 2, -w / 2 + pier), (w / 2 - pier, w / 2)):
        yard.block(x, (-d / 2, d / 2), (0, arch), plain=yard.chance(0.4))
    yard.block((-w / 2, w / 2), (-d / 2, d / 2), (arch, h))
    top = str(yard.rng.choice(["attic", "towers", "roof", "battlements"]))
    if top == "attic":
        yard.block(
            (-w / 2 + 1, w / 2 - 1),
            (-d / 2 + 0.5, d / 2 - 0.5),
            (h, h + 2.5),
            bare=True,
            colour=yard.style.wall2,
        )
        yard.dome(0, 0, h + 2.5, 1.6, 3, yard.tower_cap(), yard.style.roof)
    elif top == "towers":
        for sign in (-1, 1):
            at, r = sign * (w / 2 + 2.2), 2.4
            tall = h + yard.between(0, 5)
            yard.drum(at, 0, (0, tall), r, sides=10)
            yard.dome(at, 0, tall, r * 1.15, yard.between(3, 6), yard.tower_cap(), yard.style.roof)
    elif top == "roof":
        yard.roof((-w / 2, w / 2), (-d / 2, d / 2), h, yard.between(3, 5), "hip", eaves=1.2)
    else:
        yard.battlements((-w / 2, w / 2), (-d / 2, d / 2), h)


def bridge(yard: Yard) -> None:
    """A bridge on piers with a tower or two."""
    w, d, h = yard.between(34, 46), yard.between(4, 6), yard.between(5, 7)
    piers = int(yard.rng.integers(3, 6))
    style = yard.style
    for index in range(piers + 1):
        x = -w / 2 + index * w / piers
        yard.block((x - 1.2, x + 1.2), (-d / 2 - 0.6, d / 2 + 0.6), (0, h), bare=True, taper=0.2)

    def arches(wall: Wall) -> None:
        if wall.side not in (0, 2):
            return
        for u in np.arange(0.6, wall.width, 1.5):
            wall.rect(u, wall.height - 1.1, u + 0.25, wall.height, style.trim)
        wall.rect(0, wall.height - 0.2, wall.width, wall.height, style.trim)
        wall.rect(0, 0.5, wall.width, 0.8, style.trim)

    rings = [
        rectangle(-w / 2 - 2, w / 2 + 2, -d / 2, d / 2, h),
        rectangle(-w / 2 - 2, w / 2 + 2, -d / 2, d / 2, h + 2.4),
    ]
    yard.site.solid(rings, [style.wall], arches, cap=(150, 146, 140))
    spots = {1: (0.0,), 2: (-w / 4, w / 4), 3: (-w / 3, 0.0, w / 3)}[int(yard.rng.integers(1, 4))]
    top = yard.tower_top()
    for x in spots:
        tall = h + yard.between(9, 15)
        yard.block((x - 2.2, x + 2.2), (-d / 2 + 0.3, d / 2 - 0.3), (h + 2.4, tall))
        yard.spire(x, 0, tall, 2.2, yard.between(4, 7), style.roof, top)
