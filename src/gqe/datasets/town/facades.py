"""Whole walls and roofs: what they are made of, and where windows and doors go."""

from __future__ import annotations

import numpy as np

from gqe.datasets.town.families import Colour
from gqe.datasets.town.mesh import Painter, Wall
from gqe.datasets.town.ornaments import remember_me
from gqe.datasets.town.styles import Style, blend
from gqe.datasets.town.windows import BLACK, GLASS, WHITE, arcade, door, shop, window


def texture(wall: Wall, style: Style, base: Colour, rng: np.random.Generator) -> None:
    """Paint what the wall is made of."""
    w, h, kind = wall.width, wall.height, style.pattern
    dark, light = blend(base, BLACK, 0.14), blend(base, WHITE, 0.18)
    if kind in ("brick", "stone", "rubble", "clapboard", "tiles"):
        gap = {"brick": 0.9, "stone": 1.4, "rubble": 1.8, "clapboard": 0.7, "tiles": 1.0}[kind]
        for row in range(1, int(h / gap)):
            wall.rect(0, row * gap, w, row * gap + (0.12 if kind != "clapboard" else 0.16), dark)
        if kind != "clapboard":
            for _ in range(int(min(26, w * h / 10))):
                row = int(rng.integers(max(1, int(h / gap))))
                length = gap * float(rng.uniform(1.0, 2.0))
                u = float(rng.uniform(0, max(0.1, w - length)))
                tone = (dark, light, blend(base, style.wall2, 0.5))[int(rng.integers(3))]
                if kind == "tiles":
                    tone = (style.roof, style.trim, style.door)[int(rng.integers(3))]
                wall.rect(u, row * gap + 0.1, u + length, min(h, (row + 1) * gap), tone)
        if kind in ("stone", "rubble"):
            for row in range(int(h / 1.4)):
                long = 0.9 if row % 2 else 0.5
                wall.rect(0, row * 1.4, long, min(h, row * 1.4 + 1.2), light)
                wall.rect(w - long, row * 1.4, w, min(h, row * 1.4 + 1.2), light)
    elif kind == "timber":
        beam = 0.28
        count = max(2, round(w / 2.6))
        rows = max(1, round(h / style.floor))
        for row in range(rows + 1):
            level = min(h - beam, row * h / rows)
            wall.rect(0, level, w, level + beam, style.trim)
        for post in range(count + 1):
            u = post * (w - beam) / count
            wall.rect(u, 0, u + beam, h, style.trim)
        for row in range(rows):
            v0, v1 = row * h / rows, (row + 1) * h / rows
            for post in range(count):
                if (post + row) % 2 == 0:
                    continue
                a, b = post * (w - beam) / count, (post + 1) * (w - beam) / count
                if (post // 2 + row) % 2:
                    a, b = b, a
                wall.paint(((a, v0), (a + beam, v0), (b + beam, v1), (b, v1)), style.trim)
    elif kind in ("stripes", "bands"):
        gap = style.floor / 2 if kind == "stripes" else style.floor
        thick = gap / 2 if kind == "stripes" else 0.45
        tone = style.wall2 if kind == "stripes" else style.trim
        for row in range(1, int(h / gap) + 1):
            wall.rect(0, row * gap - thick, w, min(h, row * gap), tone)
    elif kind == "boards":
        for u in np.arange(0.8, w, 0.8):
            wall.rect(u, 0, u + 0.12, h, dark)
    elif kind == "panels":
        for u in np.arange(style.bay, w, style.bay):
            wall.rect(u - 0.06, 0, u + 0.06, h, dark)
        for v in np.arange(style.floor, h, style.floor):
            wall.rect(0, v - 0.06, w, v + 0.06, light)
    elif kind == "buttress":
        for u in np.arange(0.4, w, max(3.4, style.bay * 1.4)):
            wall.paint(((u - 0.5, 0), (u + 0.5, 0), (u + 0.3, h * 0.92), (u - 0.3, h * 0.92)), light)


def curtain(wall: Wall, style: Style, rng: np.random.Generator) -> None:
    """Paint a curtain wall: glass from edge to edge."""
    floors = max(1, round(wall.height / style.floor))
    columns = max(2, round(wall.width / style.bay))
    for floor in range(floors):
        v0, v1 = floor * wall.height / floors, (floor + 1) * wall.height / floors
        for column in range(columns):
            u0, u1 = column * wall.width / columns, (column + 1) * wall.width / columns
            tone = blend(style.wall, GLASS, float(rng.uniform(0.3, 0.9)))
            wall.rect(u0 + 0.12, v0 + 0.35, u1 - 0.12, v1 - 0.1, tone, float(rng.uniform(0.3, 1.6)))
    for floor in range(1, floors):
        v = floor * wall.height / floors
        wall.rect(0, v - 0.1, wall.width, v + 0.3, style.trim)


def rows_of_windows(wall: Wall, style: Style, rng: np.random.Generator, ground: float, top: float) -> None:
    """Paint windows in storeys between two heights."""
    room = top - ground
    floors = max(1, round(room / style.floor))
    if style.window in ("pointed", "slit") and room > 6:
        floors = max(1, round(room / (style.floor * 1.8)))
    step_v = room / floors
    bay = style.bay * (1.7 if style.window in ("ribbon", "factory") else 1.0)
    count = max(1, round((wall.width - 0.8) / bay))
    step_u = wall.width / count
    share = {"ribbon": 0.94, "slit": 0.16, "factory": 0.8}.get(style.window, style.window_width)
    width = min(step_u * share, 4.5)
    if style.window == "shuttered":
        width = min(width, step_u * 0.46)
    height = step_v * (0.82 if style.window == "factory" else style.window_height)
    for floor in range(floors):
        for column in range(count):
            lit = float(rng.uniform(0.15, 1.7))
            at = ground + floor * step_v + (step_v - height) * 0.55
            window(wall, style, (column + 0.5) * step_u, at, width, height, lit)


def facade(
    style: Style,
    rng: np.random.Generator,
    *,
    front: int | None = 0,
    base: Colour | None = None,
    ground_floor: str = "plain",
    plain: bool = False,
) -> Painter:
    """A painter of whole walls.

    Args:
        style: How the building looks.
        rng: Source of chance.
        front: Side that has the door, or None.
        base: Colour of the wall where it is not the style's.
        ground_floor: "plain", "arcade" or "shops".
        plain: Leave out what makes a wall worth remembering.

    Returns:
        A function that paints a wall.
    """
    wall_colour = base if base is not None else style.wall

    def paint(wall: Wall) -> None:
        w, h = wall.width, wall.height
        if w < 1.2 or h < 1.2:
            return
        if style.pattern == "curtain":
            curtain(wall, style, rng)
            if front == wall.side:
                door(wall, style, w / 2, min(3.0, w * 0.4), 2.8, 0.4)
            return
        texture(wall, style, wall_colour, rng)
        ground = 0.6
        if ground_floor == "arcade" and h > 6:
            arcade(wall, style, 4.2, 0.8)
            ground = 4.8
        elif ground_floor == "shops" and h > 6 and wall.side == front:
            for u in np.arange(2.2, w - 1.5, 4.4):
                shop(wall, style, u, 3.4, float(rng.uniform(0.2, 0.8)), style.door)
            ground = 3.6
        elif wall.side == front and h > 4 and w > 2.5:
            ground = 3.7
            door(wall, style, w / 2, min(2.2, w * 0.45), 2.9, 0.5)
            if w > 8:
                wide = (w - 4) / 2
                for u in (wide / 2, w - wide / 2):
                    part = max(1, round(wide / style.bay))
                    for column in range(part):
                        at = u - wide / 2 + (column + 0.5) * wide / part
                        size = min(wide / part * style.window_width, 2.2)
                        window(wall, style, at, 1.1, size, 1.9, float(rng.uniform(0.15, 1.7)))
        if h - ground > 2:
            rows_of_windows(wall, style, rng, ground, h - 0.4)
        if not plain:
            remember_me(wall, style, rng)
        wall.slab(0.0, h - 0.4, w, h, 0.35, style.trim)

    return paint


def roof_tiles(colour: Colour, rng: np.random.Generator, gables: Painter | None = None) -> Painter:
    """A painter of roofs: rows of tiles on the slopes, something else on upright gables."""
    dark, light = blend(colour, BLACK, 0.16), blend(colour, WHITE, 0.12)

    def paint(wall: Wall) -> None:
        if abs(float(wall.normal[2])) < 0.05:
            if gables is not None:
                gables(wall)
            return
        rows = max(2, min(9, int(wall.height / 0.9)))
        for row in range(1, rows):
            v = row * wall.height / rows
            wall.rect(0, v, wall.width, v + 0.14, dark)
        for _ in range(int(min(10, wall.width * wall.height / 14))):
            row = int(rng.integers(rows))
            u = float(rng.uniform(0.1, 0.85)) * wall.width
            v = row * wall.height / rows
            wall.rect(u, v + 0.15, min(wall.width, u + 1.2), v + wall.height / rows, light)

    return paint
