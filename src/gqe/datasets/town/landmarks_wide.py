"""Landmarks that stretch out: halls, palaces, mills, stations, terraces."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from gqe.datasets.town.mesh import Wall, circle, rectangle
from gqe.datasets.town.ornaments import accent
from gqe.datasets.town.parts import Yard
from gqe.datasets.town.styles import blend, choose, shift
from gqe.datasets.town.windows import WHITE, grown, outline


def town_hall(yard: Yard) -> None:
    """A broad hall with an arcade and a clock tower, not always in its middle."""
    w, d, h = yard.between(22, 32), yard.between(11, 15), yard.between(10, 14)
    yard.block(
        (-w / 2, w / 2),
        (-d / 2, d / 2),
        (0, h),
        front=0,
        ground_floor="arcade" if yard.chance(0.6) else "plain",
    )
    kind = yard.style.roof_kind if yard.style.roof_kind not in ("flat", "sawtooth") else "hip"
    yard.roof((-w / 2, w / 2), (-d / 2, d / 2), h, yard.between(4, 6), kind)
    at, half = float(yard.rng.choice([-0.3, 0.0, 0.3])) * w, yard.between(2.4, 3.4)
    top = h + yard.between(8, 15)
    yard.block((at - half, at + half), (-d / 2 - 2 * half, -d / 2), (0, top), front=0)
    yard.spire(at, -d / 2 - half, top, half, yard.between(6, 10), yard.style.roof, yard.tower_top())
    if yard.chance(0.5):
        yard.flag(-at if at else w * 0.35, 0.0, h + 3)


def palace(yard: Yard) -> None:
    """A central pavilion between two wings."""
    w, d, h = yard.between(26, 38), yard.between(9, 12), yard.between(9, 12)
    middle = yard.between(4, 6)
    kind = yard.style.roof_kind if yard.style.roof_kind in ("mansard", "hip", "flat") else "hip"
    for sign in (-1, 1):
        x = (middle, w / 2) if sign > 0 else (-w / 2, -middle)
        yard.block(x, (-d / 2, d / 2), (0, h), ground_floor="arcade" if yard.chance(0.3) else "plain")
        yard.roof(x, (-d / 2, d / 2), h, 3.6, kind, eaves=0.2)
    tall = h + yard.between(2, 5)
    yard.block((-middle, middle), (-d / 2 - 2.5, d / 2 + 2.5), (0, tall), front=0)
    if yard.chance(0.5):
        yard.pediment((-middle, middle), (-d / 2 - 2.5, d / 2 + 2.5), tall, 3.0)
    else:
        yard.dome(
            0,
            0,
            tall,
            middle * 0.9,
            yard.between(5, 8),
            str(yard.rng.choice(["round", "onion"])),
            yard.style.roof,
        )
    if yard.chance(0.5):
        for sign in (-1, 1):
            x = (w / 2, w / 2 + 6) if sign > 0 else (-w / 2 - 6, -w / 2)
            yard.block(x, (-d / 2 - 3, d / 2 + 3), (0, h + 1))
            yard.roof(x, (-d / 2 - 3, d / 2 + 3), h + 1, 4.5, "pyramid" if yard.chance(0.5) else kind)


def mansion(yard: Yard) -> None:
    """A house with a wing and a turret."""
    w, d, h = yard.between(12, 18), yard.between(9, 12), yard.between(7, 10)
    kind = yard.style.roof_kind
    yard.block((-w / 2, w / 2), (-d / 2, d / 2), (0, h), front=0)
    yard.roof((-w / 2, w / 2), (-d / 2, d / 2), h, yard.between(3.5, 6), kind)
    side = -1 if yard.chance(0.5) else 1
    low = h * yard.between(0.6, 0.9)
    x = (w / 2, w / 2 + 7) if side > 0 else (-w / 2 - 7, -w / 2)
    y = (-d / 2 - yard.between(0, 4), d * 0.2)
    yard.block(x, y, (0, low), front=0 if yard.chance(0.3) else None, colour=yard.style.wall2)
    yard.roof(x, y, low, yard.between(2.5, 4), kind, along_x=False)
    if yard.chance(0.7):
        r = yard.between(1.8, 2.6)
        top = h + yard.between(2, 5)
        yard.drum(-side * (w / 2 + r * 0.9), -d / 2 - r, (0, top), r, sides=8)
        yard.dome(
            -side * (w / 2 + r * 0.9),
            -d / 2 - r,
            top,
            r * 1.2,
            yard.between(3, 6),
            yard.tower_cap(),
            yard.style.roof,
        )
    for _ in range(int(yard.rng.integers(1, 3))):
        x0 = yard.between(-w / 2 + 1, w / 2 - 2)
        yard.block((x0, x0 + 1), (d / 4, d / 4 + 1), (h + 1, h + 6), bare=True, colour=yard.style.wall2)


def terrace(yard: Yard) -> None:
    """A row of tall narrow houses, each in its own colour."""
    count = int(yard.rng.integers(3, 6))
    widths = [yard.between(5, 8) for _ in range(count)]
    x, d = -sum(widths) / 2, yard.between(9, 12)
    for width in widths:
        h = yard.between(8, 14)
        colour = shift(choose(yard.style.family.walls, yard.rng), 6, yard.rng)
        y0 = -d / 2 - yard.between(0, 0.8)
        shops = "shops" if yard.chance(0.5) else "plain"
        yard.block((x, x + width), (y0, d / 2), (0, h), front=0, colour=colour, ground_floor=shops)
        kind = (
            yard.style.roof_kind
            if yard.style.roof_kind in ("gable", "stepped", "hip", "flat", "mansard")
            else "gable"
        )
        old = yard.style
        yard.style = type(old)(**{**vars(old), "wall": colour})  # gables take the colour of their house
        yard.roof((x, x + width), (y0, d / 2), h, yard.between(3.5, 6), kind, along_x=False, eaves=0.0)
        yard.style = old
        x += width


def market_hall(yard: Yard) -> None:
    """A long hall under a barrel roof with glass ends."""
    w, d, h = yard.between(11, 16), yard.between(22, 32), yard.between(5, 8)
    rise = yard.between(4, 7)
    style = yard.style
    yard.block((-w / 2, w / 2), (-d / 2, d / 2), (0, h), front=0)
    angle = np.pi * np.arange(9) / 8
    arc = [(float(-w / 2 * np.cos(a)), float(h + rise * np.sin(a))) for a in angle]
    tone, pale = style.roof, blend(style.roof, WHITE, 0.35)
    for index, ((xa, za), (xb, zb)) in enumerate(pairwise(arc)):
        low, high = min(za, zb), max(za, zb)
        base = rectangle(xa, xb, -d / 2, d / 2, low)
        top = rectangle(xa, xb, -d / 2, d / 2, high)
        lean = top.copy()
        # One edge stays low: the piece is a wedge that follows the arc.
        lean[[0, 3] if za < zb else [1, 2], 2] = low + 0.01

        def ribs(wall: Wall, colour: tuple[int, int, int] = pale) -> None:
            for v in np.arange(1.5, wall.width, 3.0):
                wall.rect(v, 0, v + 0.5, wall.height, colour)

        glass = (120, 150, 166)
        lid = tone if index % 2 else blend(tone, WHITE, 0.08)
        yard.site.solid([base, lean], [glass, lid, glass, lid], ribs, cap=lid)
    for end in (-1, 1):
        y = (-d / 2 - 1.2, -d / 2) if end < 0 else (d / 2, d / 2 + 1.2)
        for sign in (-1, 1):
            x = (w / 2 - 2, w / 2) if sign > 0 else (-w / 2, -w / 2 + 2)
            yard.block(x, y, (0, h + rise * 0.8), bare=True, colour=style.wall2)


def mill(yard: Yard) -> None:
    """A brick mill with chimneys."""
    w, d, h = yard.between(20, 32), yard.between(11, 15), yard.between(9, 15)
    yard.block((-w / 2, w / 2), (-d / 2, d / 2), (0, h), front=0)
    kind = "sawtooth" if yard.chance(0.5) else "gable"
    yard.roof((-w / 2, w / 2), (-d / 2, d / 2), h, yard.between(2.5, 4.5), kind, eaves=0.2)
    for _ in range(int(yard.rng.integers(1, 3))):
        x, tall = yard.between(-w / 2, w / 2), h + yard.between(8, 18)
        y = d / 2 + 2.2
        bands = [yard.style.wall, blend(yard.style.wall, (0, 0, 0), 0.15)]
        yard.drum(x, y, (0, tall), 1.7, top=1.1, sides=10, bare=True, colours=bands)
        yard.site.solid(
            [circle(x, y, tall, 1.4, 10), circle(x, y, tall + 1.0, 1.5, 10)],
            [yard.style.trim],
            cap=(40, 36, 36),
        )
    side = -1 if yard.chance(0.5) else 1
    annexe = (w / 2, w / 2 + 5) if side > 0 else (-w / 2 - 5, -w / 2)
    tall = h + yard.between(2, 6)
    yard.block(annexe, (-d / 2, -d / 2 + 6), (0, tall), front=0, colour=yard.style.wall2)
    yard.roof(annexe, (-d / 2, -d / 2 + 6), tall, 3.0, str(yard.rng.choice(["flat", "pyramid", "gable"])))


def station(yard: Yard) -> None:
    """A station: a great arched window between two blocks."""
    w, d, h = yard.between(28, 38), yard.between(10, 14), yard.between(8, 11)
    middle, tall = yard.between(5, 8), h + yard.between(3, 6)
    style = yard.style
    panes = accent(yard.rng) if yard.chance(0.4) else (120, 146, 166)

    def great_window(wall: Wall) -> None:
        if wall.side not in (0, 2):
            return
        size = min(wall.width * 0.8, wall.height * 1.3)
        shape = outline("arched", wall.width / 2, 0.5, size, wall.height * 0.82)
        wall.paint(grown(shape, 0.5), style.trim)
        wall.paint(shape, panes, 0.3)
        for u in np.linspace(-0.4, 0.4, 6):
            wall.rect(
                wall.width / 2 + u * size - 0.12,
                0.5,
                wall.width / 2 + u * size + 0.12,
                wall.height * 0.6,
                style.trim,
            )
        wall.rect(
            wall.width / 2 - size / 2,
            wall.height * 0.35,
            wall.width / 2 + size / 2,
            wall.height * 0.38,
            style.trim,
        )

    yard.site.solid(
        [
            rectangle(-middle, middle, -d / 2 - 1.5, d / 2 + 1.5, 0),
            rectangle(-middle, middle, -d / 2 - 1.5, d / 2 + 1.5, tall),
        ],
        [style.wall],
        great_window,
        cap=style.roof,
    )
    yard.roof((-middle, middle), (-d / 2 - 1.5, d / 2 + 1.5), tall, 3.0, "gable", along_x=False)
    for sign in (-1, 1):
        x = (middle, w / 2) if sign > 0 else (-w / 2, -middle)
        yard.block(x, (-d / 2, d / 2), (0, h), front=0 if sign > 0 else None)
        yard.roof(
            x, (-d / 2, d / 2), h, 3.2, style.roof_kind if style.roof_kind != "sawtooth" else "hip", eaves=0.2
        )
    if yard.chance(0.6):
        top = tall + yard.between(4, 9)
        yard.block((w / 2, w / 2 + 5), (-2.5, 2.5), (0, top))
        yard.spire(w / 2 + 2.5, 0, top, 2.5, 7, style.roof, yard.tower_top())
