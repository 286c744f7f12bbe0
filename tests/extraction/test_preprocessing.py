from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("PIL", reason="pip install 'gqe[extract]'")
from PIL import Image

from gqe.extraction.preprocessing import CenterCrop, FitLongerSide, Stretch, Thumbnail


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_thumbnails_follow_the_published_rule() -> None:
    image = noise(200, 100)
    expected = image.resize((64, 32), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(Thumbnail(64)(image, 200), np.asarray(expected))
    assert image.size == (200, 100)


def test_thumbnails_are_never_enlarged() -> None:
    image = noise(20, 10)
    np.testing.assert_array_equal(Thumbnail(64)(image, 20), np.asarray(image))


def test_a_cropped_picture_keeps_the_scale_of_its_whole() -> None:
    # The whole is 400 wide and becomes 100: a quarter. So the crop of 200 becomes 50.
    assert Thumbnail(100)(noise(200, 80), 400).shape == (20, 50, 3)
    assert Thumbnail(1000)(noise(200, 80), 400).shape == (80, 200, 3)


@pytest.mark.parametrize(
    ("size", "expected"),
    [((80, 60), (48, 64)), ((9, 900), (64, 16)), ((64, 64), (64, 64)), ((1, 1), (64, 64))],
)
def test_fitted_sides_are_multiples(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert FitLongerSide(64, 16)(noise(*size), max(size)).shape == (*expected, 3)


def test_stretched() -> None:
    image = noise(30, 50)
    expected = image.resize((8, 4), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(Stretch(8, 4, "bicubic")(image, 50), np.asarray(expected))


def test_centre_crop_takes_the_middle() -> None:
    pixels = np.zeros((100, 200, 3), np.uint8)
    pixels[:, 50:150] = 255  # the middle square
    found = CenterCrop(50, 50)(Image.fromarray(pixels), 200)
    assert found.shape == (50, 50, 3)
    assert found[:, 2:-2].min() == 255
    half = CenterCrop(50, 50, 0.5)(Image.fromarray(pixels), 200)
    np.testing.assert_array_equal(half, np.full((50, 50, 3), 255))
    for size in ((1, 1), (1, 999), (999, 1), (51, 49)):
        assert CenterCrop(32, 16, 0.9)(noise(*size), max(size)).shape == (16, 32, 3)
