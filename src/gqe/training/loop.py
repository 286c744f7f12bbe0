"""The training loop: losses in, validated weights out; an interrupted run resumes and ends the same.

Several processes can train one model together: each computes some losses of an update, and their gradients
are summed. `torchrun --nproc-per-node 4 script.py ...` starts them. An update is that of one process with all
the losses, but for rounding.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, distributed, nn
from torch.optim.swa_utils import AveragedModel

from gqe.aggregators.base import Aggregator
from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench
from gqe.progress import Progress, reporting
from gqe.training.checkpoints import TrainState

logger = logging.getLogger(__name__)

Losses: TypeAlias = Callable[[Sequence[Aggregator], int], Iterable[Tensor]]
"""Gives the losses of one update, by its number from 0. Each has its own backward pass; gradients add up."""


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    Attributes:
        steps: updates of the weights.
        learning_rate: at its peak.
        weight_decay: of AdamW (matrices only), or of Adam (everything).
        decoupled: AdamW; if not, Adam, whose decay is part of the gradient.
        schedule: "one-cycle" (a rise, then half a cosine down) or "constant".
        warmup: share of the one cycle in which the rate rises.
        clip: largest length of the gradient; None for any.
        average: decay of the moving average of the weights, which is validated and kept; 0 keeps the weights
            themselves.
        keep: "best" keeps the best validated weights, "last" those at the end of the schedule.
        validate_every: updates between validations; the last update is always validated.
        patience: stop after this many validations without a better one; None never stops early.
        checkpoint_every: updates between checkpoints.
        seed: of all random numbers.
        seconds: end the schedule after this time even if steps are left; runs are then not repeatable.
    """

    steps: int = 3000
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    decoupled: bool = True
    schedule: str = "one-cycle"
    warmup: float = 0.1
    clip: float | None = 1.0
    average: float = 0.99
    keep: str = "best"
    validate_every: int = 500
    patience: int | None = None
    checkpoint_every: int = 500
    seed: int = 0
    seconds: float | None = None


