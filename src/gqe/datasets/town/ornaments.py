"""What makes a wall worth remembering: clocks, roses, banners, murals, ivy, signs and balconies."""

from __future__ import annotations

import numpy as np

from gqe.datasets.town.families import Colour
from gqe.datasets.town.mesh import Wall
from gqe.datasets.town.styles import Style, blend
from gqe.datasets.town.windows import WHITE, outline

ACCENTS: tuple[Colour, ...] = (
    (196, 52, 48),
    (36, 92, 150),
    (226, 166, 44),
    (48, 128, 88),
    (122, 66, 130),
    (236, 236, 228),
    (40, 46, 60),
    (222, 112, 44),
)


def accent(rng: np.random.Generator) -> Colour:
    """Pick a strong colour."""
    return ACCENTS[int(rng.integers(len(ACCENTS)))]


def clock(wall: Wall, u: float, v: float, radius: float, face: Colour, rim: Colour) -> None:
    """Paint a clock."""
    for size, colour in ((1.15, rim), (1.0, face)):
        angle = 2 * np.pi * np.arange(16) / 16
        points = np.stack([u + radius * size * np.cos(angle), v + radius * size * np.sin(angle)], axis=1)
        wall.paint([(float(a), float(b)) for a, b in points], colour)
    for hand, length in ((1.2, 0.8), (2.7, 0.55)):
        along = np.array([np.cos(hand), np.sin(hand)]) * radius * length
        across = np.array([-np.sin(hand), np.cos(hand)]) * radius * 0.08
        ends = np.array([-across, across, along + across, along - across]) + np.array([u, v])
        wall.paint([(float(a), float(b)) for a, b in ends], (30, 28, 30))


def rose(wall: Wall, u: float, v: float, radius: float, style: Style, rng: np.random.Generator) -> None:
    """Paint a rose window of coloured glass."""
    petals = int(rng.integers(6, 11))
    glass = [accent(rng), accent(rng)]
    angle = 2 * np.pi * np.arange(20) / 20
    ring = np.stack([u + radius * np.cos(angle), v + radius * np.sin(angle)], axis=1)
    wall.paint([(float(a), float(b)) for a, b in ring], style.trim)
    for petal in range(petals):
        a, b = 2 * np.pi * petal / petals, 2 * np.pi * (petal + 0.8) / petals
        points = [(u, v)]
        points += [
            (u + radius * 0.85 * np.cos(t), v + radius * 0.85 * np.sin(t)) for t in (a, (a + b) / 2, b)
        ]
        wall.paint(points, glass[petal % 2], 0.5)


def banner(wall: Wall, u: float, v: float, width: float, height: float, rng: np.random.Generator) -> None:
    """Hang a banner with a device on it."""
    ground, device = accent(rng), accent(rng)
    low = v - height
    wall.paint(
        (
            (u - width / 2, low),
            (u, low + width * 0.4),
            (u + width / 2, low),
            (u + width / 2, v),
            (u - width / 2, v),
        ),
        ground,
    )
    kind = int(rng.integers(3))
    if kind == 0:
        wall.paint(outline("round", u, v - height * 0.6, width * 0.7, width * 0.7), device)
    elif kind == 1:
        wall.rect(u - width * 0.1, low + width * 0.5, u + width * 0.1, v - 0.2, device)
        wall.rect(u - width * 0.35, v - height * 0.45, u + width * 0.35, v - height * 0.3, device)
    else:
        wall.paint(
            (
                (u - width * 0.35, v - height * 0.6),
                (u + width * 0.35, v - height * 0.6),
                (u, v - height * 0.2),
            ),
            device,
        )


def mural(wall: Wall, u0: float, v0: float, u1: float, v1: float, rng: np.random.Generator) -> None:
    """Paint a mural of big plain shapes."""
    wall.rect(u0, v0, u1, v1, accent(rng))
    for _ in range(int(rng.integers(4, 8))):
        size = (u1 - u0) * float(rng.uniform(0.12, 0.3))
        u = float(rng.uniform(u0 + size, u1 - size))
        v = float(rng.uniform(v0, max(v0 + 0.1, v1 - 2 * size)))
        kind = ("round", "rect", "pointed", "arched")[int(rng.integers(4))]
        shape = outline(kind, u, v, 2 * size, min(2 * size, v1 - v))
        wall.paint(shape, accent(rng))


def ivy(wall: Wall, rng: np.random.Generator) -> None:
    """Let ivy climb the wall."""
    reach = float(rng.uniform(0.3, 0.7)) * wall.width
    left = rng.random() < 0.5
    for _ in range(26):
        u = float(rng.beta(1, 2.5)) * reach
        v = float(rng.beta(1.2, 2)) * wall.height * (1 - 0.6 * u / reach)
        u = u if left else wall.width - u
        size = float(rng.uniform(0.4, 1.0))
        tone = ((58, 104, 52), (78, 128, 62), (46, 86, 48))[int(rng.integers(3))]
        u = float(np.clip(u, size, max(size, wall.width - size)))
        wall.paint(outline("round", u, v, 2 * size, 2 * size), tone)


def remember_me(wall: Wall, style: Style, rng: np.random.Generator) -> None:
    """Add what tells one wall from its neighbours' (most walls get something, some get nothing)."""
    w, h = wall.width, wall.height
    if w < 5 or h < 5:
        return
    for _ in range(int(rng.integers(0, 3))):
        kind = int(rng.integers(6))
        if kind == 0:
            clock(wall, w / 2, h * 0.86, min(1.5, h * 0.1), (250, 246, 232), style.trim)
        elif kind == 1:
            for share in (0.25, 0.75):
                banner(wall, w * share, h * 0.85, 1.6, min(6.0, h * 0.4), rng)
        elif kind == 2:
            u0 = w * float(rng.uniform(0.05, 0.4))
            mural(wall, u0, h * 0.3, u0 + w * 0.45, h * 0.75, rng)
        elif kind == 3:
            ivy(wall, rng)
        elif kind == 4:
            tone = accent(rng)
            wall.rect(w * 0.15, 3.2, w * 0.85, 4.4, tone)
            for letter in np.arange(w * 0.2, w * 0.78, 0.9):  # a sign nobody can read, as from afar
                wall.rect(letter, 3.5, letter + float(rng.uniform(0.3, 0.65)), 4.1, blend(tone, WHITE, 0.8))
        else:
            wall.slab(w * 0.3, h * 0.5, w * 0.7, h * 0.5 + 0.4, 1.4, style.trim)
            for post in np.linspace(w * 0.31, w * 0.69, 7):
                wall.rect(post - 0.06, h * 0.5 + 0.4, post + 0.06, h * 0.5 + 1.4, style.door)
