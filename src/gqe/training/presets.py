"""Ways to train by name: a stack, its losses and its settings, from labelled embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gqe.aggregators import Affinity, Aggregator, Attention
from gqe.aggregators.base import MOST_LEVELS, positive, positive_int
from gqe.datasets.base import TrainingSet
from gqe.embeddings import as_table
from gqe.errors import InputError, short_repr
from gqe.evaluation.benchmark import Bench
from gqe.formats.checksums import checksum
from gqe.neighbors import knn
from gqe.progress import Progress
from gqe.training.contrastive import ContrastiveLosses, PaperSettings
from gqe.training.episodes import EpisodeSettings
from gqe.training.loop import Losses, TrainingResult, TrainSettings, train
from gqe.training.ranking import RankingLosses, RankingSettings
from gqe.training.spaces import LabelledSet

PRESETS = {
    "default": "the paper's encoder, trained by our recipe: episodes, ranking and relevance losses",
    "affinity": "our encoder of similarities, trained by our recipe; fits every dimension",
    "small": "a small encoder of similarities; a minute or two on two cores",
    "paper": "the paper's encoder and the paper's recipe: contrastive loss on mined tuples",
}

# Of neighbours: an encoder has a position for each, and compares every two.
_MOST_K = 4096
_MOST_STEPS = 10_000_000


@dataclass(frozen=True)
class PresetOptions:
    """A preset and what is changed of it.

    Attributes:
        preset: one of PRESETS.
        levels: L, the number of hops.
        k: neighbours that each aggregator reads.
        steps: updates of the weights; None takes the preset's.
        learning_rate: None takes the preset's.
        validate_every: updates between validations; None takes the preset's.
        patience: stop after this many validations without a better one.
        seed: of all random numbers.
        dropout: of the paper's encoder; with few classes (a hundred, say) 0.3 to 0.4 and a tenth of the usual
            learning rate prevent overfitting.
    """

    preset: str = "default"
    levels: int = 2
    k: int = 32
    steps: int | None = None
    learning_rate: float | None = None
    validate_every: int | None = None
    patience: int | None = None
    seed: int = 0
    dropout: float = 0.0

    def check(self) -> None:
        """Refuse what cannot be trained, or not in any reasonable time."""
        if self.preset not in PRESETS:
            raise InputError(f"preset: {short_repr(self.preset)} is unknown; it can be {', '.join(PRESETS)}")
        positive_int("levels", self.levels, most=MOST_LEVELS)
        positive_int("k", self.k, most=_MOST_K)
        positive_int("seed", self.seed, least=0, most=2**31 - 1)
        for name in ("steps", "validate_every", "patience"):
            if getattr(self, name) is not None:
                positive_int(name, getattr(self, name), most=_MOST_STEPS)
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)


def train_preset(
    data: TrainingSet,
    benches: Sequence[Bench],
    options: PresetOptions,
    *,
    device: str = "cpu",
    checkpoint: Path | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
    progress: Progress = False,
) -> TrainingResult:
    """Train a model by a preset.

    Args:
        data: labelled embeddings.
        benches: the best weights are chosen by their mAP.
        options: the preset and what is changed of it.
        device: where to train.
        checkpoint: file to resume from if it exists, and to write to.
        report: called with each validation.
        progress: see `train`.
    """
    options.check()
    table = as_table(data.embeddings, f"{data.name} embeddings")
    if options.k >= len(table):
        raise InputError(
            f"k: {options.k} neighbours, but {data.name} has {len(table)} items; give a smaller k"
        )
    torch.manual_seed(options.seed)
    stack = make_stack(options, table.shape[1])
    losses, settings = _plan(data, options, table, device)
    names = ("steps", "learning_rate", "validate_every", "patience")
    changes: dict[str, Any] = {name: getattr(options, name) for name in names}
    settings = replace(settings, **{name: value for name, value in changes.items() if value is not None})
    tables = [part for bench in benches for part in (bench.queries, bench.database)]
    return train(
        stack,
        losses,
        benches,
        settings,
        device=device,
        checkpoint=checkpoint,
        data=f"{options} {checksum(table, data.labels, *tables)}",
        report=report,
        progress=progress,
    )


def make_stack(options: PresetOptions, dim: int) -> list[Aggregator]:
    """Fresh aggregators for embeddings of a dimension; `torch.manual_seed` decides their weights."""
    if options.dropout and options.preset in ("affinity", "small"):
        raise InputError(f"dropout: the preset {options.preset} has none; leave it out")
    if options.preset == "affinity":
        return [Affinity(options.k, base=level > 0) for level in range(options.levels)]
    if options.preset == "small":
        return [Affinity(options.k, width=64, layers=2, base=level > 0) for level in range(options.levels)]
    if options.preset == "paper":
        return list(_paper(options, dim).stack(dim))
    wide = 4 * dim if dim < 512 else 2048
    return [
        Attention(dim, options.k, heads=_heads(dim), feedforward=wide, dropout=options.dropout)
        for _ in range(options.levels)
    ]


def _plan(
    data: TrainingSet, options: PresetOptions, table: torch.Tensor, device: str
) -> tuple[Losses, TrainSettings]:
    if options.preset == "paper":
        recipe = _paper(options, table.shape[1])
        graph = torch.from_numpy(knn(table, options.k, device=device).ids).to(device, torch.int64)
        embeddings = table.to(device, torch.float32)
        losses = ContrastiveLosses(embeddings, data.labels, graph, recipe, seed=options.seed)
        return losses, recipe.settings(options.seed)
    reads_coordinates = options.preset == "default"
    labelled = LabelledSet.of(
        data.name, data.embeddings, data.labels, device, principal=not reads_coordinates
    )
    ks = tuple(max(1, options.k * quarters // 4) for quarters in (1, 2, 4, 4))
    ranking, settings = RankingSettings(), TrainSettings(seed=options.seed)
    if reads_coordinates:
        # It can only be trained in its own space, and has positions for K neighbours.
        episodes = EpisodeSettings(undistorted=1.0, foreign=0.0, shares=(1.0, 0.0), k=ks)
        settings = replace(settings, learning_rate=5e-4)
    elif options.preset == "small":
        episodes = EpisodeSettings(
            queries=32,
            items=(300, 1000),
            items_both_sides=(150, 300),
            both_sides=0.2,
            k=ks,
            undistorted=0.8,
            foreign=0.2,
            shares=(1.0, 0.0),
        )
        ranking = RankingSettings(episodes=1, caution=0.3)
        settings = replace(settings, steps=600, learning_rate=2e-3, average=0.97, validate_every=200)
    else:
        episodes = EpisodeSettings(undistorted=0.6, shares=(3.0, 1.0))
    return RankingLosses([labelled], ranking, episodes, seed=options.seed, device=device), settings


def _paper(options: PresetOptions, dim: int) -> PaperSettings:
    return PaperSettings(levels=options.levels, k=options.k, heads=_heads(dim), dropout=options.dropout)


def _heads(dim: int) -> int:
    """64 heads at the paper's 2048 dimensions: as near to 32 dimensions a head as the dimension allows."""
    return max(h for h in range(1, max(1, dim // 32) + 1) if dim % h == 0)
