"""What surrounds a landmark: sky, hills, ground, shadows, rain and snow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gqe.datasets.town.camera import Camera
from gqe.datasets.town.families import Colour
from gqe.datasets.town.light import Light
from gqe.datasets.town.props import Pen
from gqe.datasets.town.scene import Scene
from gqe.datasets.town.styles import mix_to_colour

if TYPE_CHECKING:
    from PIL import Image, ImageDraw


def sky(size: int, camera: Camera, light: Light) -> Image.Image:
    """An empty sky, (size, size) pixels."""
    from PIL import Image

    rows = np.linspace(0, 1, 64)
    share = np.clip((camera.horizon - rows) / max(0.45, camera.horizon), 0, 1)[:, None] ** 0.8
    column = light.sky_low * (1 - share) + light.sky_top * share
    strip = Image.fromarray(np.rint(column).astype(np.uint8)[:, None, :])
    return strip.resize((size, size), Image.Resampling.BILINEAR)


def heavens(pen: Pen, camera: Camera, light: Light, weather: str, rng: np.random.Generator) -> None:
    """Stars, sun or moon, clouds, sometimes a balloon."""
    if light.dark > 0.7 and weather == "clear":
        for x, y in rng.random((40, 2)) * (1.0, max(0.05, camera.horizon)):
            pen.disc(float(x), float(y), 0.0022, 0.0022, (236, 236, 220), glow=True)
    if weather == "clear":
        place, ahead = camera.project((camera.position + 500 * light.direction)[None])
        if ahead[0] > 0:
            disc: Colour = (240, 240, 226) if light.dark > 0.7 else (255, 244, 206)
            pen.disc(float(place[0, 0]), float(place[0, 1]), 0.035, 0.035, disc, glow=True)
    heaps = {"clear": 3, "cloudy": 8, "rain": 9, "snow": 8, "fog": 0}[weather]
    white = np.array([255.0, 255.0, 255.0]) * (0.35 + 0.65 * (1 - light.dark))
    for _ in range(int(rng.integers(0, heaps + 1))):
        x, y = float(rng.uniform(-0.1, 1.1)), float(rng.uniform(0.0, max(0.05, camera.horizon * 0.8)))
        grey = 0.75 if weather != "clear" else 0.5
        colour = mix_to_colour(light.sky_low * (1 - grey) + white * grey * (0.86 if weather == "rain" else 1))
        wide = float(rng.uniform(0.05, 0.12))
        for step in (-1.0, -0.4, 0.2, 0.9):
            tall = wide * float(rng.uniform(0.25, 0.5))
            pen.disc(x + step * wide, y - tall * 0.4, wide * 0.6, tall, colour, glow=True)
    if rng.random() < 0.12 and light.dark < 0.5:
        x, y, s = float(rng.uniform(0.1, 0.9)), float(rng.uniform(0.05, 0.25)), float(rng.uniform(0.02, 0.05))
        colour = ((206, 60, 60), (240, 180, 60), (60, 110, 180))[int(rng.integers(3))]
        pen.disc(x, y, s, s * 1.15, colour)
        pen.disc(x, y, s * 0.45, s * 1.15, (244, 236, 220))
        pen.bar(x - s * 0.2, y + s * 1.4, x + s * 0.2, y + s * 1.75, (120, 84, 56))


def hills(pen: Pen, camera: Camera, scene: Scene, light: Light) -> None:
    """A skyline that depends on the direction in which one looks, not on where one stands."""
    for layer, (share, lift) in enumerate(((0.75, 0.9), (0.5, 0.45))):
        across = np.linspace(-0.05, 1.05, 34)
        bearing = camera.bearing + np.arctan((0.5 - across) / camera.focal)
        waves = scene.hills[:, 0] * np.sin(
            bearing[:, None] * scene.hills[:, 2] * (layer + 1) + scene.hills[:, 1]
        )
        top = camera.horizon - 0.012 - 0.025 * lift * (1.4 + waves.sum(1) / 2) * camera.focal
        tilt = np.tan(camera.roll) * (across - 0.5)
        land = np.asarray(scene.land if not scene.water else (120, 140, 110), dtype=float) * pen.tint
        colour = mix_to_colour(light.haze * share + land * (1 - share))
        points = [(float(a), float(b)) for a, b in zip(across, top + tilt, strict=True)]
        pen.polygon([*points, (1.1, 1.2), (-0.1, 1.2)], colour, glow=True)


def ground(pen: Pen, camera: Camera, scene: Scene, light: Light) -> None:
    """The land, the square and its paving."""
    white = np.array([240.0, 243.0, 248.0])

    def tone(colour: Colour, dim: float = 1.0) -> Colour:
        base = np.asarray(colour, dtype=float) * dim
        if light.snow:
            base = base * 0.2 + white * 0.8
        up = light.shade + light.sun * max(0.0, float(light.direction[2]))
        return mix_to_colour(base * up)

    def lay(points: np.ndarray, colour: Colour, metres: float) -> None:
        outline = camera.outline(points)
        if len(outline) >= 3:
            pen.at_distance(metres)
            pen.polygon(outline, colour, glow=True)

    def ring(radius: float) -> np.ndarray:
        angle = 2 * np.pi * np.arange(28) / 28
        return np.stack([radius * np.cos(angle), radius * np.sin(angle), np.zeros(28)], axis=1)

    lay(ring(900.0), tone(scene.land), 120.0)
    if scene.water:
        for index, out in enumerate((120.0, 85.0, 64.0)):
            lay(ring(scene.radius + out), tone(scene.land, 1.0 + 0.06 * (index % 2) - 0.04), 60.0)
    edge = scene.radius + 34.0
    lay(ring(edge), tone(scene.square, 0.8), 40.0)
    lay(ring(edge - 3.5), tone((128, 124, 122)), 40.0)
    lay(ring(edge - 11.5), tone(scene.square), 25.0)
    for ray in range(scene.paving):
        angle = 2 * np.pi * ray / scene.paving
        along = np.array([np.cos(angle), np.sin(angle), 0.0])
        across = np.array([-np.sin(angle), np.cos(angle), 0.0]) * 0.35
        near, far = along * (scene.radius * 0.5), along * (edge - 12.0)
        lay(
            np.array([near - across, near + across, far + across, far - across]),
            tone(scene.square, 0.9),
            25.0,
        )
    lay(ring(scene.radius + 6.0), tone(scene.square, 0.9), 20.0)
    lay(ring(scene.radius + 5.5), tone(scene.square, 1.03), 20.0)
    pen.at_distance(0.0)


def shadows(pen: Pen, camera: Camera, scene: Scene, light: Light) -> None:
    """Shadows of the solids on the ground."""
    strength = float(light.sun.mean()) * min(1.0, float(light.direction[2]) * 3)
    if strength < 0.12:
        return
    base = np.asarray(scene.square, dtype=float) * (light.shade + light.sun * light.direction[2])
    colour = mix_to_colour(base * (1 - 0.75 * strength))
    slope = light.direction[:2] / max(0.25, float(light.direction[2]))
    mesh = scene.mesh
    for solid in np.flatnonzero(mesh.own & (mesh.solid_high[:, 2] > 1.5)):
        hull = _box_shadow(mesh.solid_low[solid], mesh.solid_high[solid], slope)
        points = camera.outline(np.column_stack([hull, np.zeros(len(hull))]))
        if len(points) >= 3:
            pen.polygon(points, colour, glow=True)


def _box_shadow(low: np.ndarray, high: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Outline of a box's shadow on the ground, (6, 2): the hull of the shadows of floor and lid."""
    corners = np.array([[low[0], low[1]], [high[0], low[1]], [high[0], high[1]], [low[0], high[1]]])
    floor, lid = corners - low[2] * slope, corners - high[2] * slope
    # The corner that looks towards the sun comes first; from there the outline leads from floor to lid.
    first = {(True, True): 2, (False, True): 3, (False, False): 0, (True, False): 1}[
        bool(slope[0] > 0), bool(slope[1] > 0)
    ]
    a, b, c, d = ((first + turn) % 4 for turn in range(4))
    return np.array([floor[a], floor[b], lid[b], lid[c], lid[d], floor[d]])


def rain_and_snow(pencil: ImageDraw.ImageDraw, size: int, weather: str, rng: np.random.Generator) -> None:
    """What falls between the camera and everything else."""
    if weather == "rain":
        for x, y, length in rng.random((90, 3)) * (1.1, 1.0, 0.04):
            line = (x * size, y * size, (x - 0.25 * (length + 0.02)) * size, (y + length + 0.02) * size)
            pencil.line(line, fill=(206, 212, 222), width=1)
    elif weather == "snow":
        for x, y, r in rng.random((110, 3)):
            radius = 0.8 + 2.2 * r
            box = (x * size - radius, y * size - radius, x * size + radius, y * size + radius)
            pencil.ellipse(box, fill=(250, 251, 253))
