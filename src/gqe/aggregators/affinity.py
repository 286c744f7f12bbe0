"""Our own aggregator: an encoder that reads only similarities, so one set of weights fits every space."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gqe.aggregators.base import Aggregator, Neighborhood, positive_int
from gqe.aggregators.context import PLACES, profiles
from gqe.errors import InputError

# Tokens whose similarities a token lists one by one; beyond them it knows its row by its sorted values.
_LISTED = 16
# Ranks with an embedding of their own; farther neighbours share the last one.
_RANKS = 64
# tanh((G - mu) / 6 sigma): 6 deviations above the background nothing is there by chance.
_DEVIATIONS = 6.0
# Log-odds whose sigmoid is exactly 1 in float32.
_CERTAIN = 30.0


class Affinity(Aggregator):
    """Weights in [0, 1] from the similarity matrix of the node and its neighbours, never from coordinates.

    Each pair of tokens is described by its cosine above the background of the space, the same in deviations
    of the background, and the place each takes in the other's neighbour list. These enter as features of the
    tokens and as biases of the attention between them. The node itself has weight 1. Before training the
    weights fall with the rank, much like an expansion by about four neighbours.

    Args:
        k: how many neighbours the node listens to; any number, whatever it was trained with.
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
        self.width = positive_int("width", width)
        self.layers = positive_int("layers", layers)
        self.heads = positive_int("heads", heads)
        if self.width % self.heads:
            raise InputError(f"heads: {heads} heads do not divide the width {width}")
        self.base = bool(base)
        grams = 2 if self.base else 1
        pairs = 3 * grams + 2
        features = grams * (3 * (_LISTED + 1) + len(PLACES)) + 3 * len(PLACES) + 9
        self.read = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, width))
        self.ranks = nn.Embedding(_RANKS + 1, width)
        self.blocks = nn.ModuleList(_Block(width, heads, pairs) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)
        self.prior = nn.Parameter((2.5 - 0.6 * torch.arange(_RANKS + 1)).clamp(min=-4.0))
        nn.init.normal_(self.ranks.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    @property
    def reach(self) -> int:
        """Neighbours that must be known of every item: its K, or more for its profile."""
        return max(self.k, PLACES[-1])

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1) in [0, 1]."""
        return torch.sigmoid(self.logits(neighborhood))

    def logits(self, neighborhood: Neighborhood) -> Tensor:
        """Log-odds (batch, K+1) that a neighbour is worth listening to; the node's are far above all."""
        if neighborhood.tokens.shape[1] == 1:
            return torch.full_like(neighborhood.tokens[:, :, 0], _CERTAIN)
        with torch.autocast(neighborhood.tokens.device.type, enabled=False):
            pairs, features = self._describe(neighborhood)
        count = features.shape[1]
        ranks = torch.arange(count, device=features.device).clamp(max=_RANKS)
        x = self.read(features) + self.ranks(ranks)
        pairs = pairs.to(x.dtype)
        missing = torch.zeros_like(neighborhood.mask, dtype=x.dtype).masked_fill(~neighborhood.mask, -1e4)
        for block in self.blocks:
            x = block(x, pairs, missing[:, None, None])
        logits = self.head(self.norm(x))[:, :, 0].float() + self.prior[ranks]
        return torch.cat([torch.full_like(logits[:, :1], _CERTAIN), logits[:, 1:]], dim=1)

    def settings(self) -> dict[str, Any]:
        """The keyword arguments that make this aggregator again."""
        names = ("k", "width", "layers", "heads", "base", "temperature")
        return {name: getattr(self, name) for name in names}

    def _describe(self, neighborhood: Neighborhood) -> tuple[Tensor, Tensor]:
        """Pairwise channels (batch, K+1, K+1, c) and token features (batch, K+1, f)."""
        own, mask = neighborhood.profiles, neighborhood.mask
        if own is None or neighborhood.background is None or neighborhood.base is None:
            raise InputError("neighborhood: Affinity needs its base tokens, profiles and background")
        (base_mean, base_spread), (mean, spread) = neighborhood.background
        base = _gram(neighborhood.base)
        now = _gram(neighborhood.tokens) if self.base else base

        # How far down i stands in the list of j: 0 is before its first neighbour, 1 beyond its last.
        own = own.masked_fill(~own.isfinite(), -1.0)
        ahead = torch.sigmoid((own[:, None] - base[..., None]) / (0.25 * base_spread))
        place = ahead.mean(dim=3)
        both = mask[:, :, None] & mask[:, None]
        described = _described(base, base_mean, base_spread, both)
        channels = [*described, place, place.transpose(1, 2)]
        if self.base:
            described = [*described, *_described(now, mean, spread, both)]
            channels += described[3:]
        affinity = described[0]

        present = mask.sum(dim=1)[:, None, None].float()
        best = affinity[:, :1, 1:2].clamp(min=0.05)
        average = affinity.sum(dim=2, keepdim=True) / present
        everywhere = torch.stack([base_mean, base_spread * _DEVIATIONS, mean, spread * _DEVIATIONS])
        features = [
            *(_listed(channel) for channel in described),
            *(_sorted(channel, both) for channel in described[::3]),
            *_scaled(own, base_mean, base_spread),
            ahead[:, 0],
            (affinity[:, :, :1] / best).clamp(-1.0, 1.5),
            average,
            ((affinity**2).sum(dim=2, keepdim=True) / present).sqrt(),
            place[:, :1].transpose(1, 2),
            (torch.log2(present) / 6).expand_as(average),
            everywhere.expand(*average.shape[:2], 4),
        ]
        # Differences of a few hundredths matter, so all is brought to a size the first layer can feel.
        return torch.stack(channels, dim=3), 3 * torch.cat(features, dim=2)


