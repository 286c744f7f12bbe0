"""What a suite is: benchmarks to test on, validation data for every space, and models trained in it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gqe.datasets.base import Benchmark, TrainingSet
from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench
from gqe.formats.checksums import add_rows
from gqe.methods import model_folder
from gqe.model_files import Model, load_model, save_model
from gqe.neighbors.search import resolve_device
from gqe.training.presets import PresetOptions, train_preset

log = logging.getLogger(__name__)

# Finds a model by its name, such as "gqe", or None where there is none; it may be trained when first needed.
ModelFinder = Callable[[str], Path | None]
# The levels of each model.
DEPTHS = {"lattqe": 1, "gqe": 2, "gqe3": 3}

_KS = "1/2/3/4/6/8/12/16/24/32/48"
# What is chosen from. Expansion of the database costs more, so it has fewer settings of the SVM.
GRIDS: dict[str, str] = {
    "none": "none",
    "AQE": f"aqe:k={_KS}",
    "AQEwD": f"aqewd:k={_KS}",
    "DQE": "dqe:k=300/1000:positives=3/6/12/20",
    "αQE": f"alpha:k={_KS}:alpha=1/2/3",
    "EGT": "egt:k=10/25/50:t=0.3/0.42/0.6/0.8/1.0",
    "AQE-G": f"aqe-g:k={_KS}",
    "αQE-G": f"alpha-g:k={_KS}:alpha=1/3",
    "DBA + AQE": f"dba-aqe:k={_KS}",
    "DBA + AQEwD": f"dba-aqewd:k={_KS}",
    "DBA + DQE": "dba-dqe:k=300:positives=3/6/12",
    "DBA + αQE": f"dba-alpha:k={_KS}:alpha=1/3",
}
SWEEP = (2, 4, 8, 16, 32, 44, 64)


@dataclass(frozen=True, eq=False)
class BenchmarkEntry:
    """One benchmark of a suite, not loaded yet.

    Attributes:
        name: as in tables and in the paper's numbers.
        title: head of its columns.
        space: whose models and validation data belong to it.
        load: reads it.
        large: streamed, and left out where many settings are compared.
    """

    name: str
    title: str
    space: str
    load: Callable[[], Benchmark]
    large: bool = False


@dataclass(frozen=True, eq=False)
class Suite:
    """Everything the artefacts are made of.

    Attributes:
        name: what users type.
        title: heading of the page.
        about: a few sentences: the data, the models, where settings were chosen.
        tests: benchmarks in the order of the columns.
        validation: {space: where its settings are chosen}.
        models: {space: its models}; names are "lattqe", "gqe" and "gqe3".
        main_space: the space of figures and ablations.
        paper: "same" if the paper's numbers are to be reached, "reference" if its numbers belong to other
            descriptors, "" if they do not concern this suite.
        grids: {row: settings to choose from}.
        sweep: values of K in the sweep.
        tuned_on_test: whether to show hand-crafted methods tuned on the test sets, too.
        notes: what the reader must know.
        settings: of the measuring itself: "database_ks" and "temperatures" to choose from,
            "tune_database_side" (default True) and "show_cost".
        pictures: whether the first benchmark has pictures to show.
    """

    name: str
    title: str
    about: str
    tests: list[BenchmarkEntry]
    validation: dict[str, BenchmarkEntry]
    models: Mapping[str, ModelFinder]
    main_space: str
    paper: str = ""
    grids: dict[str, str] = field(default_factory=lambda: dict(GRIDS))
    sweep: tuple[int, ...] = SWEEP
    tuned_on_test: bool = True
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    pictures: bool = False

    def model(self, space: str, name: str) -> Path | None:
        """The folder of a model trained in a space; None if there is none."""
        return self.models[space](name) if space in self.models else None

    def small(self, space: str | None = None) -> list[BenchmarkEntry]:
        """The tests that are not large, of one space or of all."""
        return [entry for entry in self.tests if not entry.large and space in (None, entry.space)]


@dataclass(frozen=True)
class Sources:
    """What the user provides.

    Attributes:
        output: folder of the results; models trained on the way go below it.
        data: folder of the data.
        models: folder of trained models.
        train: whether to train models that are missing.
        without_r1m: leave the distractors out.
        device: "auto", "cpu", "cuda"...
        seed: of training and of made-up data.
        dry_run: number of made-up distractors.
        dim: dimension of made-up vectors.
        progress: called with steps done, all steps, and what is trained.
        quick: choose from fewer settings, and leave out what takes longest (the town).
    """

    output: Path
    data: Path | None = None
    models: Path | None = None
    train: bool = False
    without_r1m: bool = False
    device: str = "auto"
    seed: int = 0
    dry_run: int = 0
    dim: int = 2048
    progress: Callable[[int, int, str], None] | None = None
    quick: bool = False


class TrainedModels:
    """The models of one space: from the user, or trained when first needed.

    Args:
        folders: may hold models, NAME/config.json each.
        output: folder for models that are trained here; None leaves out those that are missing.
        training: the labelled data.
        validation: what the best weights are chosen by.
        options: the recipe; its depth is set by the model's name.
        sources: device, seed and progress.
    """

    def __init__(
        self,
        folders: list[Path],
        output: Path | None,
        training: Callable[[], TrainingSet],
        validation: Callable[[], Benchmark],
        options: PresetOptions,
        sources: Sources,
    ) -> None:
        self.folders, self.output, self.options, self.sources = folders, output, options, sources
        self.training, self.validation = training, validation

    def __call__(self, name: str) -> Path | None:
        """The folder of a model; None if there is none."""
        for folder in (*self.folders, *([] if self.output is None else [self.output])):
            if model_folder(folder / name) is not None:
                depth = len(load_model(folder / name).stack)
                if depth != DEPTHS[name]:
                    raise InputError(f"{folder / name}: has {depth} levels; {name} needs {DEPTHS[name]}")
                return folder / name
        return None if self.output is None else self._train(self.output / name, DEPTHS[name])

    def _train(self, folder: Path, levels: int) -> Path:
        """Train by the recipe; a stopped training continues where it was."""
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = folder / "checkpoint.pt"
        device = str(resolve_device(self.sources.device))
        options = replace(self.options, levels=levels, seed=self.sources.seed)
        data = self.training()
        progress = self.sources.progress
        log.info("training %s", folder)
        outcome = train_preset(
            data,
            [Bench(self.validation(), device=device)],
            options,
            device=device,
            checkpoint=checkpoint,
            progress=None
            if progress is None
            else lambda done, total, now: progress(done, total, f"{folder.name}: {now}"),
        )
        about = {
            "training_data": {"name": data.name, "about": data.description},
            "validation_history": outcome.history,
        }
        save_model(folder, Model(outcome.stack, folder.name, about))
        checkpoint.unlink(missing_ok=True)
        return folder


def checksum(benchmark: Benchmark) -> str:
    """Of all vectors and of the ground truth: other data gives another one."""
    digest = hashlib.blake2b(digest_size=12)
    for array in (benchmark.queries, benchmark.database):
        add_rows(digest, array)
    _update(digest, benchmark.ground_truth)
    return digest.hexdigest()


def _update(digest: Any, value: Any) -> None:
    """Ground truth is nested lists and dictionaries of numbers, names and arrays."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(f"{key}:".encode())
            _update(digest, value[key])
    elif isinstance(value, str):
        digest.update(f"{value!r},".encode())
    elif isinstance(value, np.ndarray) or (isinstance(value, list | tuple) and _flat(value)):
        array = np.asarray(value)
        digest.update(f"{array.shape}".encode())
        digest.update(np.ascontiguousarray(array, dtype=np.float64).data)
    elif isinstance(value, list | tuple):
        for each in value:
            _update(digest, each)
    else:
        digest.update(f"{value!r},".encode())


def _flat(value: list[Any] | tuple[Any, ...]) -> bool:
    return all(isinstance(each, int | float | np.number) for each in value)
