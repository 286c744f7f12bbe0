"""The file that holds a town's descriptors: int8, a few megabytes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.extraction.whitening import Whitening
from gqe.formats import read_arrays
from gqe.formats.atomic import atomic_path

FORMAT = 1
SHIPPED = Path(__file__).parent.parent / "data" / "town.npz"
LISTS = ("easy", "hard", "junk")
_OF_A_SPLIT = ("queries", "database", "query_landmarks", "database_landmarks")
PARTS = (
    *("settings", "whitening_mean", "whitening_projection", "train", "train_labels"),
    *(f"{split}_{part}" for split in ("val", "test") for part in _OF_A_SPLIT),
    *(f"{split}_{name}{end}" for split in ("val", "test") for name in LISTS for end in ("", "_count")),
)


def packed(vectors: np.ndarray) -> np.ndarray:
    """Unit vectors (n, d) as int8; every row is scaled to its own largest value."""
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    return np.asarray(np.rint(vectors / largest * 127), dtype=np.int8)


def unpacked(values: np.ndarray) -> np.ndarray:
    """The unit vectors (n, d) float32 of packed ones."""
    vectors = values.astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def packed_truth(truth: dict[str, Any]) -> dict[str, np.ndarray]:
    """Ground truth as arrays: the ids of all queries one after the other, and how many belong to each."""
    arrays = {}
    for name in LISTS:
        arrays[name] = np.array([i for query in truth["gnd"] for i in query[name]], dtype=np.int32)
        arrays[f"{name}_count"] = np.array([len(query[name]) for query in truth["gnd"]], dtype=np.int32)
    return arrays


def unpacked_truth(arrays: dict[str, np.ndarray], split: str) -> dict[str, Any]:
    """Ground truth in the layout of Revisited Oxford and Paris."""
    columns = {}
    for name in LISTS:
        ends = np.cumsum(arrays[f"{split}_{name}_count"])[:-1]
        columns[name] = [part.tolist() for part in np.split(arrays[f"{split}_{name}"], ends)]
    count = len(columns["easy"])
    whole = [0.0, 0.0, 224.0, 224.0]
    return {"gnd": [{**{name: columns[name][q] for name in LISTS}, "bbx": whole} for q in range(count)]}


def write(path: str | os.PathLike[str], arrays: dict[str, np.ndarray]) -> None:
    """Write a town's file, whole or not at all."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read(path: str | os.PathLike[str] | None) -> dict[str, np.ndarray]:
    """Read a town's file, the shipped one by default.

    Raises:
        InputError: the file is missing, is not a town, or lacks a part.
    """
    where = SHIPPED if path is None else Path(path)
    arrays = read_arrays(where)
    if "town_format" not in arrays or int(arrays["town_format"]) != FORMAT:
        raise InputError(f"{where}: not a town of format {FORMAT}; make one with `gqe data make town`")
    for name in PARTS:
        if name not in arrays:
            raise InputError(
                f"{where}: no {name}; the file is damaged, make it again with `gqe data make town`"
            )
    try:
        settings_of(arrays)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{where}: its settings cannot be read; make it again with `gqe data make town`"
        ) from error
    return arrays


def whitening_of(arrays: dict[str, np.ndarray]) -> Whitening:
    """The whitening a town's descriptors were made with."""
    return Whitening(
        arrays["whitening_mean"].astype(np.float32), arrays["whitening_projection"].astype(np.float32)
    )


def settings_of(arrays: dict[str, np.ndarray]) -> tuple[int, float]:
    """Seed and scale of a town."""
    settings = json.loads(str(arrays["settings"]))
    return int(settings["seed"]), float(settings["scale"])
