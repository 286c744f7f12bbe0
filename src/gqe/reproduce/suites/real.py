"""Pictures and sentences with labels, and Revisited Oxford with older descriptors."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from gqe.datasets import Benchmark, load_npz, load_training
from gqe.errors import InputError
from gqe.formats import read_ground_truth, read_vectors
from gqe.reproduce.suite import GRIDS, Place, Suite
from gqe.reproduce.suites.base import Models, Sources, needed_folder
from gqe.training.presets import Options

# {kind: {file: title of its column}}
KINDS = {
    "image": {"test-signs": "signs", "test-fruits": "fruits"},
    "text": {"test-intents": "intents"},
}
TRAINING = Options(preset="default", k=32, steps=2100, validate_every=525)


def make(sources: Sources) -> Suite:
    """The suite over a folder with image/, text/ and roxford5k/ (any of the last two may be missing)."""
    folder = needed_folder(sources.data, "--data", "image/, text/ and roxford5k/")
    kinds = [kind for kind in KINDS if (folder / kind).is_dir()]
    if "image" not in kinds:
        raise InputError(f"--data: {folder} has no folder image; it needs val.npz and test files there")
    tests, validation, models = [], {}, {}
    for kind in kinds:
        val = _file(folder / kind / "val.npz")
        validation[kind] = Place(f"{kind}/val", f"{kind}, validation", kind, partial(_named, val, kind))
        for name, title in KINDS[kind].items():
            path = _file(folder / kind / f"{name}.npz")
            tests.append(Place(f"{kind}/{name}", title, kind, partial(_named, path, kind)))
        models[kind] = Models(
            [] if sources.models is None else [sources.models / kind],
            sources.output / "models" / kind if sources.train else None,
            partial(load_training, folder / kind / "train.npz"),
            validation[kind].load,
            TRAINING,
            sources,
        )
    if (folder / "roxford5k").is_dir():
        tests.append(Place("roxford5k", "ROxf", "roxford5k", partial(roxford, folder / "roxford5k")))
        validation["roxford5k"] = validation["image"]
    return Suite(
        name="real",
        title="GQE on real pictures and sentences",
        about="Traffic signs and fruits (pictures), intents (sentences), and Revisited Oxford with"
        " descriptors of 128 dimensions. LAttQE and GQE were trained in the space of the pictures or of the"
        " sentences; the universal model ships with the package. Settings are chosen on the validation file"
        " of each kind; for Revisited Oxford, which has none, on that of the pictures.",
        tests=tests,
        validation=validation,
        models=models,
        main_space="image",
        paper="reference",
        grids=GRIDS | {"DBA + DQE": "dba-dqe:k=300:positives=3/6"},
        sweep=(2, 4, 8, 16, 32, 64),
    )


def roxford(folder: Path) -> Benchmark:
    """Descriptors of Oxford5k, whose rows are in the order of all names, queries included."""
    truth = read_ground_truth(_file(folder / "gnd_roxford5k.pkl"))
    path = _file(folder / "oxford_features.fvecs")
    vectors = read_vectors(path)
    place = {name: row for row, name in enumerate(sorted(truth["imlist"] + truth["qimlist"]))}
    if len(vectors) != len(place):
        raise InputError(f"{path}: has {len(vectors)} rows; the ground truth names {len(place)} pictures")
    rows = {key: np.array([place[name] for name in truth[key]]) for key in ("imlist", "qimlist")}
    return Benchmark("roxford5k", vectors[rows["qimlist"]], vectors[rows["imlist"]], truth)


def _named(path: Path, kind: str) -> Benchmark:
    found = load_npz(path)
    return Benchmark(f"{kind}/{path.stem}", found.queries, found.database, found.ground_truth)


def _file(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"{path}: is not here; check the folder given with --data")
    return path
