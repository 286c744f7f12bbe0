"""The paper's training objective: mine tuples, go through them in batches, mine again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gqe.aggregators.attention import Attention
from gqe.aggregators.base import Aggregator, positive
from gqe.errors import InputError
from gqe.training.forward import expand
from gqe.training.loop import TrainSettings
from gqe.training.mining import mine


@dataclass(frozen=True)
class PaperSettings:
    """The settings of Klein and Wolf (BMVC 2021).

    Attributes:
        levels: L.
        k: neighbours that each aggregator reads.
        layers: encoder layers of an aggregator.
        heads: attention heads.
        feedforward: hidden width of an encoder layer.
        learning_rate: of Adam.
        weight_decay: of Adam.
        batch: tuples per step.
        epochs: how many; the best one by validation mAP is kept.
        margin: of the contrastive loss.
        negatives: per tuple.
        pool: random items that negatives are mined from.
        refresh: tuples after which a new pool is drawn and mined.
        dropout: in the encoder; the paper does not say.
        clamp: count negative cosines as 0. The paper's text says weights are not negative, its algorithm
            does not.
    """

    levels: int = 2
    k: int = 44
    layers: int = 3
    heads: int = 64
    feedforward: int = 2048
    learning_rate: float = 5e-5
    weight_decay: float = 1.5e-6
    batch: int = 64
    epochs: int = 40
    margin: float = 0.71
    negatives: int = 5
    pool: int = 20_000
    refresh: int = 2000
    dropout: float = 0.0
    clamp: bool = False

    def stack(self, dim: int) -> list[Attention]:
        """Fresh aggregators for embeddings of a dimension; `torch.manual_seed` decides their weights."""
        return [
            Attention(
                dim,
                self.k,
                layers=self.layers,
                heads=self.heads,
                feedforward=self.feedforward,
                dropout=self.dropout,
                clamp=self.clamp,
            )
            for _ in range(self.levels)
        ]

    @property
    def steps_per_epoch(self) -> int:
        """Updates between two draws of tuples, which is what an epoch is here."""
        return -(-self.refresh // self.batch)

    def settings(self, seed: int = 0) -> TrainSettings:
        """Adam with a constant rate; every epoch is validated and the best one kept."""
        return TrainSettings(
            steps=self.epochs * self.steps_per_epoch,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            decoupled=False,
            schedule="constant",
            clip=None,
            average=0.0,
            validate_every=self.steps_per_epoch,
            checkpoint_every=self.steps_per_epoch,
            seed=seed,
        )


class ContrastiveLosses:
    """The paper's losses: when all tuples have been used, new ones are mined with the current model.

    Args:
        embeddings: (n, d) training set, on the device to compute on; also the queries' database.
        labels: (n,) classes.
        graph: (n, K) neighbours of each item without itself, on the same device.
        recipe: the paper's settings.
        seed: of all random numbers.
        memory: see `gqe.training.forward.expand`.

    Example:
        >>> recipe = PaperSettings(k=3, layers=1, heads=2, feedforward=8, refresh=20, batch=10)
        >>> x = torch.nn.functional.normalize(torch.randn(40, 8), dim=1)
        >>> graph = (x @ x.T - 3 * torch.eye(40)).topk(3).indices
        >>> losses = ContrastiveLosses(x, torch.arange(40) % 8, graph, recipe)
        >>> len(list(losses.round(recipe.stack(dim=8))))
        2
    """

    def __init__(
        self,
        embeddings: Tensor,
        labels: Any,
        graph: Tensor,
        recipe: PaperSettings | None = None,
        *,
        seed: int = 0,
        memory: int | None = None,
    ) -> None:
        self.embeddings, self.labels, self.graph = embeddings, labels, graph
        self.recipe = recipe or PaperSettings()
        self.seed = seed
        self.memory = memory
        self._round: Iterator[Tensor] | None = None

    def __call__(self, stack: Sequence[Aggregator], step: int) -> Iterator[Tensor]:
        """The mean loss of one batch of tuples. Begin, and resume, at the first step of an epoch."""
        epoch, place = divmod(step, self.recipe.steps_per_epoch)
        if place == 0:
            generator = torch.Generator().manual_seed(hash((self.seed, epoch)) % 2**62)
            self._round = self.round(stack, generator)
        if self._round is None:
            raise InputError(f"step: {step} is not the first of an epoch of {self.recipe.steps_per_epoch}")
        device = self.embeddings.device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = next(self._round)
        yield loss / self.recipe.batch

    def round(
        self, stack: Sequence[Aggregator], generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """Mine tuples with the current model, then give the summed loss of each batch of them.

        Step the optimizer between two losses.
        """
        recipe, device = self.recipe, self.embeddings.device

        def expand_items(ids: Tensor) -> Tensor:
            ids = ids.to(device)
            queries = self.embeddings[ids].float()
            neighbors = self.graph[ids]
            return expand(
                stack, queries, neighbors, self.embeddings, self.graph, memory=self.memory
            ).embeddings

        training = [aggregator.training for aggregator in stack]
        for aggregator in stack:  # mining is without dropout
            aggregator.eval()
        tuples = mine(
            self.embeddings,
            self.labels,
            expand_items,
            tuples=recipe.refresh,
            pool=recipe.pool,
            negatives=recipe.negatives,
            generator=generator,
        )
        for aggregator, mode in zip(stack, training, strict=True):
            aggregator.train(mode)
        for start in range(0, recipe.refresh, recipe.batch):
            part = slice(start, start + recipe.batch)
            positives = self.embeddings[tuples.positives[part].to(device)].float()
            negatives = self.embeddings[tuples.negatives[part].to(device)].float()
            yield contrastive_loss(expand_items(tuples.queries[part]), positives, negatives, recipe.margin)


def contrastive_loss(queries: Tensor, positives: Tensor, negatives: Tensor, margin: float = 0.71) -> Tensor:
    """Contrastive loss of tuples: the sum of D^2 / 2 to positives and max(0, margin - D)^2 / 2 to negatives.

    Args:
        queries: (b, d) expanded queries.
        positives: (b, d), one per query.
        negatives: (b, count, d).
        margin: negatives farther than this Euclidean distance cost nothing.

    Example:
        >>> near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> contrastive_loss(near, far, near[:, None], margin=0.5)
        tensor(1.1250)
    """
    if positives.shape != queries.shape or negatives.ndim != 3 or negatives[:, 0].shape != queries.shape:
        raise InputError(
            f"tuples: expected queries and positives (b, d) and negatives (b, count, d), got"
            f" {tuple(queries.shape)}, {tuple(positives.shape)}, {tuple(negatives.shape)}"
        )
    attracted = (queries - positives).square().sum(dim=-1)
    # No direction leads away from a negative in the same place; the floor gives it gradient 0, not NaN.
    distances = (queries[:, None] - negatives).square().sum(dim=-1).clamp(min=1e-12).sqrt()
    repelled = (positive("margin", margin) - distances).clamp(min=0).square()
    return 0.5 * (attracted.sum() + repelled.sum())
