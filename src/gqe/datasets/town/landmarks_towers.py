"""Towers: clock towers, lighthouses, windmills, skyscrapers."""

from __future__ import annotations

import numpy as np

from gqe.datasets.town.mesh import Wall, circle, rectangle
from gqe.datasets.town.ornaments import accent, clock
from gqe.datasets.town.parts import Yard


def clock_tower(yard: Yard) -> None:
    """A tall tower with clocks, standing on a low house."""
    half, tall = yard.between(2.8, 4), yard.between(22, 32)
    style = yard.style
    base = yard.between(5, 8)
    w = half * yard.between(1.5, 3)
    yard.block((-w, w), (-w, w), (0, base), front=0)
    sections = int(yard.rng.integers(1, 4))
    z = base
    for section in range(sections):
        shrink = half * (1 - 0.12 * section)
        upper = base + (tall - base) * (section + 1) / sections
        colour = style.wall2 if section % 2 else style.wall
        yard.block((-shrink, shrink), (-shrink, shrink), (z, upper), colour=colour, plain=True)
        z = upper
    shrink = half * (1 - 0.12 * (sections - 1)) + 0.3
    face, rim = ((250, 246, 230), style.trim) if yard.chance(0.7) else ((40, 50, 70), (222, 184, 80))

    def clocks(wall: Wall) -> None:
        clock(wall, wall.width / 2, wall.height / 2, wall.width * 0.34, face, rim)

    top = z + 2 * shrink
    rings = [rectangle(-shrink, shrink, -shrink, shrink, z), rectangle(-shrink, shrink, -shrink, shrink, top)]
    yard.site.solid(rings, [style.wall], clocks, cap=style.trim)
    yard.spire(0, 0, top, shrink, yard.between(6, 10), style.roof, yard.tower_top())


def lighthouse(yard: Yard) -> None:
    """A striped lighthouse with a keeper's house."""
    r, tall = yard.between(2.8, 3.8), yard.between(18, 26)
    style = yard.style
    bands = int(yard.rng.integers(3, 7))
    first, second = (accent(yard.rng), (246, 244, 238)) if yard.chance(0.8) else (style.wall, style.trim)
    for band in range(bands):
        low, high = tall * band / bands, tall * (band + 1) / bands
        yard.drum(
            0,
            0,
            (low, high),
            r * (1 - 0.4 * low / tall),
            top=r * (1 - 0.4 * high / tall),
            bare=band % 2 == 1,
            colours=[second if band % 2 else first],
        )
    yard.site.solid(
        [circle(0, 0, tall, r * 0.9), circle(0, 0, tall + 0.7, r * 0.9)], [style.trim], cap=(90, 90, 90)
    )
    yard.drum(0, 0, (tall + 0.7, tall + 3), r * 0.45, bare=True, colours=[(255, 236, 170), (60, 60, 66)])
    yard.dome(0, 0, tall + 3, r * 0.55, 1.8, "cone" if yard.chance(0.5) else "round", first)
    side = 1 if yard.chance(0.5) else -1
    x = (r + 0.5, r + yard.between(7, 11)) if side > 0 else (-r - yard.between(7, 11), -r - 0.5)
    yard.block(x, (-3, 3.5), (0, 4.5), front=0)
    yard.roof(x, (-3, 3.5), 4.5, 3.2, "gable", along_x=yard.chance(0.5))


def windmill(yard: Yard) -> None:
    """A windmill; its sails look to -y."""
    r, tall = yard.between(3.4, 4.6), yard.between(11, 15)
    style = yard.style
    yard.drum(0, 0, (0, tall), r, top=r * 0.65, sides=8, front=6)
    yard.dome(
        0,
        0,
        tall,
        r * 0.75,
        yard.between(2.5, 4),
        str(yard.rng.choice(["cone", "round", "onion"])),
        style.roof,
    )
    hub = tall + 0.8
    y = -r * 0.75 - 0.9
    turn, long = yard.between(0, np.pi / 2), yard.between(8, 10)
    yard.column(0, y + 0.2, (hub - 0.4, hub + 0.4), 0.5, style.door, 6)
    cloth = (244, 238, 224) if yard.chance(0.6) else accent(yard.rng)
    centre, sails = np.array([0, y - 0.3, hub]), []
    for arm in range(4):
        a = turn + arm * np.pi / 2
        along, across = np.array([np.cos(a), 0, np.sin(a)]), np.array([-np.sin(a), 0, np.cos(a)])
        for low, near, far, colour in ((0.0, -0.12, 0.12, style.door), (0.2, 0.12, 1.5, cloth)):
            ends = ((low, near), (1.0, near), (1.0, far), (low, far))
            sails.append((np.array([centre + along * long * u + across * v for u, v in ends]), colour))
    yard.site.sheet(sails)
    if yard.chance(0.6):
        x = (r + 1, r + yard.between(6, 9))
        yard.block(x, (-3, 3), (0, 4), front=0)
        yard.roof(x, (-3, 3), 4, 3, "gable")


def skyscraper(yard: Yard) -> None:
    """One or two slabs of glass on a plinth."""
    style = yard.style
    base = yard.between(4, 6)
    w, d = yard.between(16, 24), yard.between(12, 18)
    yard.block((-w / 2, w / 2), (-d / 2, d / 2), (0, base), front=0, colour=style.wall2)
    slabs = int(yard.rng.integers(1, 4))
    for slab in range(slabs):
        x0 = -w / 2 + 1 + slab * (w - 2) / slabs
        x1 = x0 + (w - 2) / slabs - 0.8
        tall = yard.between(16, 36)
        y0, y1 = -d / 2 + yard.between(0.5, 3), d / 2 - yard.between(0.5, 3)
        yard.block(
            (x0, x1),
            (y0, y1),
            (base, tall),
            colour=style.wall2 if slab % 2 else style.wall,
            taper=yard.between(0, 0.8),
        )
        crown = accent(yard.rng) if yard.chance(0.6) else style.trim
        yard.block(
            (x0 + 1, x1 - 1), (y0 + 1, y1 - 1), (tall, tall + yard.between(1, 3)), bare=True, colour=crown
        )
        if yard.chance(0.4):
            yard.column((x0 + x1) / 2, 0, (tall + 3, tall + 9), 0.2, (210, 60, 50), 4)


def stepped_tower(yard: Yard) -> None:
    """Blocks set back one above the other."""
    steps, half_x, half_y = int(yard.rng.integers(3, 6)), yard.between(8, 11), yard.between(7, 10)
    style, z = yard.style, 0.0
    for step in range(steps):
        tall = yard.between(4.5, 8.5)
        colour = style.wall2 if step % 2 and yard.chance(0.5) else style.wall
        yard.block(
            (-half_x, half_x), (-half_y, half_y), (z, z + tall), front=0 if step == 0 else None, colour=colour
        )
        z += tall
        half_x *= yard.between(0.66, 0.86)
        half_y *= yard.between(0.66, 0.86)
    half = min(half_x, half_y)
    yard.spire(
        0,
        0,
        z,
        half,
        yard.between(5, 10),
        style.roof if yard.chance(0.6) else accent(yard.rng),
        yard.tower_top(),
    )
