"""Hours of the day and weather: colours of the sky, of the sun and of the shade."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

HOURS = np.array([0.0, 4.5, 6.0, 7.5, 12.0, 16.5, 18.5, 20.0, 21.5, 24.0])
SKY_TOP = np.array(
    [
        (14, 18, 44),
        (26, 32, 70),
        (96, 120, 176),
        (112, 162, 220),
        (84, 150, 224),
        (98, 156, 216),
        (104, 108, 168),
        (44, 48, 98),
        (18, 22, 54),
        (14, 18, 44),
    ]
)
SKY_LOW = np.array(
    [
        (34, 40, 74),
        (70, 66, 104),
        (250, 190, 160),
        (236, 226, 214),
        (208, 230, 246),
        (232, 228, 214),
        (252, 172, 112),
        (168, 110, 128),
        (48, 50, 88),
        (34, 40, 74),
    ]
)
SHADE = np.array(
    [
        (0.20, 0.23, 0.38),
        (0.28, 0.30, 0.46),
        (0.56, 0.52, 0.58),
        (0.62, 0.62, 0.64),
        (0.64, 0.66, 0.68),
        (0.62, 0.60, 0.58),
        (0.56, 0.48, 0.50),
        (0.36, 0.34, 0.48),
        (0.24, 0.26, 0.42),
        (0.20, 0.23, 0.38),
    ]
)
SUN = np.array(
    [
        (0.10, 0.12, 0.18),
        (0.14, 0.14, 0.20),
        (0.62, 0.42, 0.30),
        (0.54, 0.47, 0.38),
        (0.52, 0.50, 0.45),
        (0.56, 0.48, 0.34),
        (0.66, 0.38, 0.20),
        (0.20, 0.16, 0.20),
        (0.12, 0.13, 0.20),
        (0.10, 0.12, 0.18),
    ]
)
DARK = np.array([1.0, 0.9, 0.35, 0.0, 0.0, 0.0, 0.35, 0.8, 1.0, 1.0])
WEATHERS = ("clear", "cloudy", "fog", "rain", "snow")
LAMP = np.array([255.0, 208.0, 122.0])


@dataclass(frozen=True)
class Light:
    """The light of one picture.

    Attributes:
        sky_top, sky_low: Colours of the sky overhead and at the horizon, (3,) in 0..255.
        shade: Share of white light that reaches the shade, (3,).
        sun: Light of the sun or moon on a surface that faces it, (3,).
        direction: Unit vector towards the sun or moon.
        dark: 0 by day, 1 at night; windows are lit by it.
        haze: Colour of the distance, (3,).
        reach: How far one sees, in metres.
        snow: Whether there is snow on roofs and ground.
    """

    sky_top: np.ndarray
    sky_low: np.ndarray
    shade: np.ndarray
    sun: np.ndarray
    direction: np.ndarray
    dark: float
    haze: np.ndarray
    reach: float
    snow: bool


def at(hours: np.ndarray, hour: float) -> np.ndarray:
    """Read a table of colours at an hour."""
    return np.array([np.interp(hour, HOURS, hours[:, channel]) for channel in range(3)])


def light_of(hour: float, weather: str) -> Light:
    """The light at an hour in a weather."""
    top, low, shade, sun = at(SKY_TOP, hour), at(SKY_LOW, hour), at(SHADE, hour), at(SUN, hour)
    dark = float(np.interp(hour, HOURS, DARK))
    reach = 420.0
    if weather != "clear":
        grey_top = np.full(3, top.mean() * 0.86 + 20 * (1 - dark))
        grey_low = np.full(3, low.mean() * 0.9 + 8)
        share = 0.75
        top, low = top * (1 - share) + grey_top * share, low * (1 - share) + grey_low * share
        sun, shade = sun * 0.25, shade * 1.12
    if weather == "fog":
        reach, top = 75.0, low * 0.96
    elif weather == "rain":
        reach, shade = 170.0, shade * 0.86
    elif weather == "snow":
        reach, shade = 190.0, shade * 1.08
    day = (hour - 6.0) / 12.5
    if 0.0 <= day <= 1.0:
        angle, up = np.pi * day, 0.12 + 0.85 * np.sin(np.pi * day)
        direction = np.array([np.cos(angle), -0.75 * np.sin(angle) - 0.1, up])
    else:
        direction = np.array([-0.4, -0.5, 0.75])
    direction = direction / np.linalg.norm(direction)
    return Light(top, low, shade, sun, direction, dark, low, reach, weather == "snow")


def shade_colours(
    colours: np.ndarray, normals: np.ndarray, distances: np.ndarray, lit: np.ndarray, light: Light
) -> np.ndarray:
    """Colours of surfaces as the picture shows them.

    Args:
        colours: Colours by white light, (n, 3) in 0..255.
        normals: Unit normals, (n, 3).
        distances: Metres from the camera, (n,).
        lit: Thresholds of darkness above which a surface shines by itself, (n,).
        light: The light.

    Returns:
        Colours, (n, 3) float in 0..255.
    """
    facing = np.clip(normals @ light.direction, 0, None)[:, None]
    base = colours
    if light.snow:
        cover = np.clip((normals[:, 2:] - 0.25) * 2.2, 0, 0.88)
        base = colours * (1 - cover) + np.array([244.0, 246.0, 250.0]) * cover
    seen = base * (light.shade + light.sun * facing)
    glow = np.clip((light.dark - lit) * 3, 0, 1)[:, None]
    seen = seen * (1 - glow) + LAMP * glow
    far = 1 - np.exp(-distances / light.reach)[:, None]
    return np.asarray(np.clip(seen * (1 - far) + light.haze * far, 0, 255))
