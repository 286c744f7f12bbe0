"""What stands in the way and what makes a street alive: trees, lamps, people, cars.

Everything is drawn with a pen in picture coordinates: (0, 0) is the upper left corner and 1 the width of the
picture. A pen may paint a picture, or only blot out what is behind, to find what of a landmark is visible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gqe.datasets.town.families import Colour
from gqe.datasets.town.light import Light
from gqe.datasets.town.styles import mix_to_colour

if TYPE_CHECKING:
    from PIL import ImageDraw

SKIN: tuple[Colour, ...] = ((236, 196, 166), (196, 146, 110), (142, 96, 70), (96, 64, 48))
CLOTH: tuple[Colour, ...] = (
    (190, 48, 52),
    (44, 82, 140),
    (236, 184, 60),
    (60, 120, 90),
    (70, 66, 76),
    (222, 214, 200),
    (132, 76, 132),
    (216, 116, 70),
)
LEAVES: dict[str, tuple[Colour, ...]] = {
    "summer": ((70, 120, 58), (86, 140, 66), (104, 156, 80)),
    "autumn": ((196, 110, 44), (214, 146, 54), (168, 78, 42)),
    "blossom": ((236, 176, 196), (246, 204, 216), (222, 150, 176)),
    "fir": ((44, 84, 62), (54, 98, 70), (36, 72, 54)),
}


class Pen:
    """Draws on a picture in units of its width.

    Args:
        draw: Where to draw.
        size: Width of the picture in pixels.
        light: Light that falls on what is drawn, or None to blot out with 0.
    """

    def __init__(self, draw: ImageDraw.ImageDraw, size: int, light: Light | None) -> None:
        self.draw = draw
        self.size = size
        self.light = light
        self.far = 0.0
        self.tint = np.ones(3) if light is None else np.clip(light.shade + 0.55 * light.sun, 0, 1.15)

    def at_distance(self, metres: float) -> None:
        """Let haze lie over everything drawn from now on."""
        self.far = 0.0 if self.light is None else 1 - float(np.exp(-metres / self.light.reach))

    def colour(self, colour: Colour, glow: bool = False) -> Colour | int:
        """The colour as the light shows it."""
        if self.light is None:
            return 0
        seen = np.asarray(colour, dtype=float) * (1.0 if glow else self.tint)
        return mix_to_colour(seen * (1 - self.far) + self.light.haze * self.far)

    def polygon(self, points: list[tuple[float, float]], colour: Colour, glow: bool = False) -> None:
        """Fill a polygon."""
        flat = [value * self.size for point in points for value in point]
        self.draw.polygon(flat, fill=self.colour(colour, glow))

    def disc(self, x: float, y: float, rx: float, ry: float, colour: Colour, glow: bool = False) -> None:
        """Fill an ellipse."""
        s = self.size
        box = ((x - rx) * s, (y - ry) * s, (x + rx) * s, (y + ry) * s)
        self.draw.ellipse(box, fill=self.colour(colour, glow))

    def bar(self, x0: float, y0: float, x1: float, y1: float, colour: Colour, glow: bool = False) -> None:
        """Fill an upright rectangle."""
        self.polygon([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], colour, glow)


Prop = Callable[[Pen, float, float, float, np.random.Generator], None]


def tree(pen: Pen, x: float, y: float, s: float, rng: np.random.Generator, kind: str, height: float) -> None:
    """A tree whose foot is at (x, y), with s picture widths to the metre."""
    h = height * s
    trunk = (98, 74, 56)
    if kind in ("fir", "cypress"):
        tones = LEAVES["fir"]
        wide = h * (0.26 if kind == "fir" else 0.11)
        pen.bar(x - h * 0.03, y - h * 0.12, x + h * 0.03, y, trunk)
        if kind == "cypress":
            pen.disc(x, y - h * 0.54, wide, h * 0.46, tones[0])
            pen.disc(x - wide * 0.3, y - h * 0.55, wide * 0.5, h * 0.4, tones[1])
            return
        for level in range(4):
            low, top = y - h * (0.1 + 0.2 * level), y - h * (0.46 + 0.18 * level)
            half = wide * (1 - 0.2 * level)
            pen.polygon([(x - half, low), (x + half, low), (x, top)], tones[level % 2])
        return
    if kind == "palm":
        lean = float(rng.uniform(-0.12, 0.12)) * h
        pen.polygon(
            [
                (x - h * 0.03, y),
                (x + h * 0.03, y),
                (x + lean + h * 0.02, y - h * 0.8),
                (x + lean - h * 0.02, y - h * 0.8),
            ],
            (140, 108, 74),
        )
        for leaf in range(7):
            angle = np.pi * (leaf / 6) * 1.2 - 0.1 * np.pi
            tip = (x + lean + np.cos(angle) * h * 0.36, y - h * 0.8 - np.sin(angle) * h * 0.26 + h * 0.06)
            middle = (x + lean + np.cos(angle) * h * 0.18, y - h * 0.86 - np.sin(angle) * h * 0.22)
            pen.polygon([(x + lean, y - h * 0.78), middle, tip], LEAVES["summer"][leaf % 3])
        return
    tones = (
        LEAVES["blossom"] if kind == "blossom" else LEAVES["autumn"] if kind == "autumn" else LEAVES["summer"]
    )
    pen.bar(x - h * 0.035, y - h * 0.45, x + h * 0.035, y, trunk)
    if kind == "bare":
        for branch in np.linspace(-0.9, 0.9, 7):
            tip = (x + np.sin(branch) * h * 0.4, y - h * 0.4 - np.cos(branch) * h * 0.5)
            pen.polygon([(x - h * 0.015, y - h * 0.35), (x + h * 0.015, y - h * 0.35), tip], trunk)
        return
    for blob in range(8):
        angle = float(rng.uniform(0, 2 * np.pi))
        out = float(rng.uniform(0.0, 0.2)) * h
        size = float(rng.uniform(0.13, 0.22)) * h
        pen.disc(
            x + np.cos(angle) * out,
            y - h * 0.66 + np.sin(angle) * out * 0.9,
            size,
            size * 0.92,
            tones[min(2, blob // 3)],
        )


def person(pen: Pen, x: float, y: float, s: float, rng: np.random.Generator) -> None:
    """Someone who looks at the landmark."""
    h = float(rng.uniform(1.5, 1.85)) * s
    top, legs = CLOTH[int(rng.integers(len(CLOTH)))], CLOTH[int(rng.integers(len(CLOTH)))]
    skin = SKIN[int(rng.integers(len(SKIN)))]
    pen.polygon([(x - h * 0.11, y), (x - h * 0.02, y), (x, y - h * 0.46), (x - h * 0.11, y - h * 0.48)], legs)
    pen.polygon([(x + h * 0.02, y), (x + h * 0.11, y), (x + h * 0.11, y - h * 0.48), (x, y - h * 0.46)], legs)
    pen.polygon(
        [
            (x - h * 0.13, y - h * 0.44),
            (x + h * 0.13, y - h * 0.44),
            (x + h * 0.12, y - h * 0.82),
            (x - h * 0.12, y - h * 0.82),
        ],
        top,
    )
    for sign in (-1, 1):
        pen.polygon(
            [
                (x + sign * h * 0.12, y - h * 0.81),
                (x + sign * h * 0.2, y - h * 0.48),
                (x + sign * h * 0.14, y - h * 0.46),
            ],
            top,
        )
    pen.disc(x, y - h * 0.91, h * 0.075, h * 0.09, skin)
    pen.disc(
        x,
        y - h * 0.945,
        h * 0.08,
        h * 0.065,
        ((60, 44, 36), (30, 26, 26), (190, 150, 90))[int(rng.integers(3))],
    )
    if rng.random() < 0.2:
        colour = CLOTH[int(rng.integers(len(CLOTH)))]
        arc = [
            (x + np.cos(a) * h * 0.42, y - h * 1.05 - np.sin(a) * h * 0.24) for a in np.linspace(0, np.pi, 9)
        ]
        pen.polygon([(float(a), float(b)) for a, b in arc], colour)


def car(pen: Pen, x: float, y: float, s: float, rng: np.random.Generator) -> None:
    """A small car, parked."""
    w, colour = 3.9 * s, CLOTH[int(rng.integers(len(CLOTH)))]
    pen.polygon(
        [
            (x - w * 0.5, y - w * 0.08),
            (x + w * 0.5, y - w * 0.08),
            (x + w * 0.5, y - w * 0.22),
            (x + w * 0.3, y - w * 0.25),
            (x + w * 0.18, y - w * 0.38),
            (x - w * 0.24, y - w * 0.38),
            (x - w * 0.36, y - w * 0.24),
            (x - w * 0.5, y - w * 0.2),
        ],
        colour,
    )
    for a, b in ((-0.3, -0.05), (0.0, 0.24)):
        pen.polygon(
            [
                (x + w * a, y - w * 0.24),
                (x + w * b, y - w * 0.24),
                (x + w * (b - 0.06), y - w * 0.36),
                (x + w * (a + 0.07), y - w * 0.36),
            ],
            (150, 178, 196),
        )
    for wheel in (-0.28, 0.3):
        pen.disc(x + w * wheel, y - w * 0.08, w * 0.085, w * 0.085, (34, 34, 38))
        pen.disc(x + w * wheel, y - w * 0.08, w * 0.04, w * 0.04, (170, 170, 174))


def van(pen: Pen, x: float, y: float, s: float, rng: np.random.Generator) -> None:
    """A delivery van or a small bus."""
    w, colour = 5.2 * s, CLOTH[int(rng.integers(len(CLOTH)))]
    pen.polygon(
        [
            (x - w * 0.5, y - w * 0.07),
            (x + w * 0.5, y - w * 0.07),
            (x + w * 0.5, y - w * 0.25),
            (x + w * 0.4, y - w * 0.46),
            (x - w * 0.5, y - w * 0.46),
        ],
        colour,
    )
    for a in (-0.44, -0.22, 0.0, 0.21):
        pen.bar(x + w * a, y - w * 0.4, x + w * (a + 0.17), y - w * 0.27, (146, 176, 196))
    for wheel in (-0.3, 0.3):
        pen.disc(x + w * wheel, y - w * 0.07, w * 0.07, w * 0.07, (34, 34, 38))


def lamp_post(pen: Pen, x: float, y: float, s: float, rng: np.random.Generator) -> None:
    """A lamp post, lit when it is dark."""
    h = float(rng.uniform(4.0, 5.5)) * s
    pen.bar(x - h * 0.012, y - h, x + h * 0.012, y, (52, 58, 60))
    pen.bar(x - h * 0.03, y - h * 0.08, x + h * 0.03, y, (52, 58, 60))
    night = pen.light is not None and pen.light.dark > 0.4
    pen.disc(x, y - h, h * 0.045, h * 0.055, (255, 226, 150) if night else (226, 222, 208), glow=night)
    pen.polygon([(x - h * 0.05, y - h * 1.04), (x + h * 0.05, y - h * 1.04), (x, y - h * 1.1)], (52, 58, 60))


def leaves(pen: Pen, x: float, y: float, s: float, rng: np.random.Generator) -> None:
    """A branch that hangs into the picture from above."""
    for _ in range(34):
        a, b = float(rng.normal(0, 0.13)), abs(float(rng.normal(0, 0.09)))
        size = float(rng.uniform(0.012, 0.03))
        pen.disc(x + a, b, size, size * 0.8, LEAVES["summer"][int(rng.integers(3))])


def sign_board(pen: Pen, x: float, y: float, s: float, rng: np.random.Generator) -> None:
    """A road sign or a poster column."""
    colour, h = CLOTH[int(rng.integers(len(CLOTH)))], 2.6 * s
    if rng.random() < 0.5:
        pen.bar(x - h * 0.02, y - h, x + h * 0.02, y, (120, 122, 124))
        pen.disc(x, y - h, h * 0.16, h * 0.16, colour)
        pen.bar(x - h * 0.1, y - h * 1.03, x + h * 0.1, y - h * 0.97, (245, 245, 240))
        return
    pen.bar(x - h * 0.25, y - h * 1.1, x + h * 0.25, y, (70, 92, 84))
    pen.bar(x - h * 0.2, y - h * 0.95, x + h * 0.2, y - h * 0.5, colour)
    pen.disc(x, y - h * 0.72, h * 0.1, h * 0.12, (244, 238, 220))
    pen.disc(x, y - h * 1.1, h * 0.28, h * 0.09, (60, 78, 72))


NEAR: tuple[tuple[Prop, float, float], ...] = (
    # what, nearest and farthest distance from the camera in metres
    (person, 3.5, 12.0),
    (person, 5.0, 16.0),
    (car, 8.0, 18.0),
    (van, 10.0, 18.0),
    (lamp_post, 5.0, 14.0),
    (leaves, 3.0, 6.0),
    (sign_board, 5.0, 12.0),
)
