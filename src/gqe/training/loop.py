"""The training loop: episodes in, validated weights out; killed and started again it ends the same."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gqe.aggregators.base import Aggregator
from gqe.errors import InputError
from gqe.training.episodes import Episode, EpisodeSettings, draw_episode
from gqe.training.levels import expand_episode
from gqe.training.losses import mean_over, ranking_terms, relevance_loss
from gqe.training.spaces import LabelledSet
from gqe.training.validation import Benchmark, expanded_precision

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    Attributes:
        steps: updates of the weights.
        episodes: episodes an update.
        learning_rate: at the peak of the one cycle.
        weight_decay: of AdamW.
        warmup: share of the steps in which the rate rises.
        average: decay of the moving average of the weights, which is what is validated and kept.
        pairs: share of the pairwise ranking loss.
        precision: share of the smoothed average precision.
        relevance: share of the cross-entropy that asks each weight whether its neighbour is relevant.
        caution: extra price of a query that got worse than without expansion.
        validate_every: updates between validations; the last update is always validated.
        checkpoint_every: updates between checkpoints.
        mixed_precision: run the aggregators in bfloat16; None does so on a GPU.
        seed: of everything drawn.
        seconds: end the cycle after this time even if steps are left; runs are then not repeatable.
    """

    steps: int = 3000
    episodes: int = 2
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.1
    average: float = 0.99
    pairs: float = 0.5
    precision: float = 1.0
    relevance: float = 0.3
    caution: float = 1.0
    validate_every: int = 500
    checkpoint_every: int = 500
    mixed_precision: bool | None = None
    seed: int = 0
    seconds: float | None = None


@dataclass
class Training:
    """The outcome: `stack` holds the best validated weights."""

    stack: list[Aggregator]
    history: list[dict[str, Any]] = field(default_factory=list)
    best: float = -math.inf
    best_step: int = 0
    steps: int = 0


def train(
    stack: Sequence[Aggregator],
    sets: Sequence[LabelledSet],
    benchmarks: Sequence[Benchmark] = (),
    settings: TrainSettings | None = None,
    episodes: EpisodeSettings | None = None,
    *,
    device: str = "cpu",
    checkpoint: Path | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> Training:
    """Train a stack on episodes of labelled sets and of made-up spaces.

    Args:
        stack: the aggregators, first level first; their weights are where training starts.
        sets: what to train on, on the device.
        benchmarks: what to choose the best weights by (mean of mAP with and without the database expanded);
            without any the last weights are kept.
        settings: how to train.
        episodes: what episodes look like.
        device: where to train.
        checkpoint: file to resume from if it is there, and to write to.
        report: called with each line of the history.

    Returns:
        The trained stack, on the device, and its history.
    """
    settings, episodes = settings or TrainSettings(), episodes or EpisodeSettings()
    model = nn.ModuleList(stack).to(device).train()
    average = copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(_groups(model, settings.weight_decay), lr=settings.learning_rate)
    outcome = Training(list(stack))
    kept = copy.deepcopy(average.state_dict())
    if checkpoint is not None and checkpoint.is_file():
        kept = _resume(checkpoint, model, average, optimizer, outcome, settings, device)

    started, running = time.monotonic(), 0.0
    for step in range(outcome.steps, settings.steps):
        progress = (step + 1) / settings.steps
        if settings.seconds is not None:
            progress = max(progress, (time.monotonic() - started) / settings.seconds)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * one_cycle(progress, settings.warmup)
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device)
        for place in range(settings.episodes):
            seed = (settings.seed, step, place)
            episode = draw_episode(sets, episodes, seed, device)
            loss = episode_loss(list(stack), episode, settings, seed=hash(seed) % 2**31) / settings.episodes
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        _follow(average, model, min(settings.average, (step + 1) / (step + 10)))
        running = float(total) if step == 0 else 0.98 * running + 0.02 * float(total)
        if not math.isfinite(running):
            raise InputError(f"training: the loss is not finite at step {step}; lower the learning rate")
        outcome.steps = step + 1
        last = progress >= 1 or outcome.steps == settings.steps
        if last or outcome.steps % settings.validate_every == 0:
            line = {"step": outcome.steps, "loss": running, "seconds": time.monotonic() - started}
            line |= validate(list(average), benchmarks)  # type: ignore[arg-type]
            outcome.history.append(line)
            if not benchmarks or line["score"] > outcome.best:
                outcome.best, outcome.best_step = line.get("score", -math.inf), outcome.steps
                kept = copy.deepcopy(average.state_dict())
            logger.info("step %d: loss %.4f, score %.2f", outcome.steps, running, line.get("score", math.nan))
            if report is not None:
                report(line)
        if checkpoint is not None and (last or outcome.steps % settings.checkpoint_every == 0):
            _save(checkpoint, model, average, kept, optimizer, outcome, settings)
        if last:
            break
    model.load_state_dict(kept)
    model.eval()
    return outcome


