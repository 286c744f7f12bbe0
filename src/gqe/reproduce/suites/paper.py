"""The paper's own benchmarks: Revisited Oxford and Paris, with a million distractors, and rSfM120k."""

from __future__ import annotations

from functools import partial

from gqe.datasets.official import data_root, load_benchmark, load_training
from gqe.errors import InputError
from gqe.reproduce.suite import Place, Suite
from gqe.reproduce.suites.base import Models, Sources
from gqe.training.presets import Options

SPACE = "rsfm120k"
TITLES = {"roxford5k": "ROxf", "rparis6k": "RPar"}
# The recipe of `gqe train`, with the paper's K.
TRAINING = Options(preset="default", k=44)


def make(sources: Sources) -> Suite:
    """The suite over the root of official data (`gqe data path`)."""
    root = data_root(sources.data)
    for name in (*TITLES, SPACE):
        if not (root / name).is_dir():
            raise InputError(f"{root / name}: is not here; get it with `gqe data get {name}`, or give --data")
    if not sources.without_r1m and not (root / "r1m" / "descriptors").is_dir():
        raise InputError(
            f"{root / 'r1m' / 'descriptors'}: is not here; get the pictures with"
            " `gqe data get r1m --pictures` and extract them, or leave them out with --without-r1m"
        )
    tests = []
    for name, title in TITLES.items():
        tests.append(Place(name, title, SPACE, partial(load_benchmark, name, root)))
        if not sources.without_r1m:
            more = f"{name}+r1m"
            load = partial(load_benchmark, more, root)
            tests.append(Place(more, f"{title}+R1M", SPACE, load, large=True))
    validation = Place(
        "rsfm120k-val", "rSfM120k, validation", SPACE, partial(load_benchmark, "rsfm120k-val", root)
    )
    models = Models(
        [] if sources.models is None else [sources.models / SPACE, sources.models],
        sources.output / "models" / SPACE if sources.train else None,
        partial(load_training, "rsfm120k-train", root),
        validation.load,
        TRAINING,
        sources,
    )
    return Suite(
        name="paper",
        title="GQE on Revisited Oxford and Paris",
        about="Revisited Oxford and Paris with and without the distractors of R1M. LAttQE and GQE were"
        " trained on rSfM120k; all settings are chosen on its validation pictures. The paper's numbers stand"
        " below ours; they can only be reached with the paper's descriptors (ResNet-101, GeM, whitening).",
        tests=tests,
        validation={SPACE: validation},
        models={SPACE: models},
        main_space=SPACE,
        paper="same",
        notes=["The distractors are left out; the means run over the other columns."]
        if sources.without_r1m
        else [],
    )
