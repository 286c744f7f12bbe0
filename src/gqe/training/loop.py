"""The training loop: losses in, validated weights out; killed and started again it ends the same."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gqe.aggregators.base import Aggregator
from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench
from gqe.training.checkpoints import Run, load_checkpoint, save_checkpoint
from gqe.training.validation import expanded_precision
from gqe.training.workers import Workers

logger = logging.getLogger(__name__)

# Gives the losses of one update, by its number from 0; each is propagated on its own, and they add up.
Losses: TypeAlias = Callable[[Sequence[Aggregator], int], Iterable[Tensor]]


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
        average: decay of the moving average of the weights, which is what is validated and kept; 0 keeps the
            weights themselves.
        keep: "best" keeps the best validated weights, "last" those at the end of the schedule.
        validate_every: updates between validations; the last update is always validated.
        patience: stop after this many validations without a better one; None never stops early.
        checkpoint_every: updates between checkpoints.
        seed: of everything drawn.
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
class Training:
    """The outcome: `stack` holds the weights that were kept, those of `best_step`."""

    stack: list[Aggregator]
    history: list[dict[str, Any]] = field(default_factory=list)
    best: float = -math.inf
    best_step: int = 0
    steps: int = 0
    loss: float = math.nan


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
    progress: Callable[[int, int, str], None] | None = None,
    workers: Workers | None = None,
) -> Training:
    """Train a stack.

    torch's random state is set anew before every update, so that a resumed run repeats an unbroken one.

    Args:
        stack: the aggregators, first level first; their weights are where training starts.
        losses: what is made small: `RankingLosses` or `ContrastiveLosses`.
        benchmarks: what to choose the best weights by (mean of mAP with and without the database expanded);
            without any the last weights are kept.
        settings: how to train.
        device: where to train.
        checkpoint: file to resume from if it is there, and to write to.
        data: what tells the data and the losses from others, such as a checksum: a checkpoint keeps it, and
            one of other data is refused.
        report: called with each line of the history.
        progress: called with the updates done, their number, and a word on how it goes.
        workers: the processes that train together, if there are several.

    Returns:
        The trained stack, on the device, and its history.
    """
    settings = settings or TrainSettings()
    workers = workers or Workers()
    if workers.count > 1 and settings.patience is not None:
        raise InputError("patience: only one process validates, so several cannot stop early together")
    if settings.keep not in ("best", "last"):
        raise InputError(f"keep: {settings.keep!r} is unknown; use best or last")
    model = nn.ModuleList(stack).to(device).train()
    average = copy.deepcopy(model).eval()
    optimizer = _optimizer(model, settings)
    outcome = Training(list(stack))
    kept = copy.deepcopy(average.state_dict())
    run = Run(asdict(settings), [level.settings() for level in stack], data)
    if checkpoint is not None and checkpoint.is_file():
        kept = load_checkpoint(checkpoint, model, average, optimizer, outcome, run, device)

    started = time.monotonic()
    elapsed = 0.0
    for step in range(outcome.steps, settings.steps):
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
        # One clock for all, so that all of them stop at the same update.
        total, elapsed = workers.add_up(model, [total, (time.monotonic() - started) / workers.count])
        if not math.isfinite(total):
            raise InputError(f"training: the loss is {total} at step {step}; lower the learning rate")
        length = nn.utils.clip_grad_norm_(model.parameters(), settings.clip or math.inf)
        if bool(length.isfinite()):
            optimizer.step()
        else:  # one odd database must not cost the whole run; if they all are, the loss soon says so
            logger.warning("step %d: the gradient is not finite; skipped", step)
        _follow(average, model, min(settings.average, (step + 1) / (step + 10)))
        outcome.loss = total if math.isnan(outcome.loss) else 0.98 * outcome.loss + 0.02 * total
        outcome.steps = step + 1
        last = share >= 1 or outcome.steps == settings.steps
        if last or outcome.steps % settings.validate_every == 0:
            line = {"step": outcome.steps, "loss": outcome.loss, "seconds": time.monotonic() - started}
            line |= validate(list(average), benchmarks)  # type: ignore[arg-type]
            outcome.history.append(line)
            if not benchmarks or settings.keep == "last" or line["score"] > outcome.best:
                outcome.best, outcome.best_step = line.get("score", -math.inf), outcome.steps
                kept = copy.deepcopy(average.state_dict())
            logger.info("step %d: loss %.4f, score %.2f", outcome.steps, outcome.loss, outcome.best)
            if report is not None:
                report(line)
            last = last or _out_of_patience(outcome, settings)
        due = workers.rank == 0 and (last or outcome.steps % settings.checkpoint_every == 0)
        if checkpoint is not None and due:
            save_checkpoint(checkpoint, model, average, kept, optimizer, outcome, run)
        if progress is not None:
            best = "" if outcome.best == -math.inf else f", best mAP {outcome.best:.1f}"
            progress(outcome.steps, settings.steps, f"loss {outcome.loss:.3f}{best}")
        if last:
            break
    model.load_state_dict(kept)
    model.eval()
    return outcome


def validate(stack: Sequence[Aggregator], benchmarks: Sequence[Bench]) -> dict[str, Any]:
    """Measure mAP on every benchmark, and "score", the mean of all; nothing without benchmarks."""
    if not benchmarks:
        return {}
    measured = {benchmark.name: expanded_precision(stack, benchmark) for benchmark in benchmarks}
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


@torch.no_grad()
def _follow(average: nn.Module, model: nn.Module, decay: float) -> None:
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)


def _out_of_patience(outcome: Training, settings: TrainSettings) -> bool:
    since = sum(line["step"] > outcome.best_step for line in outcome.history)
    return settings.patience is not None and since >= settings.patience
