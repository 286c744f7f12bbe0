"""Solids made of flat faces, each face with shapes painted on it: what the town is built from.

Every solid is a stack of rings of corners (a box has two rings of four, a dome several rings of twelve). A
face lies between two rings; shapes such as windows are painted on it in its own coordinates, u along the wall
and v up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gqe.datasets.town.families import Colour
from gqe.datasets.town.styles import blend

Points = Sequence[tuple[float, float]]
NEVER_LIT = 2.0  # a light threshold no hour reaches


@dataclass(frozen=True)
class Mesh:
    """A finished set of solids as arrays.

    Attributes:
        points: Corners of all shapes, (p, 3) in metres.
        shape_start: First corner of each shape, (s + 1,).
        shape_face: Face of each shape, (s,).
        shape_colour: Colour by white light, (s, 3) in 0..255.
        shape_lit: Threshold of darkness above which a window is lit, (s,).
        face_normal: Outward unit normals, (f, 3).
        face_point: A point of each face, (f, 3).
        face_solid: Solid of each face, (f,).
        face_start: First shape of each face, (f + 1,).
        solid_start: First face of each solid, (n + 1,).
        solid_low, solid_high: Bounding boxes, (n, 3).
        own: Whether a solid belongs to the landmark, (n,).
        patch_points: Corners of the surface patches, (q, 4, 3).
        patch_face: Face of each patch, (q,).
    """

    points: np.ndarray
    shape_start: np.ndarray
    shape_face: np.ndarray
    shape_colour: np.ndarray
    shape_lit: np.ndarray
    face_normal: np.ndarray
    face_point: np.ndarray
    face_solid: np.ndarray
    face_start: np.ndarray
    solid_start: np.ndarray
    solid_low: np.ndarray
    solid_high: np.ndarray
    own: np.ndarray
    patch_points: np.ndarray
    patch_face: np.ndarray


class Wall:
    """One face while it is being painted.

    Attributes:
        width: Length of its lower edge in metres (of its upper edge if that is longer).
        height: Length from the lower to the upper edge in metres.
        side: Which side of its solid it is.
        normal: Outward unit normal.
    """

    def __init__(self, corners: np.ndarray, side: int, builder: Builder) -> None:
        self.corners = corners  # lower left, lower right, upper right, upper left, seen from outside
        self.side = side
        self.builder = builder
        self.points: list[tuple[float, float]] = []
        self.out: list[float] = []
        self.sizes: list[int] = []
        self.paints: list[tuple[Colour, float]] = []
        low, high = corners[1] - corners[0], corners[2] - corners[3]
        self.width = float(max(np.linalg.norm(low), np.linalg.norm(high)))
        self.height = float(np.linalg.norm((corners[3] + corners[2] - corners[0] - corners[1]) / 2))
        normal = np.cross(corners[2] - corners[0], corners[3] - corners[1])
        length = float(np.linalg.norm(normal))
        self.normal = normal / length if length > 1e-9 else np.array([0.0, 0.0, 1.0])

    def paint(
        self, uv: Points, colour: Colour, lit: float = NEVER_LIT, out: float | Sequence[float] = 0.0
    ) -> None:
        """Paint a polygon, pushed out of the wall by some metres, one number for all corners or one each."""
        self.points.extend(uv)
        self.out.extend([out] * len(uv) if isinstance(out, float) else out)
        self.sizes.append(len(uv))
        self.paints.append((colour, lit))

    def rect(
        self, u0: float, v0: float, u1: float, v1: float, colour: Colour, lit: float = NEVER_LIT
    ) -> None:
        """Paint a rectangle."""
        self.paint(((u0, v0), (u1, v0), (u1, v1), (u0, v1)), colour, lit)

    def slab(self, u0: float, v0: float, u1: float, v1: float, depth: float, colour: Colour) -> None:
        """Add a rectangular block that stands out of the wall: a sill, a balcony, a canopy."""
        dark, light = blend(colour, (0, 0, 0), 0.3), blend(colour, (255, 255, 255), 0.15)
        corners = ((u0, v0), (u1, v0), (u1, v1), (u0, v1))
        for a, b, shade in ((0, 1, dark), (1, 2, dark), (3, 0, dark), (2, 3, light)):
            side = (corners[a], corners[b], corners[b], corners[a])
            self.paint(side, shade, out=(0.0, 0.0, depth, depth))
        self.paint(corners, colour, out=depth)

    def finish(self) -> None:
        """Hand everything painted to the builder, from wall coordinates in metres to the town's."""
        if not self.sizes:
            return
        uv = np.asarray(self.points, dtype=float)
        u, v = uv[:, :1] / self.width, uv[:, 1:] / self.height
        a, b, c, d = self.corners
        placed = (a * (1 - u) + b * u) * (1 - v) + (d * (1 - u) + c * u) * v
        placed += np.asarray(self.out)[:, None] * self.normal
        first = 0
        for size, (colour, lit) in zip(self.sizes, self.paints, strict=True):
            self.builder.add_shape(placed[first : first + size], colour, lit)
            first += size


