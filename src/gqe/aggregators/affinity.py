"""Our own aggregator: an encoder that reads only similarities, so one set of weights fits every space."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from gqe.aggregators.base import MOST_LAYERS, MOST_WIDTH, Aggregator, Neighborhood, positive_int
from gqe.aggregators.context import PLACES
from gqe.aggregators.views import (
    CROWDED,
    DEVIATIONS,
    LISTED,
    RARITY,
    STEPS,
    BaseView,
    gram,
    known_base_view,
    stepped,
    view_of,
)
from gqe.errors import InputError

_RANKS = 64
"""Ranks with an embedding of their own; neighbours beyond them share the last one."""
_RARE = 0.5
"""Rarity from which a dense list may be a chance meeting of unrelated items: the densest ninth of all."""
_APART, _TOGETHER = 0.7, 0.8
"""Similarity of the eighth neighbour above which a dense list is a class after all: below the first the
caution is whole, from the second on there is none."""
_EIGHTH = 8
"""The rank of that neighbour."""
_NEAR, _NEARER = 0.55, 0.15
"""A list is far if its best neighbour is less similar than the first, wholly if less by the second."""
_FALL = 0.2
"""A list is not flat if its eighth neighbour is less similar than its best one by this much."""
_CAUTION = (12.0, 4.0)
"""Strength of the caution in rare density and in flat lists before it is chosen on validation data."""
_PRIOR = (2.5, 0.6, -4.0)
"""Log-odds of the node before training, how much they fall per rank, and the lowest."""
_CERTAIN = 30.0
"""Log-odds whose sigmoid is exactly 1 in float32."""


class Affinity(Aggregator):
    """Weights in [0, 1] from the similarity matrix of the node and its neighbours, never from coordinates.

    Each pair of tokens is described by its cosine above the background of the space, the same in deviations
    of the background, and the place each takes in the other's neighbour list. These enter as features of the
    tokens and as biases of the attention between them. Each token also knows how crowded it is around it
    compared with the rest of the database, which means the same in every space: a list far denser than
    most others is either a class of near duplicates or, where nothing is very near, a chance meeting of
    strangers. There the weights are held back, and also in a flat list with nothing near. The node itself has
    weight 1. Before training the weights fall with the rank, much like an expansion by about four
    neighbours.

    Args:
        k: how many neighbours are summed; any number, whatever it was trained with.
        width: size of a token inside the encoder.
        layers: depth of the encoder.
        heads: attention heads; must divide `width`.
        base: read the similarities of the original embeddings too. For the second and later levels, whose
            tokens are already expanded.
        temperature: see `Aggregator`.

    Example:
        >>> Affinity(k=32)
        Affinity(k=32, width=128, layers=3, heads=4, base=False)
    """

    needs_context: ClassVar[bool] = True

    def __init__(
        self,
        k: int = 32,
        width: int = 128,
        layers: int = 3,
        heads: int = 4,
        base: bool = False,
        temperature: float | None = None,
    ) -> None:
        super().__init__(k, temperature)
        self.width = positive_int("width", width, most=MOST_WIDTH)
        self.layers = positive_int("layers", layers, most=MOST_LAYERS)
        self.heads = positive_int("heads", heads)
        if self.width % self.heads:
            raise InputError(f"heads: {heads} heads do not divide the width {width}")
        self.base = bool(base)
        grams = 2 if self.base else 1
        pairs = 3 * grams + 2
        features = grams * (3 * (LISTED + 1) + len(PLACES)) + 3 * len(PLACES) + 9
        features += (grams + 2) * len(STEPS) + CROWDED
        self.read = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, width))
        self.ranks = nn.Embedding(_RANKS + 1, width)
        self.blocks = nn.ModuleList(_Block(width, heads, pairs) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)
        self.direct = nn.Linear(features, 1)
        first, fall, lowest = _PRIOR
        self.caution = nn.Parameter(torch.tensor(_CAUTION))
        self.prior = nn.Parameter((first - fall * torch.arange(_RANKS + 1)).clamp(min=lowest))
        nn.init.normal_(self.ranks.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)
        for parameter in (self.head.bias, self.direct.weight, self.direct.bias):
            nn.init.zeros_(parameter)

    @property
    def graph_k(self) -> int:
        """Neighbours that must be known of every item: its K, or more for its profile."""
        return max(self.k, PLACES[-1])

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1) in [0, 1]."""
        return torch.sigmoid(self.logits(neighborhood))

    def logits(self, neighborhood: Neighborhood) -> Tensor:
        """Log-odds (batch, K+1) that a neighbour is relevant; the node's are far above all."""
        if neighborhood.tokens.shape[1] == 1:
            return torch.full_like(neighborhood.tokens[:, :, 0], _CERTAIN)
        logits, base = self.encode(neighborhood)
        logits = logits - self.doubts(base)
        return torch.cat([torch.full_like(logits[:, :1], _CERTAIN), logits[:, 1:]], dim=1)

    def doubts(self, base: BaseView) -> Tensor:
        """What both cautions take from all log-odds of a node (batch, 1)."""
        return _doubts(base) @ self.caution[:, None]

    def encode(self, neighborhood: Neighborhood) -> tuple[Tensor, BaseView]:
        """Log-odds (batch, K+1) before the cautions, and what the original embeddings say."""
        with torch.autocast(neighborhood.tokens.device.type, enabled=False):
            pairs, features, base = self._describe(neighborhood)
        count = features.shape[1]
        ranks = torch.arange(count, device=features.device).clamp(max=_RANKS)
        x = self.read(features) + self.ranks(ranks)
        pairs = pairs.to(x.dtype)
        for block in self.blocks:
            x = block(x, pairs)
        logits = (self.head(self.norm(x)) + self.direct(features))[:, :, 0].float()
        return logits + self.prior[ranks], base

    def _describe(self, neighborhood: Neighborhood) -> tuple[Tensor, Tensor, BaseView]:
        """Pairwise channels (1 + c, batch, K+1, K+1), token features (batch, K+1, f), and the view."""
        base, grounds = known_base_view(neighborhood)
        views, pairs, steps = [base.view], base.view.pairs, [base.steps]
        if self.base:
            now = view_of(gram(neighborhood.tokens), grounds[1], base.both, base.others)
            pairs = torch.cat([pairs, now.pairs])
            steps.append(stepped(now.pairs[0, :, :, :1]))
            views.append(now)
        levels = torch.stack([grounds[:, 0], DEVIATIONS * grounds[:, 1]], dim=1).flatten()
        features = [
            *(view.listed for view in views),
            *(view.ordered for view in views),
            base.more,
            levels.expand(*base.more.shape[:2], -1),
            base.crowded,
        ]
        # Differences of a few hundredths matter, so all is brought to a size the first layer can feel.
        read = 3 * torch.cat(features, dim=2)
        return pairs, torch.cat([read, *steps], dim=2), base


