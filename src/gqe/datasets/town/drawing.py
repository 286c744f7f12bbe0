"""Draw a view of a scene: sky, ground, shadows, solids from far to near, and what stands in the way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from gqe.datasets.town.camera import Camera, draw_order, looking_at
from gqe.datasets.town.families import Colour
from gqe.datasets.town.light import Light, light_of, shade_colours
from gqe.datasets.town.props import NEAR, Pen, tree
from gqe.datasets.town.scene import Landmark, Scene, build, dice
from gqe.datasets.town.surroundings import ground, heavens, hills, rain_and_snow, shadows, sky
from gqe.errors import InputError

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class View:
    """One picture of a landmark.

    Attributes:
        landmark: What it shows.
        seed: Seeds of everything that is only in this picture.
        azimuth: Direction from which it is seen, in radians.
        fill: Share of the picture's width the landmark would fill; above 1 parts of it are cut off.
        focal: Focal length in picture widths.
        eye: Height of the camera in metres.
        aim: Where the camera points beside the landmark's middle: right and up, in picture widths.
        roll: How crooked the camera is held, in radians.
        hour: Hour of the day.
        weather: One of gqe.datasets.town.light.WEATHERS.
        autumn: Whether leaves have turned.
        in_the_way: Number of things in front of the camera.
        blur: Radius of blur in pixels of a 224 pixel picture.
        noise: Deviation of the noise in 0..255.
        exposure: Factor on the light.
    """

    landmark: Landmark
    seed: tuple[int, ...]
    azimuth: float
    fill: float
    focal: float
    eye: float
    aim: tuple[float, float]
    roll: float
    hour: float
    weather: str
    autumn: bool
    in_the_way: int
    blur: float
    noise: float
    exposure: float


@lru_cache(maxsize=16)
def scene_of(landmark: Landmark) -> Scene:
    """The scene of a landmark; building it takes longer than drawing it, so the last few are kept."""
    return build(landmark)


def camera_of(view: View, scene: Scene) -> Camera:
    """Put the camera where the view wants it, but never into the building."""
    span = max(1.5 * scene.radius, 1.15 * scene.height)
    distance = max(1.1 * scene.radius + 9.0, view.focal * span / view.fill)
    return looking_at(view.azimuth, distance, view.eye, 0.45 * scene.height, view.focal, view.aim, view.roll)


def draw(view: View, size: int = 224) -> Image.Image:
    """Draw a picture.

    Args:
        view: What to draw.
        size: Width and height in pixels.

    Returns:
        An RGB picture, the same for the same view and size.
    """
    _require_pillow()
    from PIL import ImageDraw

    scene = scene_of(view.landmark)
    camera = camera_of(view, scene)
    light = light_of(view.hour, view.weather)
    rng = dice(*view.seed, 1)
    big = size * 2
    picture = sky(big, camera, light)
    pencil = ImageDraw.Draw(picture)
    pen = Pen(pencil, big, light)
    heavens(pen, camera, light, view.weather, rng)
    hills(pen, camera, scene, light)
    ground(pen, camera, scene, light)
    shadows(pen, camera, scene, light)
    shapes, first_shape = _visible_shapes(scene, camera, light, big)
    for kind, index in draw_order(scene, camera):
        if kind == "tree":
            _plant(pen, camera, scene, index, view)
            continue
        for corners, colour in shapes[first_shape[index] : first_shape[index + 1]]:
            pencil.polygon(corners, fill=colour)
    _in_the_way(pen, camera, view)
    rain_and_snow(pencil, big, view.weather, rng)
    return _develop(picture, size, view, rng)


def _visible_shapes(
    scene: Scene, camera: Camera, light: Light, size: int
) -> tuple[list[tuple[list[float], Colour]], list[int]]:
    """Corners in pixels and colours of the shapes that can be seen, and where those of each solid begin."""
    mesh = scene.mesh
    to_camera = camera.position - mesh.face_point
    visible = np.einsum("ij,ij->i", mesh.face_normal, to_camera) > 0
    xy, depth = camera.project(mesh.points)
    starts = mesh.shape_start[:-1]
    low, high = np.minimum.reduceat(xy, starts), np.maximum.reduceat(xy, starts)
    keep = visible[mesh.shape_face] & (np.minimum.reduceat(depth, starts) > 0.5)
    keep &= ((high - low) > 0.6 / size).all(1) & (high > 0).all(1) & (low < 1).all(1)
    kept = np.flatnonzero(keep)
    face = mesh.shape_face[kept]
    away = np.linalg.norm(to_camera, axis=1)[face]
    colours = shade_colours(
        mesh.shape_colour[kept], mesh.face_normal[face], away, mesh.shape_lit[kept], light
    )
    pixels = (xy * size).ravel().tolist()
    begin, end = (2 * mesh.shape_start[kept]).tolist(), (2 * mesh.shape_start[kept + 1]).tolist()
    shapes = [
        (pixels[a:b], (red, green, blue))
        for a, b, (red, green, blue) in zip(begin, end, np.rint(colours).astype(int).tolist(), strict=True)
    ]
    return shapes, np.searchsorted(kept, mesh.face_start[mesh.solid_start]).tolist()


def visible_patches(view: View, size: int = 64) -> np.ndarray:
    """Count the pixels on which each surface patch of the landmark is seen.

    Args:
        view: The view.
        size: Width and height of the counting grid in pixels.

    Returns:
        Counts, one for each patch of the landmark, (q,) int64.
    """
    _require_pillow()
    from PIL import Image, ImageDraw

    scene = scene_of(view.landmark)
    camera = camera_of(view, scene)
    mesh = scene.mesh
    ids = Image.new("I", (size, size), 0)
    pencil = ImageDraw.Draw(ids)
    pen = Pen(pencil, size, None)
    visible = np.einsum("ij,ij->i", mesh.face_normal, camera.position - mesh.face_point) > 0
    own = [
        (xy * size).ravel().tolist()
        for xy in camera.project(mesh.patch_points.reshape(-1, 3))[0].reshape(-1, 4, 2)
    ]
    patches_of: dict[int, list[int]] = {}
    for patch, face in enumerate(mesh.patch_face.tolist()):
        if visible[face]:
            patches_of.setdefault(int(mesh.face_solid[face]), []).append(patch)
    for kind, index in draw_order(scene, camera):
        if kind == "tree":
            _plant(pen, camera, scene, index, view)
        elif mesh.own[index]:
            for patch in patches_of.get(index, []):
                pencil.polygon(own[patch], fill=patch + 1)
    _in_the_way(pen, camera, view)
    counts = np.bincount(np.asarray(ids).ravel(), minlength=len(mesh.patch_face) + 1)
    return counts[1:].astype(np.int64)


def _require_pillow() -> None:
    if find_spec("PIL") is None:
        raise InputError("town: drawing needs Pillow; pip install 'gqe[report]'")


def _plant(pen: Pen, camera: Camera, scene: Scene, index: int, view: View) -> None:
    plant = scene.trees[index]
    xy, depth = camera.project(np.array([[plant.x, plant.y, 0.0]]))
    if depth[0] < max(7.0, 0.4 * float(np.linalg.norm(camera.position[:2]))):
        return  # it would hide everything
    kind = plant.kind
    if kind == "round" and view.autumn:
        kind = "autumn"
    if view.weather == "snow" and kind in ("round", "autumn", "blossom"):
        kind = "bare"
    pen.at_distance(float(depth[0]))
    tree(
        pen,
        float(xy[0, 0]),
        float(xy[0, 1]),
        camera.focal / float(depth[0]),
        dice(plant.seed),
        kind,
        plant.height,
    )
    pen.at_distance(0.0)


def _in_the_way(pen: Pen, camera: Camera, view: View) -> None:
    """People, cars and branches near the camera, the far ones first."""
    rng = dice(*view.seed, 2)
    things = []
    for _ in range(view.in_the_way):
        prop, near, far = NEAR[int(rng.integers(len(NEAR)))]
        things.append((float(rng.uniform(near, far)), float(rng.uniform(0.02, 0.98)), prop))
    for distance, x, prop in sorted(things, key=lambda thing: -thing[0]):
        scale = camera.focal / distance
        prop(pen, x, camera.horizon + scale * float(camera.position[2]), scale, rng)


def _develop(picture: Image.Image, size: int, view: View, rng: np.random.Generator) -> Image.Image:
    """Scale down, blur, expose and add noise."""
    from PIL import Image, ImageFilter

    small = picture.reduce(2)
    if view.blur > 0.05:
        small = small.filter(ImageFilter.GaussianBlur(view.blur * size / 224))
    grain = rng.standard_normal((size, size, 1), dtype=np.float32) * np.float32(view.noise)
    values = np.asarray(small, dtype=np.float32) * np.float32(view.exposure) + grain
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))
