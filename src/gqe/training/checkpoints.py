"""Checkpoints of a training: everything that its next update depends on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gqe.errors import InputError
from gqe.formats.atomic import atomic_path

if TYPE_CHECKING:
    from gqe.training.loop import TrainingResult

_RESULT = ("history", "best", "best_step", "steps", "loss")


@dataclass
class TrainState:
    """What changes while a model is trained.

    Attributes:
        model: under training.
        average: the moving average of its weights.
        optimizer: of the model's parameters.
        best_weights: so far.
        result: history and scores so far.
        run: what a training and its checkpoints must have in common: "settings" of the loop, "levels" (the
            settings of the aggregators, of which some, such as K, do not show in the weights), and "data",
            which identifies the data and the losses.
    """

    model: nn.Module
    average: nn.Module
    optimizer: torch.optim.Optimizer
    best_weights: dict[str, Tensor]
    result: TrainingResult
    run: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write a checkpoint, atomically."""
        state = {name: getattr(self, name).state_dict() for name in ("model", "average", "optimizer")}
        state |= {"best": self.best_weights, "run": self.run}
        state["result"] = {name: getattr(self.result, name) for name in _RESULT}
        with atomic_path(path) as beside:
            torch.save(state, beside)

    def load(self, path: Path, device: str) -> None:
        """Continue from a checkpoint of the same run."""
        try:
            state = torch.load(path, map_location=device, weights_only=True)
            for name, own in self.run.items():
                if state["run"][name] != own:
                    other = "data" if name == "data" else "settings"
                    raise InputError(
                        f"{path}: a checkpoint of other {other}; remove it or train with the same"
                    )
            for name in ("model", "average", "optimizer"):
                getattr(self, name).load_state_dict(state[name])
            for name in _RESULT:
                setattr(self.result, name, state["result"][name])
            self.best_weights = state["best"]
        except InputError:
            raise
        except Exception as error:  # a broken file fails in many ways
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"{path}: not a checkpoint of this training ({reason}); remove it") from None
