r"""Spoken words as labelled sounds: one word in many voices is a class.

    python scripts/make_words.py --wordnet /usr/share/wordnet --out words

Nouns of WordNet (Debian: wordnet-base) are spoken by eSpeak NG (espeak-ng), each in several voices, accents,
speeds and pitches, with some noise. A sound is described by its mel spectrum at a fixed number of moments,
PCA-whitened: no network. Writes train.npz, val.npz and test.npz, see `labelled_sets`.
"""

from __future__ import annotations

import argparse
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
from labelled_sets import write_sets

from gqe.extraction import fit

Array = np.ndarray[Any, Any]
_ACCENTS = ("en-gb", "en-us", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-rp")
_VOICES = ("m1", "m2", "m3", "m4", "m5", "m7", "f1", "f2", "f3", "f4", "croak", "klatt", "klatt3", "whisper")
# Samples a second, samples of a window, mel bands, and moments of a word, each the mean of some windows.
_RATE, _WINDOW, _BANDS, _MOMENTS, _WINDOWS = 22050, 512, 32, 12, 4
_HEADER = 44  # bytes before the samples of a .wav file
_DIM = 128
_SHORTEST, _LONGEST = 4, 9  # letters


def main() -> None:
    """Read the command line, speak, describe, write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wordnet", type=Path, required=True, help="folder with index.noun")
    parser.add_argument("--most", type=int, default=1400, help="words")
    parser.add_argument("--views", type=int, default=20, help="times each word is spoken")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.npz, val.npz, test.npz")
    options = parser.parse_args()

    if which("espeak-ng") is None:
        parser.error("espeak-ng is not installed")
    known = nouns(options.wordnet)
    words = [str(word) for word in np.random.default_rng(0).permutation(known)[: options.most]]
    labels = np.repeat(np.arange(len(words)), options.views)
    with ThreadPoolExecutor() as pool:  # the work is done by eSpeak's own processes
        spectra = list(pool.map(lambda item: described(words[item[1]], item[0]), enumerate(labels)))
    descriptors = np.stack(spectra)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    print(write_sets(options.out, fit(descriptors, _DIM).apply(descriptors), labels))


def nouns(folder: Path) -> list[str]:
    """Words of one part, neither very short nor long, in their order."""
    lines = (folder / "index.noun").read_text(encoding="latin-1").splitlines()
    words = {line.split(" ", 1)[0] for line in lines if not line.startswith("  ")}  # those are the licence
    return sorted(w for w in words if w.isascii() and w.isalpha() and _SHORTEST <= len(w) <= _LONGEST)


def described(word: str, seed: int) -> Array:
    """(moments x bands,) of a word in a voice of the seed's choice."""
    rng = np.random.default_rng(seed)
    speed, pitch = rng.integers(110, 260), rng.integers(20, 90)
    voice = f"{rng.choice(_ACCENTS)}+{rng.choice(_VOICES)}"
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", word]
    sound = subprocess.run(command, capture_output=True, check=True).stdout
    samples = np.frombuffer(sound[_HEADER : len(sound) // 2 * 2], "<i2").astype(np.float32)
    loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max())
    samples = samples[loud[0] : loud[-1] + 1]
    samples = samples + rng.normal(0, rng.uniform(0, 0.1) * samples.std(), len(samples))
    return spectrum(samples).ravel()


def spectrum(samples: Array) -> Array:
    """(moments, bands): logarithms of the energy in mel bands of a sound (n,), less their mean."""
    samples = np.pad(samples, (0, max(0, _WINDOW - len(samples))))
    starts = np.linspace(0, len(samples) - _WINDOW, _WINDOWS * _MOMENTS).astype(int)
    frames = np.stack([samples[start : start + _WINDOW] for start in starts]) * np.hanning(_WINDOW)
    energy = np.abs(np.fft.rfft(frames, axis=1)) ** 2 @ _bands().T
    levels = np.log(energy + 1e-3 * energy.max())
    moments = levels.reshape(_MOMENTS, _WINDOWS, _BANDS).mean(axis=1)
    return (moments - levels.mean()).astype(np.float32)


def _bands() -> Array:
    """(bands, frequencies) triangles that are equally wide on the mel scale."""
    mel = np.linspace(0, 2595 * np.log10(1 + _RATE / 2 / 700), _BANDS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    frequencies = np.fft.rfftfreq(_WINDOW, 1 / _RATE)
    lower, middle, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - lower) / (middle - lower), (upper - frequencies) / (upper - middle)
    return np.clip(np.minimum(rising, falling), 0, None)


if __name__ == "__main__":
    main()