Painter = Callable[[Wall], None]


@dataclass
class Builder:
    """Collects solids."""

    patch_size: float = 4.0
    points: list[np.ndarray] = field(default_factory=list)
    shape_face: list[int] = field(default_factory=list)
    shape_colour: list[Colour] = field(default_factory=list)
    shape_lit: list[float] = field(default_factory=list)
    faces: list[tuple[np.ndarray, np.ndarray, int]] = field(default_factory=list)
    boxes: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    patches: list[tuple[np.ndarray, int]] = field(default_factory=list)
    building_own: bool = True

    def add_shape(self, corners: np.ndarray, colour: Colour, lit: float) -> None:
        """Add a polygon to the face begun last."""
        self.points.append(corners)
        self.shape_face.append(len(self.faces) - 1)
        self.shape_colour.append(colour)
        self.shape_lit.append(lit)

    def solid(
        self,
        rings: Sequence[np.ndarray],
        colours: Sequence[Colour],
        painter: Painter | None = None,
        cap: Colour | None = None,
        floor: Colour | None = None,
    ) -> None:
        """Add a solid.

        Args:
            rings: Rings of corners from bottom to top, each (n, 3), anticlockwise seen from above.
            colours: Colour of the sides; side i takes colours[i % len(colours)].
            painter: Called with every side to paint on it.
            cap: Colour of the lid, or None for a solid that ends in a point or ridge.
            floor: Colour of its lower side, where one can look up at it.
        """
        solid = len(self.boxes)
        everything = np.concatenate(rings)
        self.boxes.append((everything.min(0), everything.max(0)))
        self.own.append(self.building_own)
        for lower, upper in pairwise(rings):
            count = len(lower)
            for side in range(count):
                other = (side + 1) % count
                corners = np.array([lower[side], lower[other], upper[other], upper[side]])
                wall = Wall(corners, side, self)
                if wall.width < 1e-6 or wall.height < 1e-6:
                    continue
                self._begin_face(corners, wall.normal, solid)
                self.add_shape(corners, colours[side % len(colours)], NEVER_LIT)
                if painter is not None:
                    painter(wall)
                    wall.finish()
        if cap is not None:
            self._begin_face(rings[-1], np.array([0.0, 0.0, 1.0]), solid)
            self.add_shape(rings[-1], cap, NEVER_LIT)
        if floor is not None:
            self._begin_face(rings[0], np.array([0.0, 0.0, -1.0]), solid)
            self.add_shape(rings[0], floor, NEVER_LIT)

    def sheet(self, pieces: Sequence[tuple[np.ndarray, Colour]]) -> None:
        """Add flat pieces of one plane, each (4, 3), that are seen from both sides."""
        everything = np.concatenate([corners for corners, _ in pieces])
        solid = len(self.boxes)
        self.boxes.append((everything.min(0), everything.max(0)))
        self.own.append(self.building_own)
        a, b, c, _ = pieces[0][0]
        normal = np.cross(b - a, c - b)
        normal = normal / np.linalg.norm(normal)
        for sign in (1.0, -1.0):
            for corners, colour in pieces:
                self._begin_face(corners, sign * normal, solid)
                self.add_shape(corners, colour, NEVER_LIT)

    def _begin_face(self, corners: np.ndarray, normal: np.ndarray, solid: int) -> None:
        self.faces.append((normal, corners.mean(0), solid))
        if len(corners) != 4 or not self.building_own:
            return
        a, b, c, d = corners
        across = int(
            np.clip(round(max(np.linalg.norm(b - a), np.linalg.norm(c - d)) / self.patch_size), 1, 8)
        )
        along = int(np.clip(round(float(np.linalg.norm(d + c - a - b)) / 2 / self.patch_size), 1, 8))
        for i in range(across):
            for j in range(along):
                u = np.array([i, i + 1, i + 1, i])[:, None] / across
                v = np.array([j, j, j + 1, j + 1])[:, None] / along
                cell = (a * (1 - u) + b * u) * (1 - v) + (d * (1 - u) + c * u) * v
                self.patches.append((cell, len(self.faces) - 1))

    def finish(self) -> Mesh:
        """Turn everything into arrays."""
        sizes = [len(p) for p in self.points]
        face_solid = np.array([f[2] for f in self.faces], dtype=int)
        shape_face = np.array(self.shape_face, dtype=int)
        empty = np.zeros((0, 4, 3))
        return Mesh(
            points=np.concatenate(self.points),
            shape_start=np.concatenate([[0], np.cumsum(sizes)]),
            shape_face=shape_face,
            shape_colour=np.array(self.shape_colour, dtype=float),
            shape_lit=np.array(self.shape_lit),
            face_normal=np.array([f[0] for f in self.faces]),
            face_point=np.array([f[1] for f in self.faces]),
            face_solid=face_solid,
            face_start=np.searchsorted(shape_face, np.arange(len(self.faces) + 1)),
            solid_start=np.searchsorted(face_solid, np.arange(len(self.boxes) + 1)),
            solid_low=np.array([b[0] for b in self.boxes]),
            solid_high=np.array([b[1] for b in self.boxes]),
            own=np.array(self.own),
            patch_points=np.array([p[0] for p in self.patches]) if self.patches else empty,
            patch_face=np.array([p[1] for p in self.patches], dtype=int),
        )


