"""Official data sets by name: NAME, NAME@DESCRIPTORS, and NAME+r1m with the distractors."""

from __future__ import annotations

import os
import re

from gqe.datasets.base import Benchmark, TrainingSet
from gqe.datasets.official.place import data_root
from gqe.datasets.official.revisited import load_revisited
from gqe.datasets.official.rsfm import load_train, load_val
from gqe.errors import InputError

BENCHMARKS = {
    "roxford5k": "Revisited Oxford (Easy, Medium, Hard)",
    "rparis6k": "Revisited Paris (Easy, Medium, Hard)",
    "roxford5k+r1m": "Revisited Oxford among a million distractors",
    "rparis6k+r1m": "Revisited Paris among a million distractors",
    "rsfm120k-val": "validation pictures of retrieval-SfM-120k: for choosing settings",
}
TRAINING = {"rsfm120k-train": "training pictures of retrieval-SfM-120k"}

_SYNTAX = re.compile(r"(?P<name>[a-z0-9-]+)(@(?P<source>.+?))?(?P<more>\+r1m(@(?P<distractors>.+))?)?")


def is_official(name: str | os.PathLike[str]) -> bool:
    """Whether a name is that of an official benchmark or training set, with or without descriptors.

    Example:
        >>> is_official("roxford5k@mine.npy"), is_official("mine.npz")
        (True, False)
    """
    found = _SYNTAX.fullmatch(os.fspath(name))
    if found is None:
        return False
    return found["name"] + ("+r1m" if found["more"] else "") in BENCHMARKS | TRAINING


def load_benchmark(name: str, root: str | os.PathLike[str] | None = None) -> Benchmark:
    """An official benchmark: roxford5k, rparis6k, either with +r1m, or rsfm120k-val.

    Args:
        name: the name, and after @ its descriptors: a file, two files separated by a comma, a folder, or the
            beginning of the name of a file in ROOT/NAME/descriptors. Without @ all that lies in that folder.
            The descriptors of the distractors follow `+r1m@` likewise.
        root: the data root; default $GQE_DATA or the cache folder.
    """
    found = _parsed(name)
    folder = data_root(root)
    if found["name"] == "rsfm120k-val":
        return load_val(folder / "rsfm120k", found["source"])
    if found["name"] not in BENCHMARKS:
        raise InputError(f"benchmark: {name!r} is a training set; for validation use rsfm120k-val")
    return load_revisited(
        folder,
        found["name"],
        found["source"],
        distractors=bool(found["more"]),
        distractor_source=found["distractors"],
    )


def load_training(name: str, root: str | os.PathLike[str] | None = None) -> TrainingSet:
    """The official training set rsfm120k-train, with its descriptors after @ as for `load_benchmark`."""
    found = _parsed(name)
    if found["name"] not in TRAINING:
        raise InputError(f"data: {name!r} is for testing, not for training; use {', '.join(TRAINING)}")
    return load_train(data_root(root) / "rsfm120k", found["source"])


def _parsed(name: str) -> re.Match[str]:
    found = _SYNTAX.fullmatch(name)
    if found is None or not is_official(name):
        raise InputError(
            f"data: {name!r} is no official data set; there are {', '.join(BENCHMARKS | TRAINING)}"
        )
    return found
