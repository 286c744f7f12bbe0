from __future__ import annotations

import sys
from pathlib import Path

import make_scenes
import numpy as np
import pytest
from PIL import Image, ImageDraw

from gqe.datasets import load_training


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Discs of 40 colours on nothing, one opaque picture, one broken file, and two backgrounds."""
    rng = np.random.default_rng(0)
    for name in ("objects", "backgrounds"):
        (tmp_path / name).mkdir()
    for number in range(40):
        disc = Image.new("RGBA", (60, 40))
        ImageDraw.Draw(disc).ellipse((10, 5, 50, 35), fill=(*rng.integers(0, 256, 3).tolist(), 255))
        disc.save(tmp_path / "objects" / f"{number}.png")
    Image.new("RGB", (30, 30), "red").save(tmp_path / "objects" / "opaque.png")
    (tmp_path / "objects" / "broken.png").write_bytes(b"\x89PNG, or so it says")
    for number in range(2):
        noise = rng.integers(0, 256, (80, 120, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "backgrounds" / f"{number}.jpg")
    return tmp_path


def test_views_of_things_become_classes(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_scenes, "_DIM", 16)
    arguments = ["--objects", pictures / "objects", "--backgrounds", pictures / "backgrounds", "--views", 4]
    monkeypatch.setattr(sys, "argv", ["make_scenes", *map(str, arguments), "--out", str(pictures / "out")])
    make_scenes.main()
    train = load_training(pictures / "out" / "train.npz")
    assert train.embeddings.shape == (24 * 4, 16)  # three fifths of 40 things: neither opaque nor broken ones
    assert (np.bincount(train.labels)[np.unique(train.labels)] == 4).all()


def test_the_same_seed_draws_the_same_views(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_scenes, "_backgrounds", [])
    make_scenes._open_backgrounds(sorted((pictures / "backgrounds").iterdir()))
    disc = pictures / "objects" / "3.png"
    first, again, other = (make_scenes.views(disc, seed, count=3) for seed in (1, 1, 2))
    assert first.shape == (3, 96, 96, 3)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