def rectangle(x0: float, x1: float, y0: float, y1: float, z: float) -> np.ndarray:
    """A ring of four corners; side 0 looks to -y, side 1 to +x, side 2 to +y, side 3 to -x."""
    return np.array([[x0, y0, z], [x1, y0, z], [x1, y1, z], [x0, y1, z]], dtype=float)


def ridge(
    x0: float, x1: float, y0: float, y1: float, z: float, along_x: bool, inset: float = 0.0
) -> np.ndarray:
    """The ring of four corners shrunk to the ridge of a roof; inset 0 makes gables, more makes hips."""
    if along_x:
        middle = (y0 + y1) / 2
        a, b = x0 + inset, x1 - inset
        return np.array([[a, middle, z], [b, middle, z], [b, middle, z], [a, middle, z]], dtype=float)
    middle = (x0 + x1) / 2
    a, b = y0 + inset, y1 - inset
    return np.array([[middle, a, z], [middle, a, z], [middle, b, z], [middle, b, z]], dtype=float)


def circle(x: float, y: float, z: float, radius: float, sides: int = 12) -> np.ndarray:
    """A ring on a circle."""
    angle = 2 * np.pi * (np.arange(sides) + 0.5) / sides
    return np.stack([x + radius * np.cos(angle), y + radius * np.sin(angle), np.full(sides, z)], axis=1)
