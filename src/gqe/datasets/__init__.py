"""Data sets by name: the built-in town, the official benchmarks, and label benchmarks from files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gqe.datasets.base import Benchmark, TrainingSet, load_npz
from gqe.errors import InputError
from gqe.formats import read_arrays

__all__ = [
    "Benchmark",
    "TrainingSet",
    "available",
    "is_benchmark_file",
    "is_name",
    "load",
    "load_npz",
    "load_training",
    "make",
]

_ABOUT = {
    "town": "the built-in town: landmarks drawn as pictures, test split (Easy, Medium, Hard)",
    "town-val": "the built-in town, validation split: for choosing settings",
}


def available() -> dict[str, str]:
    """Names that `load` takes, each with a sentence; official ones work once their data is here."""
    from gqe.datasets import official

    return _ABOUT | official.BENCHMARKS


def is_name(source: str | os.PathLike[str]) -> bool:
    """Whether `load` takes this as a name: a built-in data set, or an official one (NAME@DESCRIPTORS too)."""
    from gqe.datasets import official

    return source in _ABOUT or official.is_official(source)


def is_benchmark_file(path: str | os.PathLike[str]) -> bool:
    """Whether this is an .npz file with the keys of a label benchmark."""
    if Path(path).suffix != ".npz" or not Path(path).is_file():
        return False
    return {"queries", "database"} <= set(read_arrays(path))


def load(name: str | os.PathLike[str]) -> Benchmark:
    """A built-in or official data set by name, or a label benchmark from an .npz file.

    An official name may carry its descriptors: `roxford5k@gem.mat`, `rparis6k@q.npy,x.npy+r1m@parts/`.
    """
    from gqe.datasets import official, town

    if name == "town":
        return town.load("test")
    if name == "town-val":
        return town.load("val")
    if official.is_official(name):
        return official.load_benchmark(os.fspath(name))
    if Path(name).suffix == ".npz":
        return load_npz(name)
    raise InputError(
        f"benchmark: {os.fspath(name)!r} is no built-in data set ({', '.join(available())}) and no .npz file"
    )


def load_training(name: str | os.PathLike[str]) -> TrainingSet:
    """Labelled embeddings: `town`, `rsfm120k-train`, or an .npz file with `embeddings` and `labels` (n,)."""
    from gqe.datasets import official, town

    if name == "town":
        return town.load_train()
    if official.is_official(name):
        return official.load_training(os.fspath(name))
    arrays = read_arrays(name)
    for key in ("embeddings", "labels"):
        if key not in arrays:
            raise InputError(
                f"{os.fspath(name)}: no {key}; a training file holds embeddings (n, d) and labels (n,)"
            )
    embeddings, labels = arrays["embeddings"], arrays["labels"]
    if labels.shape != embeddings.shape[:1] or labels.dtype.kind not in "iu":
        raise InputError(
            f"{os.fspath(name)}: labels must be {len(embeddings)} whole numbers, one for each embedding,"
            f" not {labels.dtype} {labels.shape}"
        )
    return TrainingSet(Path(name).stem, embeddings, labels, f"labelled embeddings of {Path(name).name}")


def make(
    name: str,
    output: Path,
    *,
    seed: int = 0,
    scale: float = 1.0,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Draw and extract a built-in data set anew; gives what was written, for JSON."""
    from gqe.datasets import town

    if name != "town":
        raise InputError(f"data: {name!r} cannot be made; only town can")
    report = None if progress is None else lambda done, total: progress(done, total, "pictures")
    town.make(seed=seed, out=output, scale=scale, progress=report)
    return {"output": str(output), "bytes": output.stat().st_size}
