"""Landmarks that reach up: churches, domes, towers, mills, pagodas."""

from __future__ import annotations

from gqe.datasets.town.mesh import Wall, circle, rectangle
from gqe.datasets.town.ornaments import accent, rose
from gqe.datasets.town.parts import Yard
from gqe.datasets.town.styles import blend
from gqe.datasets.town.windows import WHITE


def church(yard: Yard) -> None:
    """Nave, tower, sometimes a transept and an apse."""
    w, d, h = yard.between(8, 11), yard.between(18, 27), yard.between(8, 12)
    style = yard.style
    pitch = yard.between(4, 7)

    def rose_gable(wall: Wall) -> None:
        rose(wall, wall.width / 2, wall.height * 0.32, min(1.5, wall.height * 0.26), style, yard.rng)

    yard.block((-w / 2, w / 2), (-d / 2, d / 2), (0, h), front=0)
    yard.roof((-w / 2, w / 2), (-d / 2, d / 2), h, pitch, "gable", along_x=False, gable=rose_gable)
    if yard.chance(0.6):
        y, reach = yard.between(0, d / 4), w / 2 + yard.between(3, 5)
        for sign in (-1, 1):
            x = (w / 2, reach) if sign > 0 else (-reach, -w / 2)
            yard.block(x, (y, y + w * 0.7), (0, h * 0.95), plain=True)
            yard.roof(
                x, (y, y + w * 0.7), h * 0.95, pitch * 0.7, "gable", along_x=True, gable=rose_gable, eaves=0.1
            )
    if yard.chance(0.6):
        yard.drum(0, d / 2 + w * 0.25, (0, h * 0.7), w * 0.38)
        yard.dome(
            0,
            d / 2 + w * 0.25,
            h * 0.7,
            w * 0.4,
            yard.between(2, 4),
            "cone" if yard.chance(0.5) else "round",
            style.roof,
        )
    half = yard.between(2.0, 2.8)
    top, tall = yard.tower_top(), h + yard.between(7, 15)
    places = [(0.0,), (-w / 2 + 0.3, w / 2 - 0.3), (w / 2 + half,)][int(yard.rng.integers(3))]
    for at in places:
        front = -d / 2 - half
        yard.block((at - half, at + half), (front - half, front + half), (0, tall), front=0)
        yard.spire(at, front, tall, half, yard.between(7, 12), style.roof, top)


def domed(yard: Yard) -> None:
    """A hall under a dome, with a portico."""
    w, h = yard.between(14, 20), yard.between(8, 11)
    style = yard.style
    yard.block((-w / 2, w / 2), (-w / 2, w / 2), (0, h))
    r = w * yard.between(0.3, 0.42)
    drum = h + yard.between(2.5, 5)
    yard.drum(0, 0, (h, drum), r)
    yard.dome(
        0,
        0,
        drum,
        r * 1.03,
        r * yard.between(0.8, 1.3),
        "onion" if yard.chance(0.25) else "round",
        style.roof,
    )
    if yard.chance(0.7):
        count, deep = int(yard.rng.integers(4, 7)), 3.5
        for index in range(count):
            at = -w * 0.35 + index * w * 0.7 / (count - 1)
            yard.column(at, -w / 2 - deep + 0.7, (0, h * 0.8), 0.5, blend(style.trim, WHITE, 0.3))
        x, y = (-w * 0.4, w * 0.4), (-w / 2 - deep, -w / 2)
        yard.block(x, y, (h * 0.8, h * 0.92), bare=True, colour=style.trim)
        yard.pediment(x, y, h * 0.92, yard.between(2, 3.2))
    if yard.chance(0.5):
        for sx in (-1, 1):
            for sy in (-1, 1):
                cx, cy = sx * (w / 2 - 1.8), sy * (w / 2 - 1.8)
                yard.drum(cx, cy, (h, h + 2.2), 1.5, sides=8, bare=True)
                yard.dome(cx, cy, h + 2.2, 1.6, 2.4, "round", style.roof)


