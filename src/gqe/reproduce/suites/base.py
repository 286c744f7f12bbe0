"""What the suites are made from, and models that are given or trained when first needed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gqe.datasets.base import Benchmark, TrainingSet
from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench
from gqe.methods import model_folder
from gqe.model_files import Model, load_model, save_model
from gqe.neighbors.search import resolve_device
from gqe.training.presets import Options, train_preset

log = logging.getLogger(__name__)

# The levels of each model.
DEPTHS = {"lattqe": 1, "gqe": 2, "gqe3": 3}


@dataclass(frozen=True)
class Sources:
    """What a user gave.

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
        progress: told about training.
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


class Models:
    """The models of one space.

    Args:
        given: folders that may hold models, NAME/config.json each.
        trained: folder for models that are trained here; None leaves out those that are missing.
        training: the labelled data.
        validation: what the best weights are chosen by.
        options: the recipe; its depth is set by the model's name.
        sources: device, seed and progress.
    """

    def __init__(
        self,
        given: list[Path],
        trained: Path | None,
        training: Callable[[], TrainingSet],
        validation: Callable[[], Benchmark],
        options: Options,
        sources: Sources,
    ) -> None:
        self.given, self.trained, self.options, self.sources = given, trained, options, sources
        self.training, self.validation = training, validation

    def __call__(self, name: str) -> Path | None:
        """The folder of a model, given or trained; None if there is none."""
        for folder in (*self.given, *([] if self.trained is None else [self.trained])):
            if model_folder(folder / name) is not None:
                self._check(folder / name, name)
                return folder / name
        return None if self.trained is None else self._train(self.trained / name, DEPTHS[name])

    def _check(self, folder: Path, name: str) -> None:
        depth = len(load_model(folder).stack)
        if depth != DEPTHS[name]:
            raise InputError(f"{folder}: has {depth} levels; {name} needs {DEPTHS[name]}")

    def _train(self, folder: Path, levels: int) -> Path:
        """Train by the recipe; a stopped training goes on where it was."""
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = folder / "checkpoint.pt"
        device = str(resolve_device(self.sources.device))
        options = replace(self.options, levels=levels, seed=self.sources.seed)
        data = self.training()
        told = self.sources.progress
        log.info("training %s", folder)
        outcome = train_preset(
            data,
            [Bench(self.validation(), device=device)],
            options,
            device=device,
            checkpoint=checkpoint,
            progress=None
            if told is None
            else lambda done, total, now: told(done, total, f"{folder.name}: {now}"),
        )
        about = {
            "training_data": {"name": data.name, "about": data.description},
            "validation_history": outcome.history,
        }
        save_model(folder, Model(outcome.stack, folder.name, about))
        checkpoint.unlink(missing_ok=True)
        return folder


def needed_folder(path: Path | None, option: str, holds: str) -> Path:
    """A folder that the user must give."""
    if path is None:
        raise InputError(f"{option}: give the folder that holds {holds}")
    if not path.is_dir():
        raise InputError(f"{option}: {path} is no folder; give the one that holds {holds}")
    return path
