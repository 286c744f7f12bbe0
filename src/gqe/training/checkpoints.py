"""Checkpoints of a training: everything that its next update depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gqe.errors import InputError
from gqe.formats.atomic import replacing

if TYPE_CHECKING:
    from gqe.training.loop import Training


@dataclass(frozen=True)
class Run:
    """What a training and its checkpoints must have in common.

    Attributes:
        settings: those of the loop.
        levels: settings of the aggregators. Some of them (K, say) do not show in the weights.
        data: what tells the data and the losses from others.
    """

    settings: dict[str, Any]
    levels: list[dict[str, Any]]
    data: str


def save_checkpoint(
    path: Path,
    model: nn.Module,
    average: nn.Module,
    kept: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    outcome: Training,
    run: Run,
) -> None:
    """Write a checkpoint beside its place and rename it."""
    state = {
        "model": model.state_dict(),
        "average": average.state_dict(),
        "kept": kept,
        "optimizer": optimizer.state_dict(),
        "outcome": [outcome.history, outcome.best, outcome.best_step, outcome.steps, outcome.loss],
        "run": asdict(run),
    }
    with replacing(path) as beside:
        torch.save(state, beside)


def load_checkpoint(
    path: Path,
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    outcome: Training,
    run: Run,
    device: str,
) -> dict[str, Tensor]:
    """Put a checkpoint into the model, its average, the optimizer and the outcome; gives the best weights."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        for name, own in asdict(run).items():
            if state["run"][name] != own:
                other = "data" if name == "data" else "settings"
                raise InputError(f"{path}: a checkpoint of other {other}; remove it or train with the same")
        model.load_state_dict(state["model"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        (outcome.history, outcome.best, outcome.best_step, outcome.steps, outcome.loss) = state["outcome"]
        kept: dict[str, Tensor] = state["kept"]
    except InputError:
        raise
    except Exception as error:  # a broken file fails in many ways
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: not a checkpoint of this training ({reason}); remove it") from None
    return kept
