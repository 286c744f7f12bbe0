"""The suites by name: the built-in town, real pictures and sentences, the paper's benchmarks, a dry run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from gqe.datasets import Benchmark, load_npz, load_training, official, town
from gqe.errors import InputError
from gqe.formats import read_ground_truth, read_vectors
from gqe.reproduce import synthetic
from gqe.reproduce.suite import GRIDS, BenchmarkEntry, Sources, Suite, TrainedModels
from gqe.training.presets import PresetOptions

# The recipes of the models that are trained on the way.
# After 150 updates GQE is within 0.2 mAP of 400 on the town's test landmarks.
_TOWN_TRAINING = PresetOptions(preset="small", k=16, steps=150, validate_every=75)
_REAL_TRAINING = PresetOptions(preset="default", k=32, steps=2100, validate_every=525)
_PAPER_TRAINING = PresetOptions(preset="default", k=44)
# {kind: {file: title of its column}}
_REAL_KINDS = {
    "image": {"test-signs": "signs", "test-fruits": "fruits"},
    "text": {"test-intents": "intents"},
}
_PAPER_SPACE = "rsfm120k"
_PAPER_TITLES = {"roxford5k": "ROxf", "rparis6k": "RPar"}


def make_town(sources: Sources) -> Suite:
    """The built-in town; models are trained on its training landmarks unless the user provides them."""
    validation = BenchmarkEntry("town-val", "town, validation", "town", lambda: town.load("val"))
    models = TrainedModels(
        [] if sources.models is None else [sources.models / "town", sources.models],
        sources.output / "models" / "town",
        town.load_train,
        validation.load,
        _TOWN_TRAINING,
        sources,
    )
    suite = Suite(
        name="town",
        title="GQE on the built-in town",
        about="Landmarks of a drawn town. LAttQE and GQE are small encoders of similarities with one and two"
        " levels, trained here on its training landmarks; the universal model ships with the package."
        " Settings are chosen on its validation landmarks, which are neither trained nor tested on.",
        tests=[BenchmarkEntry("town", "town", "town", lambda: town.load("test"))],
        validation={"town": validation},
        models={"town": models},
        main_space="town",
        # An SVM for every picture of the database takes long, and so does trying every walk and temperature.
        grids=GRIDS
        | {
            "DQE": "dqe:k=300/1000:positives=3/6/12",
            "EGT": "egt:k=10/25:t=0.42/0.6/0.8",
            "DBA + DQE": "dba-dqe:k=300:positives=3/6",
        },
        settings={"database_ks": (4, 8, 16, 32), "temperatures": (None, 0.1, 0.3, 1.0)},
        pictures=True,
    )
    if not sources.quick:
        return suite
    return replace(
        suite,
        grids=suite.grids | {"EGT": "egt:k=10:t=0.42/0.6"},
        sweep=tuple(k for k in suite.sweep if k <= 32),
        tuned_on_test=False,
        settings={"database_ks": (16, 32), "temperatures": (None, 0.3)},
        notes=[
            "Left out, for they take longer than all of this: models of three levels, hand-crafted methods"
            " tuned on the test set itself, K above 32, and more settings of EGT and of the database side to"
            f" choose from. `gqe reproduce all --suite town -o {sources.output}` adds them to this page.",
            "Search the town in a browser: `gqe serve --demo`. Search vectors of your own:"
            " `gqe search DATABASE QUERIES`.",
        ],
    )


def make_real(sources: Sources) -> Suite:
    """Pictures and sentences with labels, and Revisited Oxford with older descriptors.

    The folder `sources.data` holds image/, text/ and roxford5k/; any of the last two may be missing.
    """
    folder, holds = sources.data, "image/, text/ and roxford5k/"
    if folder is None:
        raise InputError(f"--data: give the folder that holds {holds}")
    if not folder.is_dir():
        raise InputError(f"--data: {folder} is no folder; give the one that holds {holds}")
    kinds = [kind for kind in _REAL_KINDS if (folder / kind).is_dir()]
    if "image" not in kinds:
        raise InputError(f"--data: {folder} has no folder image; it needs val.npz and test files there")
    tests, validation, models = [], {}, {}
    for kind in kinds:
        val = _file(folder / kind / "val.npz")
        load = partial(_load_labelled, val, kind)
        validation[kind] = BenchmarkEntry(f"{kind}/val", f"{kind}, validation", kind, load)
        for name, title in _REAL_KINDS[kind].items():
            path = _file(folder / kind / f"{name}.npz")
            tests.append(BenchmarkEntry(f"{kind}/{name}", title, kind, partial(_load_labelled, path, kind)))
        models[kind] = TrainedModels(
            [] if sources.models is None else [sources.models / kind],
            sources.output / "models" / kind if sources.train else None,
            partial(load_training, folder / kind / "train.npz"),
            validation[kind].load,
            _REAL_TRAINING,
            sources,
        )
    if (folder / "roxford5k").is_dir():
        load = partial(_load_old_roxford, folder / "roxford5k")
        tests.append(BenchmarkEntry("roxford5k", "ROxf", "roxford5k", load))
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


def _load_labelled(path: Path, kind: str) -> Benchmark:
    data = load_npz(path)
    return Benchmark(f"{kind}/{path.stem}", data.queries, data.database, data.ground_truth)


def _load_old_roxford(folder: Path) -> Benchmark:
    """Descriptors of Oxford5k, whose rows are in the order of all names, queries included."""
    truth = read_ground_truth(_file(folder / "gnd_roxford5k.pkl"))
    path = _file(folder / "oxford_features.fvecs")
    vectors = read_vectors(path)
    row_of = {name: row for row, name in enumerate(sorted(truth["imlist"] + truth["qimlist"]))}
    if len(vectors) != len(row_of):
        raise InputError(f"{path}: has {len(vectors)} rows; the ground truth names {len(row_of)} pictures")
    rows = {key: np.array([row_of[name] for name in truth[key]]) for key in ("imlist", "qimlist")}
    return Benchmark("roxford5k", vectors[rows["qimlist"]], vectors[rows["imlist"]], truth)


def _file(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"{path}: is not here; check the folder given with --data")
    return path


def make_paper(sources: Sources) -> Suite:
    """The paper's own benchmarks, below the root of official data (`gqe data path`)."""
    root = official.data_root(sources.data)
    for name in (*_PAPER_TITLES, _PAPER_SPACE):
        if not (root / name).is_dir():
            raise InputError(f"{root / name}: is not here; get it with `gqe data get {name}`, or give --data")
    if not sources.without_r1m and not (root / "r1m" / "descriptors").is_dir():
        raise InputError(
            f"{root / 'r1m' / 'descriptors'}: is not here; get the pictures with"
            " `gqe data get r1m --pictures` and extract them, or leave them out with --without-r1m"
        )

    def entry(name: str, title: str, *, large: bool = False) -> BenchmarkEntry:
        load = partial(official.load_benchmark, name, root)
        return BenchmarkEntry(name, title, _PAPER_SPACE, load, large=large)

    tests = []
    for name, title in _PAPER_TITLES.items():
        tests.append(entry(name, title))
        if not sources.without_r1m:
            tests.append(entry(f"{name}+r1m", f"{title}+R1M", large=True))
    validation = entry("rsfm120k-val", "rSfM120k, validation")
    models = TrainedModels(
        [] if sources.models is None else [sources.models / _PAPER_SPACE, sources.models],
        sources.output / "models" / _PAPER_SPACE if sources.train else None,
        partial(official.load_training, "rsfm120k-train", root),
        validation.load,
        _PAPER_TRAINING,
        sources,
    )
    left_out = "The distractors are left out; the means run over the other columns."
    return Suite(
        name="paper",
        title="GQE on Revisited Oxford and Paris",
        about="Revisited Oxford and Paris with and without the distractors of R1M. LAttQE and GQE were"
        " trained on rSfM120k; all settings are chosen on its validation pictures. The paper's numbers stand"
        " below ours; they can only be reached with the paper's descriptors (ResNet-101, GeM, whitening).",
        tests=tests,
        validation={_PAPER_SPACE: validation},
        models={_PAPER_SPACE: models},
        main_space=_PAPER_SPACE,
        paper="same",
        notes=[left_out] if sources.without_r1m else [],
    )


SUITES: dict[str, Callable[[Sources], Suite]] = {
    "town": make_town,
    "real": make_real,
    "paper": make_paper,
    "synthetic": synthetic.make,
}


def make_suite(name: str, sources: Sources) -> Suite:
    """The suite of a name; a dry run is always the synthetic one."""
    if sources.dry_run:
        name = "synthetic"
    if name not in SUITES:
        raise InputError(f"--suite: {name!r} is unknown; it can be {', '.join(SUITES)}")
    return SUITES[name](sources)