class _Block(nn.Module):
    """Pre-norm transformer layer whose attention is biased by the channels of each pair."""

    def __init__(self, width: int, heads: int, pairs: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Linear(pairs, heads)
        nn.init.uniform_(self.bias.weight, -2.0, 2.0)  # so that every head starts with a taste of its own
        self.feed = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: Tensor, pairs: Tensor, missing: Tensor) -> Tensor:
        batch, count, width = x.shape
        qkv = self.qkv(self.before(x)).reshape(batch, count, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        scores = torch.matmul(query * (width // self.heads) ** -0.5, key.transpose(2, 3))
        scores = scores + self.bias(pairs).permute(0, 3, 1, 2) + missing
        # The type is named because mixed precision would make this, the largest tensor, float32.
        attention = torch.softmax(scores, dim=3, dtype=scores.dtype)
        mixed = torch.matmul(attention, value).transpose(1, 2).reshape(batch, count, width)
        x = x + self.out(mixed)
        fed: Tensor = self.feed(self.between(x))
        return x + fed


def _gram(tokens: Tensor) -> Tensor:
    return torch.bmm(tokens, tokens.transpose(1, 2))


def _scaled(cosines: Tensor, mean: Tensor, spread: Tensor) -> list[Tensor]:
    """Cosines above the background: as a share of what is possible, and in deviations."""
    share = (cosines - mean) / (1 - mean).clamp(min=1e-3)
    return [share.clamp(min=-0.5), torch.tanh((cosines - mean) / (_DEVIATIONS * spread))]


def _described(cosines: Tensor, mean: Tensor, spread: Tensor, both: Tensor) -> list[Tensor]:
    """Three views of each pair, 0 where one of the two is missing.

    The last is the contrast inside the neighbourhood itself: beside strangers all neighbours may look alike.
    """
    share, deviations = _scaled(cosines, mean, spread)
    others = both & ~torch.eye(both.shape[1], dtype=torch.bool, device=both.device)
    count = others.sum(dim=(1, 2), keepdim=True).clamp(min=1)
    centre = (share * others).sum(dim=(1, 2), keepdim=True) / count
    variance = ((share - centre) ** 2 * others).sum(dim=(1, 2), keepdim=True) / count
    contrast = ((share - centre) / (2 * variance.sqrt() + 0.02)).clamp(-2.0, 2.0)
    return [view * both for view in (share, deviations, contrast)]


def _listed(rows: Tensor) -> Tensor:
    """The first entries of each row, filled up with 0: those of the node and the best neighbours."""
    return nn.functional.pad(rows[:, :, : _LISTED + 1], (0, max(0, _LISTED + 1 - rows.shape[2])))


def _sorted(rows: Tensor, both: Tensor) -> Tensor:
    """What each token is to the others, by falling similarity, itself left out: (batch, K+1, places)."""
    batch, count, _ = rows.shape
    nobody = torch.eye(count, dtype=torch.bool, device=rows.device) | ~both
    others = rows.masked_fill(nobody, float("-inf")).sort(dim=2, descending=True).values[:, :, : PLACES[-1]]
    picked = profiles(others.reshape(batch * count, -1)).reshape(batch, count, len(PLACES))
    return picked.masked_fill(~picked.isfinite(), 0.0)