def onion(yard: Yard) -> None:
    """A cluster of onion domes, or a hall between minarets."""
    w, h = yard.between(12, 18), yard.between(8, 12)
    style = yard.style
    yard.block((-w / 2, w / 2), (-w / 2, w / 2), (0, h), front=0)
    r = w * yard.between(0.22, 0.3)
    yard.drum(0, 0, (h, h + 4), r)
    yard.dome(0, 0, h + 4, r * 1.1, r * 2, "onion", style.roof)
    minarets = yard.chance(0.5)
    for sx in (-1, 1):
        for sy in (-1, 1):
            if minarets:
                x, y, tall = sx * (w / 2 + 1.6), sy * (w / 2 + 1.6), h + yard.between(6, 12)
                yard.drum(x, y, (0, tall), 1.3, top=1.0, sides=8, bare=True)
                yard.site.solid(
                    [circle(x, y, tall, 1.6, 8), circle(x, y, tall + 0.8, 1.6, 8)],
                    [style.trim],
                    cap=style.trim,
                )
                yard.dome(x, y, tall + 0.8, 1.2, 3.5, "onion" if yard.chance(0.5) else "cone", style.roof)
            else:
                x, y = sx * w * 0.33, sy * w * 0.33
                yard.drum(x, y, (h, h + 3), r * 0.5, sides=8)
                tone = accent(yard.rng) if yard.chance(0.4) else style.roof
                yard.dome(x, y, h + 3, r * 0.55, r * 1.2, "onion", tone)


def pagoda(yard: Yard) -> None:
    """Storeys that shrink, each under a wide roof."""
    storeys, half = int(yard.rng.integers(2, 6)), yard.between(4.5, 7)
    style, z = yard.style, 1.2
    yard.block((-half - 2, half + 2), (-half - 2, half + 2), (0, z), bare=True, colour=(176, 170, 160))
    for storey in range(storeys):
        tall = yard.between(3.2, 4.2)
        yard.block(
            (-half, half), (-half, half), (z, z + tall), front=0 if storey == 0 else None, plain=storey > 0
        )
        z += tall
        out, inner = half + yard.between(1.4, 2.0), half * 0.8
        rings = [
            rectangle(-out, out, -out, out, z),
            rectangle(-half * 0.95, half * 0.95, -half * 0.95, half * 0.95, z + 1.0),
        ]
        rings.append(rectangle(-inner, inner, -inner, inner, z + 1.8))
        yard.site.solid(rings, [style.roof], None, cap=style.roof)
        z += 1.8
        half = inner * yard.between(0.88, 1.0)
    yard.roof((-half - 0.5, half + 0.5), (-half - 0.5, half + 0.5), z, yard.between(2.5, 4), "pyramid")
    yard.column(0, 0, (z + 2.4, z + 6.5), 0.25, (214, 170, 60), 6)


def temple(yard: Yard) -> None:
    """Columns all round under a wide roof."""
    w, d, h = yard.between(16, 22), yard.between(11, 15), yard.between(5, 7)
    style = yard.style
    yard.block((-w / 2 - 2, w / 2 + 2), (-d / 2 - 2, d / 2 + 2), (0, 0.7), bare=True, colour=(190, 184, 172))
    yard.block(
        (-w / 2 - 1, w / 2 + 1), (-d / 2 - 1, d / 2 + 1), (0.7, 1.4), bare=True, colour=(200, 194, 182)
    )
    yard.block((-w / 2 + 2, w / 2 - 2), (-d / 2 + 2, d / 2 - 2), (1.4, 1.4 + h), front=0)
    tone = style.door if yard.chance(0.5) else blend(style.trim, WHITE, 0.3)
    count = int(yard.rng.integers(4, 7))
    for index in range(count):
        at = -w / 2 + 0.8 + index * (w - 1.6) / (count - 1)
        for row in (-d / 2 + 0.6, d / 2 - 0.6):
            yard.column(at, row, (1.4, 1.4 + h), 0.5, tone)
    x, y = (-w / 2 - 0.5, w / 2 + 0.5), (-d / 2 - 0.5, d / 2 + 0.5)
    yard.block(x, y, (1.4 + h, 2.2 + h), bare=True, colour=style.trim)
    yard.roof(x, y, 2.2 + h, yard.between(4, 6), "hip" if yard.chance(0.7) else "gable", eaves=1.6)
    if yard.chance(0.4):
        yard.block((-w * 0.22, w * 0.22), (-d * 0.2, d * 0.2), (5 + h, 8.5 + h), plain=True)
        yard.roof((-w * 0.22, w * 0.22), (-d * 0.2, d * 0.2), 8.5 + h, 3, "hip", eaves=1.2)
