from __future__ import annotations

import sys
from pathlib import Path
from shutil import which

import make_words
import numpy as np
import pytest

from gqe.datasets import load_training


@pytest.mark.parametrize("hertz", [500, 1500, 4000])
def test_a_tone_is_loudest_in_the_band_around_it(hertz: int) -> None:
    tone = np.sin(2 * np.pi * hertz * np.arange(8000) / 22050)
    found = make_words.spectrum(tone)
    assert found.shape == (12, 32)
    centres = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 22050 / 2 / 700), 34)[1:-1] / 2595) - 1)
    nearest = np.abs(centres - hertz).argmin()
    assert (found.argmax(axis=1) == nearest).all()


def test_how_loud_a_sound_is_does_not_matter() -> None:
    sound = np.random.default_rng(0).normal(size=300)  # shorter than a window
    np.testing.assert_allclose(make_words.spectrum(sound), make_words.spectrum(90 * sound), atol=1e-4)


@pytest.mark.skipif(which("espeak-ng") is None, reason="espeak-ng, which speaks the words, is not installed")
def test_spoken_words_become_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = ["apartment", "elephant", "mountain", "music", "nation", "orange"]
    fitting += ["paper", "river", "stone", "tiger", "village", "water"]
    known = [*fitting, "cat", "ice_cream", "extraordinariness"]
    lines = ["  1 This is the licence", *(f"{word} n 1 0 1 0 0123" for word in known)]
    (tmp_path / "index.noun").write_text("\n".join(lines))
    assert make_words.nouns(tmp_path) == fitting
    monkeypatch.setattr(make_words, "_DIM", 6)
    arguments = ["--wordnet", tmp_path, "--views", 4, "--out", tmp_path / "out"]
    monkeypatch.setattr(sys, "argv", ["make_words", *map(str, arguments)])
    make_words.main()
    train = load_training(tmp_path / "out" / "train.npz")
    assert train.embeddings.shape == (7 * 4, 6)  # three fifths of twelve words
    np.testing.assert_array_equal(make_words.described("water", 3), make_words.described("water", 3))