@dataclass
class TrainingResult:
    """What a training gave: `stack` holds the weights of `best_step`.

    Attributes:
        stack: the trained aggregators, on the device.
        history: a line for each validation.
        best: the score of the best weights.
        best_step: the update after which they were validated.
        steps: updates made.
        loss: its moving average.
    """

    stack: list[Aggregator]
    history: list[dict[str, Any]] = field(default_factory=list)
    best: float = -math.inf
    best_step: int = 0
    steps: int = 0
    loss: float = math.nan


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of one training.

    Attributes:
        rank: number of this process; process 0 writes checkpoints.
        world_size: how many there are.
    """

    rank: int = 0
    world_size: int = 1

    @classmethod
    def from_environment(cls) -> ProcessGroup:
        """Join the other processes; alone if this one was not started by torchrun."""
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if world_size == 1:
            return cls()
        # gloo, because several processes may share one GPU; what is sent is small.
        distributed.init_process_group("gloo")
        return cls(distributed.get_rank(), world_size)

    def all_reduce(self, model: nn.Module, numbers: list[float]) -> list[float]:
        """Sum the gradients of all processes in place, and some numbers."""
        if self.world_size == 1:
            return numbers
        parameters = [p for p in model.parameters() if p.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([gradient.detach().flatten().float() for gradient in gradients]).cpu()
        sums = torch.tensor(numbers, dtype=torch.float64)
        distributed.all_reduce(flat)
        distributed.all_reduce(sums)
        parts = torch.split(flat.to(parameters[0].device), [p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.reshape(parameter.shape).to(parameter.dtype)
        return sums.tolist()


def train(
    stack: Sequence[Aggregator],
    losses: Losses,
    benchmarks: Sequence[Bench] = (),
    settings: TrainSettings | None = None,
    *,
    device: str = "cpu",
    checkpoint: Path | None = None,
    data: str = "",
    report: Callable[[dict[str, Any]], None] | None = None,
    progress: Progress = False,
    process_group: ProcessGroup | None = None,
) -> TrainingResult:
    """Train a stack.

    torch's random state is set anew before every update, so that a resumed run repeats an uninterrupted one.

    Args:
        stack: the aggregators, first level first; training starts from their weights.
        losses: what is minimised: `RankingLosses`, `ContrastiveLosses`, or any such function.
        benchmarks: what the best weights are chosen by (mean of mAP with and without the database expanded);
            without any the last weights are kept.
        settings: how to train.
        device: where to train.
        checkpoint: file to resume from if it exists, and to write to.
        data: identifies the data and the losses, such as a checksum; a checkpoint of other data is refused.
        report: called with each line of the history.
        progress: True shows a bar on a terminal and a line every ten seconds elsewhere; or a function that is
            called with the updates done, their number, and a text with loss and score.
        process_group: the processes that train together, if there are several.
    """
    settings = settings or TrainSettings()
    process_group = process_group or ProcessGroup()
    if process_group.world_size > 1 and settings.patience is not None:
        raise InputError("patience: only one process validates, so several cannot stop early together")
    if settings.keep not in ("best", "last"):
        raise InputError(f"keep: {settings.keep!r} is unknown; use best or last")
    model = nn.ModuleList(stack).to(device).train()
    average = _averaged(model, settings.average)
    optimizer = _optimizer(model, settings)
    result = TrainingResult(list(stack))
    run = {"settings": asdict(settings), "levels": [level.settings() for level in stack], "data": data}
    state = TrainState(model, average, optimizer, copy.deepcopy(model.state_dict()), result, run)
    if checkpoint is not None and checkpoint.is_file():
        state.load(checkpoint, device)

    started = time.monotonic()
    elapsed = 0.0
    with reporting(progress, "training") as show:
        for step in range(result.steps, settings.steps):
            share = (step + 1) / settings.steps
            if settings.seconds is not None:
                share = max(share, elapsed / settings.seconds)
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * _rate(settings, share)
            optimizer.zero_grad(set_to_none=True)
            torch.manual_seed(hash((settings.seed, step)) % 2**62)
            total = 0.0
            for loss in losses(stack, step):
                loss.backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
            # One clock for all processes, so that all of them stop at the same update.
            seconds = (time.monotonic() - started) / process_group.world_size
            total, elapsed = process_group.all_reduce(model, [total, seconds])
            if not math.isfinite(total):
                raise InputError(f"training: the loss is {total} at step {step}; lower the learning rate")
            length = nn.utils.clip_grad_norm_(model.parameters(), settings.clip or math.inf)
            if bool(length.isfinite()):
                optimizer.step()
            else:  # one odd database must not end the whole run; if all are odd, the loss soon is not finite
                logger.warning("step %d: the gradient is not finite; skipped", step)
            average.update_parameters(model)
            result.loss = total if math.isnan(result.loss) else 0.98 * result.loss + 0.02 * total
            result.steps = step + 1
            last = share >= 1 or result.steps == settings.steps
            if last or result.steps % settings.validate_every == 0:
                line = {"step": result.steps, "loss": result.loss, "seconds": time.monotonic() - started}
                line |= validate(list(average.module), benchmarks)  # type: ignore[call-overload]
                result.history.append(line)
                if not benchmarks or settings.keep == "last" or line["score"] > result.best:
                    result.best, result.best_step = line.get("score", -math.inf), result.steps
                    state.best_weights = copy.deepcopy(average.module.state_dict())
                logger.info("step %d: loss %.4f, score %.2f", result.steps, result.loss, result.best)
                if report is not None:
                    report(line)
                last = last or _out_of_patience(result, settings)
            due = process_group.rank == 0 and (last or result.steps % settings.checkpoint_every == 0)
            if checkpoint is not None and due:
                state.save(checkpoint)
            if show is not None:
                best = "" if result.best == -math.inf else f", best mAP {result.best:.1f}"
                show(result.steps, settings.steps, f"loss {result.loss:.3f}{best}")
            if last:
                break
    model.load_state_dict(state.best_weights)
    model.eval()
    return result


def validate(stack: Sequence[Aggregator], benchmarks: Sequence[Bench]) -> dict[str, Any]:
    """Evaluate a stack on benchmarks.

    Returns:
        "benchmarks": by name, mAP of expanded queries in the database ("qe") and in the one that is expanded,
        too ("dba"); "score": the mean of all. Nothing without benchmarks.
    """
    if not benchmarks:
        return {}
    measured = {
        bench.name: {"qe": bench.evaluate(stack).main, "dba": bench.evaluate(stack, dba=True).main}
        for bench in benchmarks
    }
    score = sum(m["qe"] + m["dba"] for m in measured.values()) / (2 * len(measured))
    return {"score": score, "benchmarks": measured}


def one_cycle(share: float, warmup: float) -> float:
    """Share of the peak learning rate: a linear rise, then half a cosine down to almost 0."""
    share = min(1.0, share)
    if share < warmup:
        return max(0.01, share / warmup)
    return max(0.005, 0.5 * (1 + math.cos(math.pi * (share - warmup) / max(1e-9, 1 - warmup))))


def _rate(settings: TrainSettings, share: float) -> float:
    if settings.schedule not in ("one-cycle", "constant"):
        raise InputError(f"schedule: {settings.schedule!r} is unknown; use one-cycle or constant")
    return one_cycle(share, settings.warmup) if settings.schedule == "one-cycle" else 1.0


def _optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    if not settings.decoupled:
        return torch.optim.Adam(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
    # Matrices decay; biases, norms and gains do not.
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate)


def _averaged(model: nn.Module, decay: float) -> AveragedModel:
    """The moving average of a model's weights; it forgets faster at the start, when the weights are poor."""

    @torch.no_grad()
    def update(averages: Any, weights: Any, count: Any) -> None:
        torch._foreach_lerp_(averages, weights, 1 - min(decay, (int(count) + 1) / (int(count) + 10)))

    average = AveragedModel(model, multi_avg_fn=update)
    average.module.eval()
    return average


def _out_of_patience(result: TrainingResult, settings: TrainSettings) -> bool:
    since = sum(line["step"] > result.best_step for line in result.history)
    return settings.patience is not None and since >= settings.patience
