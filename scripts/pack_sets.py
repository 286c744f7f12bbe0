r"""Pack labelled embeddings small, so that many sets can be sent to the machine that trains.

    python scripts/pack_sets.py BENCHMARKS --set words=words/train.npz --set scenes=scenes/train.npz -o sets

BENCHMARKS is the folder that `space_zoo.py` reads. Of it are taken the training files of pictures, parted
into signs and fruits, and of sentences, and all spaces; further sets are named by --set. A set of more than
--dimensions is rotated to its largest principal axes, which keep its cosines best. Numbers are rounded to 8
bits. Each file of the output holds `embeddings` and `labels`, its name is that of the set.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from labelled_sets import read_set

Array = np.ndarray[Any, Any]
# Labels of image/train.npz below this are traffic signs, the others fruits.
_FRUITS = 900


def main() -> None:
    """Read the command line, pack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmarks", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=PATH", help="a further set")
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)

    pictures, labels = read(options.benchmarks / "image/train.npz")
    sets = {
        "signs": (pictures[labels < _FRUITS], labels[labels < _FRUITS]),
        "fruits": (pictures[labels >= _FRUITS], labels[labels >= _FRUITS]),
        "intents": read(options.benchmarks / "text/train.npz"),
    }
    sets |= {path.stem: read(path) for path in sorted((options.benchmarks / "spaces").glob("*.npz"))}
    sets |= {name: read(Path(path)) for name, _, path in (text.partition("=") for text in options.set)}
    for name, (embeddings, labels) in sets.items():
        packed = pack(embeddings, options.dimensions)
        np.savez_compressed(options.output / f"{name}.npz", embeddings=packed, labels=labels)
        print(f"{name}: {packed.shape[0]} x {packed.shape[1]}, {len(np.unique(labels))} classes")


def read(path: Path) -> tuple[Array, Array]:
    """Embeddings of unit length, and labels."""
    embeddings, labels = read_set(path)
    embeddings = embeddings.astype(np.float32)
    return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True), labels


def pack(embeddings: Array, dimensions: int) -> Array:
    """(n, d') int8, d' at most `dimensions`; rows are to be brought to unit length when they are read."""
    if embeddings.shape[1] > dimensions:
        _, axes = np.linalg.eigh(embeddings.T @ embeddings)
        embeddings = embeddings @ axes[:, -dimensions:]
        embeddings = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    scale = 127 / np.abs(embeddings).max(axis=1, keepdims=True)
    packed: Array = np.rint(embeddings * scale).astype(np.int8)
    return packed


if __name__ == "__main__":
    main()
