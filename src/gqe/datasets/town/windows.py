"""Windows and doors, painted on a wall."""

from __future__ import annotations

import numpy as np

from gqe.datasets.town.families import Colour
from gqe.datasets.town.mesh import Wall
from gqe.datasets.town.styles import Style, blend

GLASS: Colour = (92, 112, 132)
WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
ROUND_HEADED = ("arched", "french", "keyhole")


def outline(kind: str, u: float, v: float, width: float, height: float) -> list[tuple[float, float]]:
    """Corners of an opening whose lower edge is centred at (u, v)."""
    half = width / 2
    if kind == "round":
        angle = 2 * np.pi * np.arange(10) / 10
        radius = min(half, height / 2)
        return [(u + radius * np.cos(a), v + height / 2 + radius * np.sin(a)) for a in angle]
    if kind in ROUND_HEADED:
        spring = max(height - half, height * 0.4)
        rise = height - spring
        arc = np.pi * np.arange(7) / 6
        swell = 1.15 if kind == "keyhole" else 1.0
        top = [(u + swell * half * np.cos(a), v + spring + rise * np.sin(a)) for a in arc]
        return [(u - half, v), (u + half, v), *top]
    if kind == "pointed":
        spring = height * 0.5
        return [
            (u - half, v),
            (u + half, v),
            (u + half, v + spring),
            (u + half * 0.72, v + height * 0.74),
            (u, v + height),
            (u - half * 0.72, v + height * 0.74),
            (u - half, v + spring),
        ]
    return [(u - half, v), (u + half, v), (u + half, v + height), (u - half, v + height)]


def grown(points: list[tuple[float, float]], amount: float) -> list[tuple[float, float]]:
    """Push an outline outwards from its centre by some metres."""
    xy = np.asarray(points)
    centre = (xy.min(0) + xy.max(0)) / 2
    away = xy - centre
    half = np.maximum(np.abs(away).max(0), 1e-6)
    moved = centre + away * (1 + amount / half)
    return [(float(a), float(b)) for a, b in moved]


def window(wall: Wall, style: Style, u: float, v: float, width: float, height: float, lit: float) -> None:
    """Paint one window with its lower edge centred at (u, v)."""
    kind = style.window
    shape = outline(kind, u, v, width, height)
    wall.paint(grown(shape, 0.16), style.trim)
    wall.paint(shape, GLASS, lit)
    # A darker upper edge makes the glass lie inside the wall.
    wall.rect(u - width / 2, v + height * 0.62, u + width / 2, v + height * 0.68, style.trim)
    bars = style.mullions + (2 if kind in ("lattice", "factory") else 0)
    for bar in range(bars):
        at = u - width / 2 + width * (bar + 1) / (bars + 1)
        wall.rect(at - 0.05, v, at + 0.05, v + height * 0.95, style.trim)
    if kind in ("lattice", "factory"):
        for level in (0.25, 0.45, 0.85):
            wall.rect(u - width / 2, v + height * level, u + width / 2, v + height * level + 0.08, style.trim)
    if kind == "shuttered":
        for sign in (-1, 1):
            a, b = u + sign * (width / 2 + 0.12), u + sign * (width / 2 + 0.12 + width * 0.42)
            wall.rect(min(a, b), v, max(a, b), v + height, style.door)
            wall.rect(
                min(a, b), v + height * 0.48, max(a, b), v + height * 0.53, blend(style.door, BLACK, 0.3)
            )
    if kind == "french":
        wall.rect(u - width * 0.62, v - 0.1, u + width * 0.62, v + 0.05, style.trim)
        for post in np.linspace(-0.55, 0.55, 5):
            wall.rect(u + width * post - 0.04, v, u + width * post + 0.04, v + 0.8, (58, 60, 66))
        wall.rect(u - width * 0.6, v + 0.75, u + width * 0.6, v + 0.85, (58, 60, 66))
    if style.sills:
        wall.slab(u - width * 0.62, v - 0.3, u + width * 0.62, v - 0.1, 0.25, style.trim)
    if style.hoods and kind in ("rect", "shuttered", "french"):
        top = v + height + 0.15
        wall.paint(((u - width * 0.7, top), (u + width * 0.7, top), (u, top + 0.55)), style.trim)
    if style.flowers:
        wall.slab(u - width * 0.5, v - 0.1, u + width * 0.5, v + 0.15, 0.35, (112, 72, 50))
        for at in (-0.35, -0.1, 0.15, 0.38):
            petal = (214, 64, 84) if at * 10 % 2 < 1 else (238, 150, 170)
            wall.rect(u + width * at - 0.14, v + 0.1, u + width * at + 0.14, v + 0.42, petal)


def door(wall: Wall, style: Style, u: float, width: float, height: float, lit: float) -> None:
    """Paint a door with steps in front of it."""
    kind = style.window if style.window in (*ROUND_HEADED, "pointed") else "rect"
    shape = outline(kind, u, 0.3, width, height)
    wall.paint(grown(shape, 0.35), style.trim)
    wall.paint(shape, style.door)
    wall.rect(u - 0.05, 0.3, u + 0.05, height * 0.85, blend(style.door, BLACK, 0.35))
    for sign in (-1, 1):
        a = u + sign * width * 0.25
        wall.rect(a - width * 0.13, height * 0.5, a + width * 0.13, height * 0.72, GLASS, lit)
    wall.slab(u - width * 0.9, 0.0, u + width * 0.9, 0.3, 0.9, (176, 170, 160))


def arcade(wall: Wall, style: Style, height: float, lit: float) -> None:
    """Paint a row of open arches along the ground floor."""
    count = max(2, round(wall.width / max(3.2, height * 0.8)))
    step = wall.width / count
    kind = "pointed" if style.window == "pointed" else "arched"
    for index in range(count):
        shape = outline(kind, (index + 0.5) * step, 0.0, step * 0.66, height * 0.86)
        wall.paint(grown(shape, 0.25), style.trim)
        wall.paint(shape, (66, 58, 56), lit)


def shop(wall: Wall, style: Style, u: float, width: float, lit: float, awning: Colour) -> None:
    """Paint a shop window under a striped awning."""
    wall.rect(u - width / 2, 0.4, u + width / 2, 2.5, style.trim)
    wall.rect(u - width / 2 + 0.15, 0.7, u + width / 2 - 0.15, 2.35, GLASS, lit)
    stripes = 6
    edge = np.linspace(u - width * 0.55, u + width * 0.55, stripes + 1)
    for index in range(stripes):
        a, b = float(edge[index]), float(edge[index + 1])
        colour = awning if index % 2 else (246, 240, 230)
        wall.paint(((a, 3.1), (b, 3.1), (b, 2.4), (a, 2.4)), colour, out=(0.0, 0.0, 1.3, 1.3))
