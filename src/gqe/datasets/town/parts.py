"""Parts of buildings: blocks, roofs, domes, spires, turrets, columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gqe.datasets.town.facades import facade, roof_tiles
from gqe.datasets.town.families import Colour
from gqe.datasets.town.mesh import Builder, Painter, Wall, circle, rectangle, ridge
from gqe.datasets.town.ornaments import accent
from gqe.datasets.town.styles import Style, blend
from gqe.datasets.town.windows import BLACK, WHITE, outline


@dataclass
class Yard:
    """What a builder has at hand: the site, the style and the dice."""

    site: Builder
    style: Style
    rng: np.random.Generator

    def between(self, low: float, high: float) -> float:
        """A length in metres."""
        return float(self.rng.uniform(low, high))

    def chance(self, share: float) -> bool:
        """True in this share of cases."""
        return bool(self.rng.random() < share)

    def tower_top(self) -> str:
        """Choose what a square tower ends in."""
        return str(self.rng.choice(["needle", "pyramid", "onion", "round", "lantern", "battlements", "bell"]))

    def tower_cap(self) -> str:
        """Choose what a round tower ends in."""
        return str(self.rng.choice(["cone", "cone", "onion", "round", "bell"]))

    def block(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        z: tuple[float, float],
        *,
        front: int | None = None,
        ground_floor: str = "plain",
        colour: Colour | None = None,
        plain: bool = False,
        bare: bool = False,
        taper: float = 0.0,
    ) -> None:
        """A box with windows (or a bare one), its sides leaning in by `taper` metres."""
        base = colour if colour is not None else self.style.wall
        painter = None
        if not bare:
            painter = facade(
                self.style, self.rng, front=front, base=base, ground_floor=ground_floor, plain=plain
            )
        t = taper
        rings = [rectangle(*x, *y, z[0]), rectangle(x[0] + t, x[1] - t, y[0] + t, y[1] - t, z[1])]
        self.site.solid(rings, [base], painter, cap=blend(self.style.roof, (150, 146, 140), 0.5))

    def roof(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        z: float,
        height: float,
        kind: str,
        *,
        along_x: bool | None = None,
        colour: Colour | None = None,
        gable: Painter | None = None,
        eaves: float = 0.5,
    ) -> None:
        """A roof over a rectangle: gable, hip, pyramid, mansard, stepped, sawtooth, cone or flat."""
        style = self.style
        tone = colour if colour is not None else style.roof
        wide, deep = x[1] - x[0], y[1] - y[0]
        lengthwise = wide >= deep if along_x is None else along_x
        x0, x1, y0, y1 = x[0] - eaves, x[1] + eaves, y[0] - eaves, y[1] + eaves
        tiles = roof_tiles(tone, self.rng, gable)
        base = rectangle(x0, x1, y0, y1, z)
        under = blend(style.trim, BLACK, 0.35)
        if kind == "flat":
            edge = [rectangle(*x, *y, z), rectangle(*x, *y, z + 0.9)]
            self.site.solid(edge, [style.trim], None, cap=blend(tone, (160, 156, 150), 0.4))
            return
        if kind == "sawtooth":
            teeth = max(2, round(wide / 7))
            for tooth in range(teeth):
                a, b = x[0] + tooth * wide / teeth, x[0] + (tooth + 1) * wide / teeth
                top = np.array(
                    [
                        [b, y[0], z + height],
                        [b, y[0], z + height],
                        [b, y[1], z + height],
                        [b, y[1], z + height],
                    ]
                )
                self.site.solid(
                    [rectangle(a, b, *y, z), top], [tone, blend(tone, WHITE, 0.4), tone, tone], tiles
                )
            return
        if kind == "mansard":
            inset = min(1.6, wide / 5, deep / 5)
            middle = rectangle(x0 + inset, x1 - inset, y0 + inset, y1 - inset, z + height * 0.7)
            self.site.solid([base, middle], [tone], self._dormers(tone), cap=tone, floor=under)
            self.roof(
                (x0 + inset, x1 - inset),
                (y0 + inset, y1 - inset),
                z + height * 0.7,
                height * 0.3,
                "hip",
                colour=tone,
                eaves=0.0,
            )
            return
        if kind in ("pyramid", "cone"):
            top = np.tile([[(x0 + x1) / 2, (y0 + y1) / 2, z + height]], (4, 1))
            self.site.solid([base, top], [tone], tiles, floor=under)
            return
        inset = 0.0 if kind in ("gable", "stepped") else min(wide, deep) / 2
        if not lengthwise and kind == "hip":
            inset = min(inset, deep / 2 - 0.1)
        elif kind == "hip":
            inset = min(inset, wide / 2 - 0.1)
        top = ridge(x0, x1, y0, y1, z + height, lengthwise, inset)
        wall = style.wall
        gables = [tone, wall, tone, wall] if lengthwise else [wall, tone, wall, tone]
        self.site.solid([base, top], gables if inset == 0.0 else [tone], tiles, floor=under)
        if kind == "stepped":
            self._steps(x, y, z, height, lengthwise)

    def _steps(
        self, x: tuple[float, float], y: tuple[float, float], z: float, height: float, lengthwise: bool
    ) -> None:
        """Stepped gables, as thin stacked blocks at both ends of a roof."""
        steps = 4
        for end in (0, 1):
            for step in range(steps):
                low, high = z + step * height / steps, z + (step + 1) * height / steps + 0.4
                if lengthwise:
                    half = (y[1] - y[0]) / 2 * (1 - step / steps)
                    middle = (y[0] + y[1]) / 2
                    xs = (x[1], x[1] + 0.6) if end else (x[0] - 0.6, x[0])
                    self.block(xs, (middle - half, middle + half), (low, high), bare=True)
                else:
                    half = (x[1] - x[0]) / 2 * (1 - step / steps)
                    middle = (x[0] + x[1]) / 2
                    ys = (y[1], y[1] + 0.6) if end else (y[0] - 0.6, y[0])
                    self.block((middle - half, middle + half), ys, (low, high), bare=True)

    def _dormers(self, tone: Colour) -> Painter:
        """Dormer windows along the lower slope of a mansard."""
        style, rng = self.style, self.rng
        tiles = roof_tiles(tone, rng)

        def paint(wall: Wall) -> None:
            tiles(wall)
            count = max(1, round(wall.width / (style.bay * 1.2)))
            for index in range(count):
                u = (index + 0.5) * wall.width / count
                size = min(1.1, wall.height * 0.5)
                wall.paint(outline("arched", u, 0.5, size * 1.5, size * 1.9), style.trim, out=0.3)
                wall.paint(
                    outline("arched", u, 0.6, size, size * 1.6),
                    (80, 96, 112),
                    float(rng.uniform(0.2, 1.4)),
                    out=0.3,
                )

        return paint

    def column(
        self, x: float, y: float, z: tuple[float, float], radius: float, colour: Colour, sides: int = 6
    ) -> None:
        """A round column."""
        self.site.solid(
            [circle(x, y, z[0], radius, sides), circle(x, y, z[1], radius * 0.85, sides)], [colour]
        )

    def drum(
        self,
        x: float,
        y: float,
        z: tuple[float, float],
        radius: float,
        *,
        top: float | None = None,
        sides: int = 12,
        bare: bool = False,
        colours: Sequence[Colour] | None = None,
        front: int | None = None,
    ) -> None:
        """A round wall with windows."""
        style = self.style
        tones = list(colours) if colours else [style.wall]
        painter = None if bare else facade(style, self.rng, front=front, base=tones[0], plain=True)
        upper = radius if top is None else top
        rings = [circle(x, y, z[0], radius, sides), circle(x, y, z[1], upper, sides)]
        self.site.solid(rings, tones, painter, cap=style.roof)

    def dome(
        self, x: float, y: float, z: float, radius: float, height: float, kind: str, colour: Colour
    ) -> float:
        """A dome (round, onion or cone) with a finial; returns the height of its top."""
        profile = {
            "round": ((1.0, 0.0), (0.96, 0.28), (0.82, 0.55), (0.55, 0.82), (0.22, 0.96), (0.0, 1.0)),
            "onion": (
                (0.8, 0.0),
                (1.12, 0.16),
                (1.16, 0.32),
                (0.9, 0.52),
                (0.42, 0.72),
                (0.14, 0.88),
                (0.0, 1.0),
            ),
            "cone": ((1.0, 0.0), (0.0, 1.0)),
            "bell": ((1.0, 0.0), (0.7, 0.25), (0.5, 0.5), (0.42, 0.75), (0.0, 1.0)),
        }[kind]
        rings = [circle(x, y, z + height * up, max(radius * out, 1e-3)) for out, up in profile]
        ribs = [colour, blend(colour, WHITE, 0.12)]
        self.site.solid(rings, ribs)
        tip = z + height
        self.column(x, y, (tip - 0.2, tip + radius * 0.5), max(0.12, radius * 0.06), (220, 180, 70), 4)
        return tip + radius * 0.5

    def spire(
        self, x: float, y: float, z: float, half: float, height: float, colour: Colour, kind: str
    ) -> None:
        """What a square tower ends in: a spire, a pyramid, a dome, an onion, a lantern or battlements."""
        span_x, span_y = (x - half, x + half), (y - half, y + half)
        if kind == "battlements":
            self.battlements(span_x, span_y, z)
        elif kind in ("onion", "round", "bell"):
            self.block(span_x, span_y, (z, z + 0.6), bare=True, colour=self.style.trim)
            self.dome(x, y, z + 0.6, half, height * 0.7, kind, colour)
        elif kind == "lantern":
            self.roof(span_x, span_y, z, height * 0.25, "pyramid", colour=colour)
            third = half * 0.5
            self.block(
                (x - third, x + third),
                (y - third, y + third),
                (z + height * 0.2, z + height * 0.5),
                plain=True,
            )
            self.roof(
                (x - third, x + third),
                (y - third, y + third),
                z + height * 0.5,
                height * 0.4,
                "pyramid",
                colour=colour,
            )
        else:
            self.roof(
                span_x, span_y, z, height * (1.3 if kind == "needle" else 0.7), "pyramid", colour=colour
            )

    def battlements(self, x: tuple[float, float], y: tuple[float, float], z: float) -> None:
        """A parapet with merlons painted as notches along its upper edge."""
        style = self.style

        def notch(wall: Wall) -> None:
            for u in np.arange(0.5, wall.width, 1.6):
                wall.rect(u, 0.9, min(wall.width, u + 0.8), 1.8, blend(style.wall, BLACK, 0.55))

        out = 0.4
        span = (x[0] - out, x[1] + out, y[0] - out, y[1] + out)
        self.site.solid(
            [rectangle(*span, z), rectangle(*span, z + 1.8)], [style.wall], notch, cap=(120, 116, 110)
        )

    def pediment(self, x: tuple[float, float], y: tuple[float, float], z: float, height: float) -> None:
        """A low gable facing -y, with a disc in it."""
        style = self.style

        def disc(wall: Wall) -> None:
            wall.paint(
                outline("round", wall.width / 2, wall.height * 0.12, wall.height * 0.6, wall.height * 0.6),
                style.trim,
            )

        self.roof(x, y, z, height, "gable", along_x=False, gable=disc)

    def flag(self, x: float, y: float, z: float) -> None:
        """A flag on a pole."""
        self.column(x, y, (z, z + 4.5), 0.1, (190, 186, 176), 4)
        corners = np.array([[x, y, z + 3], [x + 2.6, y, z + 3], [x + 2.6, y, z + 4.5], [x, y, z + 4.5]])
        self.site.sheet([(corners, accent(self.rng))])
