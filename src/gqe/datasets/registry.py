"""Data sets by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gqe.datasets.base import Benchmark, TrainingSet, load_npz
from gqe.errors import InputError

_ABOUT = {
    "town": "the built-in town: landmarks drawn as pictures, test split (Easy, Medium, Hard)",
    "town-val": "the built-in town, validation split: for choosing settings",
}


def available() -> dict[str, str]:
    """Names of the built-in data sets, each with a sentence about it."""
    return dict(_ABOUT)


def is_benchmark_file(path: str | os.PathLike[str]) -> bool:
    """Whether this is an .npz file with the keys of a label benchmark."""
    from gqe.formats import read_arrays

    if Path(path).suffix != ".npz" or not Path(path).is_file():
        return False
    return {"queries", "database"} <= set(read_arrays(path))


def load(name: str | os.PathLike[str]) -> Benchmark:
    """A built-in data set by name, or a label benchmark from an .npz file."""
    from gqe.datasets import town

    if name == "town":
        return town.load("test")
    if name == "town-val":
        return town.load("val")
    if Path(name).suffix == ".npz":
        return load_npz(name)
    raise InputError(
        f"benchmark: {os.fspath(name)!r} is no built-in data set ({', '.join(_ABOUT)}) and no .npz file"
    )


def load_training(name: str | os.PathLike[str]) -> TrainingSet:
    """Labelled embeddings: `town`, or an .npz file with `embeddings` (n, d) and `labels` (n,)."""
    from gqe.datasets import town
    from gqe.formats import read_arrays

    if name == "town":
        return town.load_train()
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
    told = None if progress is None else lambda done, total: progress(done, total, "pictures")
    town.make(seed=seed, out=output, scale=scale, progress=told)
    return {"output": str(output), "bytes": output.stat().st_size}
