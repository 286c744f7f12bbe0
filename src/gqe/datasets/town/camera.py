"""Where the camera stands, what it projects where, and in which order solids must be painted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gqe.datasets.town.scene import Scene

NEAREST = 0.4  # metres; nothing nearer is drawn


@dataclass(frozen=True)
class Camera:
    """A pinhole camera.

    Attributes:
        position: Where it stands, (3,) in metres.
        axes: Rows right, up and forward, (3, 3).
        focal: Focal length in picture widths.
        roll: How crooked it is held, in radians.
        horizon: Height of the horizon in the middle of the picture, 0 is the upper edge.
        bearing: Direction in which it looks, in radians.
    """

    position: np.ndarray
    axes: np.ndarray
    focal: float
    roll: float
    horizon: float
    bearing: float

    def project(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Project points (n, 3) to the picture.

        Returns:
            Picture coordinates (n, 2), 1 being the picture's width, and depths (n,) in metres.
        """
        seen = (points - self.position) @ self.axes.T
        depth = np.maximum(seen[:, 2], 0.05)
        xy = np.stack([0.5 + self.focal * seen[:, 0] / depth, 0.5 - self.focal * seen[:, 1] / depth], axis=1)
        return xy, seen[:, 2]

    def outline(self, points: np.ndarray) -> list[tuple[float, float]]:
        """Project a polygon of the ground (n, 3), cutting off what lies behind the camera."""
        seen = (points - self.position) @ self.axes.T
        if seen[:, 2].min() >= NEAREST:
            scale = self.focal / seen[:, 2]
            return [
                (x, y)
                for x, y in zip(
                    (0.5 + seen[:, 0] * scale).tolist(), (0.5 - seen[:, 1] * scale).tolist(), strict=True
                )
            ]
        kept: list[np.ndarray] = []
        for a, b in zip(seen, np.roll(seen, -1, axis=0), strict=True):
            if a[2] >= NEAREST:
                kept.append(a)
            if (a[2] >= NEAREST) != (b[2] >= NEAREST):
                kept.append(a + (b - a) * (NEAREST - a[2]) / (b[2] - a[2]))
        return [(0.5 + self.focal * float(p[0] / p[2]), 0.5 - self.focal * float(p[1] / p[2])) for p in kept]


def looking_at(
    azimuth: float,
    distance: float,
    eye: float,
    target_height: float,
    focal: float,
    aim: tuple[float, float],
    roll: float,
) -> Camera:
    """A camera on a circle around the landmark that looks at its middle, or a little beside it."""
    position = np.array([distance * np.cos(azimuth), distance * np.sin(azimuth), eye])
    forward = np.array([0.0, 0.0, target_height]) - position
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    up = np.cross(right, forward)
    forward = forward + right * (aim[0] / focal) + up * (aim[1] / focal)
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    up = np.cross(right, forward)
    cos, sin = np.cos(roll), np.sin(roll)
    axes = np.stack([cos * right + sin * up, cos * up - sin * right, forward])
    level = float(np.hypot(forward[0], forward[1]))
    horizon = 0.5 + focal * float(forward[2]) / max(level, 1e-6)
    return Camera(position, axes, focal, roll, horizon, float(np.arctan2(forward[1], forward[0])))


def draw_order(scene: Scene, camera: Camera) -> list[tuple[str, int]]:
    """Solids and trees from back to front.

    All boxes are parallel to the same axes, so a plane between two of them tells which one can hide the
    other: the one on the camera's side. What no plane tells apart (a chimney that grows out of a roof) is
    painted by height.

    Returns:
        Pairs of "solid" or "tree" and an index.
    """
    mesh = scene.mesh
    solids = np.flatnonzero(_worth_drawing(scene, camera))
    spots = np.array([[t.x, t.y, 0.0] for t in scene.trees]).reshape(-1, 3)
    reach = np.array([t.height for t in scene.trees])
    spread = np.stack([0.05 * reach, 0.05 * reach, np.zeros(len(reach))], axis=1)
    tops = spots + spread + np.stack([0 * reach, 0 * reach, reach], axis=1)
    low = np.concatenate([mesh.solid_low[solids], spots - spread])
    high = np.concatenate([mesh.solid_high[solids], tops])
    eye, count = camera.position, len(low)
    slack = 0.05
    # cannot_hide[a, b]: a plane has a on its far side and both b and the camera on its near side.
    below = (high[:, None] <= low[None] + slack) & (eye >= high[:, None] - slack)
    above = (low[:, None] >= high[None] - slack) & (eye <= low[:, None] + slack)
    cannot_hide = (below | above).any(2)
    hides = ~cannot_hide & cannot_hide.T
    both = ~cannot_hide & ~cannot_hide.T
    middle = (low + high)[:, 2]
    hides |= both & (middle[:, None] > middle[None])
    np.fill_diagonal(hides, False)
    away = np.linalg.norm((low + high) / 2 - eye, axis=1)
    waiting_for = hides.sum(1)  # how many things that it hides are not painted yet
    left = np.ones(count, dtype=bool)
    order: list[tuple[str, int]] = []
    for _ in range(count):
        ready = left & (waiting_for == 0)
        if not ready.any():
            ready = left & (waiting_for == waiting_for[left].min())
        chosen = int(np.argmax(np.where(ready, away, -1.0)))
        left[chosen] = False
        waiting_for -= hides[:, chosen]
        if chosen < len(solids):
            order.append(("solid", int(solids[chosen])))
        else:
            order.append(("tree", chosen - len(solids)))
    return order


def _worth_drawing(scene: Scene, camera: Camera) -> np.ndarray:
    """The landmark's solids, and houses that do not stand between it and the camera."""
    mesh = scene.mesh
    middle = (mesh.solid_low + mesh.solid_high) / 2 - camera.position
    ahead = middle[:, :2] @ camera.axes[2, :2]
    landmark = -camera.position[:2] @ camera.axes[2, :2]
    return np.asarray(mesh.own | (ahead > landmark - 2.0))