def episode_loss(
    stack: Sequence[Aggregator], episode: Episode, settings: TrainSettings, *, seed: int = 0
) -> Tensor:
    """The loss of one episode: ranking on the plain database and, where it is expanded too, on that one."""
    device = episode.database.device
    mixed = device.type == "cuda" if settings.mixed_precision is None else settings.mixed_precision
    expanded = expand_episode(stack, episode, mixed_precision=mixed, seed=seed)
    relevant = episode.query_labels[:, None] == episode.labels
    tables = [episode.database] if expanded.database is None else [episode.database, expanded.database]

    def drawn() -> torch.Generator:
        return torch.Generator(device).manual_seed(seed)

    with torch.no_grad():
        plain = ranking_terms(episode.queries @ episode.database.T, relevant, generator=drawn())
    loss = torch.zeros((), device=device)
    for table in tables:
        terms = ranking_terms(expanded.queries @ table.T, relevant, generator=drawn())
        harm = (terms.precision - plain.precision).clamp(min=0)
        each = settings.pairs * terms.pairs + settings.precision * terms.precision + settings.caution * harm
        loss = loss + mean_over(each, terms.valid) / len(tables)
    for aggregator, opinions in zip(stack, expanded.opinions, strict=True):
        known = relevance_loss(opinions, probabilities=aggregator.needs_context)
        loss = loss + settings.relevance * known / len(stack)
    return loss


def validate(stack: Sequence[Aggregator], benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
    """Measure mAP on every benchmark, and "score", the mean of all; nothing without benchmarks."""
    if not benchmarks:
        return {}
    measured = {benchmark.name: expanded_precision(stack, benchmark) for benchmark in benchmarks}
    score = sum(m["qe"] + m["dba"] for m in measured.values()) / (2 * len(measured))
    return {"score": score, "benchmarks": measured}


def one_cycle(progress: float, warmup: float) -> float:
    """Share of the peak learning rate: a linear rise, then half a cosine down to almost 0."""
    progress = min(1.0, progress)
    if progress < warmup:
        return max(0.01, progress / warmup)
    return max(0.005, 0.5 * (1 + math.cos(math.pi * (progress - warmup) / max(1e-9, 1 - warmup))))


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases, norms and gains do not."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


@torch.no_grad()
def _follow(average: nn.Module, model: nn.Module, decay: float) -> None:
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)


def _save(
    path: Path,
    model: nn.Module,
    average: nn.Module,
    kept: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    outcome: Training,
    settings: TrainSettings,
) -> None:
    state = {
        "model": model.state_dict(),
        "average": average.state_dict(),
        "kept": kept,
        "optimizer": optimizer.state_dict(),
        "outcome": [outcome.history, outcome.best, outcome.best_step, outcome.steps],
        "settings": asdict(settings),
    }
    beside = path.with_name(path.name + ".part")
    torch.save(state, beside)
    beside.replace(path)


def _resume(
    path: Path,
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    outcome: Training,
    settings: TrainSettings,
    device: str,
) -> dict[str, Tensor]:
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        if state["settings"] != asdict(settings):
            raise InputError(f"{path}: a checkpoint of other settings; remove it or train with the same ones")
        model.load_state_dict(state["model"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        outcome.history, outcome.best, outcome.best_step, outcome.steps = state["outcome"]
        kept: dict[str, Tensor] = state["kept"]
    except InputError:
        raise
    except Exception as error:  # a broken file fails in many ways
        raise InputError(f"{path}: not a checkpoint of this training ({error})") from None
    return kept