def _doubts(base: BaseView) -> Tensor:
    """Two reasons for low weights (batch, 2): rare density that is no class, and a flat list far away."""
    near = base.view.pairs[1, :, 0]
    # The eighth neighbour, or the last one there is.
    places = torch.arange(min(_EIGHTH + 1, near.shape[1]), device=near.device)
    last = (base.both[:, 0, : len(places)] * places).amax(dim=1, keepdim=True).long()
    best, eighth = near[:, 1], near.gather(1, last)[:, 0]
    rare = (base.crowded[:, 0, RARITY] - _RARE).clamp(min=0)
    apart = ((_TOGETHER - eighth) / (_TOGETHER - _APART)).clamp(0, 1)
    flat = (1 - (best - eighth) / _FALL).clamp(min=0)
    far = ((_NEAR - best) / _NEARER).clamp(0, 1)
    return torch.stack([rare * apart, flat * far], dim=1)


class _Block(nn.Module):
    """Pre-norm transformer layer whose attention is biased by the channels of each pair."""

    def __init__(self, width: int, heads: int, pairs: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        # A constant added to all scores of an attention changes nothing, so there is none.
        self.bias = nn.Linear(pairs, heads, bias=False)
        nn.init.uniform_(self.bias.weight, -2.0, 2.0)  # so that every head starts with biases of its own
        self.feed = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: Tensor, pairs: Tensor) -> Tensor:
        """Encode x (batch, K+1, width); `pairs` (1 + c, batch, K+1, K+1) are those of `_describe`."""
        x = x + self.out(self._attend(self.before(x), pairs))
        fed: Tensor = self.feed(self.between(x))
        return x + fed

    def _attend(self, x: Tensor, pairs: Tensor) -> Tensor:
        batch, count, width = x.shape
        size, heads = width // self.heads, self.heads
        split = self.qkv(x).reshape(batch, count, 3, heads, size).permute(2, 3, 0, 1, 4)
        query, key, value = split.reshape(3, heads * batch, count, size)
        del split  # freed early, large tensors find room where earlier ones were instead of in new pages
        weight = nn.functional.pad(self.bias.weight, (1, 0), value=1.0)
        scores = (weight @ pairs.flatten(1)).reshape(heads * batch, count, count)
        scores = torch.baddbmm(scores, query, key.transpose(1, 2), alpha=size**-0.5)
        # The type is named because mixed precision would make this, the largest tensor, float32.
        scores = torch.softmax(scores, dim=2, dtype=scores.dtype)
        mixed = torch.bmm(scores, value).reshape(heads, batch, count, size)
        return mixed.permute(1, 2, 0, 3).reshape(batch, count, width)
