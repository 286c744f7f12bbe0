"""The paper's aggregator, Algorithm 1: a transformer encoder whose cosines are the weights.

LAttQE (Gordo et al., ECCV 2020) is a stack of one, GQE (Klein and Wolf, BMVC 2021) of two or more.

The encoder layer is written out instead of using `nn.TransformerEncoderLayer` (it computes the same
function): queries, keys and values come from one matrix product and reach the attention kernel without a
copy, and under autocast the running sum stays in 16 bits instead of going through float32 at every norm.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gqe.aggregators.base import (
    MOST,
    MOST_DIMENSION,
    MOST_LAYERS,
    MOST_WIDTH,
    Aggregator,
    Neighborhood,
    positive_int,
)
from gqe.errors import InputError

_short: Any = None  # our own attention kernel, where it can run
if torch.version.cuda and find_spec("triton"):
    from gqe.aggregators import short_attention as _short


class Attention(Aggregator):
    """Weight 1 for the node, and for each neighbour the cosine of the encoded node and the encoded neighbour.

    Learned positions are added to the tokens before they are encoded. What is summed at the end is the raw
    tokens, without positions, so that an expansion stays a weighted sum of embeddings.

    Args:
        dim: d, the dimension of the embeddings.
        k: how many neighbours are summed.
        layers: encoder layers.
        heads: attention heads; they divide `dim`.
        feedforward: width of the hidden layer of each encoder layer.
        dropout: in the encoder while training.
        clamp: count a negative cosine as 0. The paper's algorithm lets it subtract.
        norm_first: normalise before each part of an encoder layer instead of after it, and once at the end.
        positions: the largest `k` there is a learned position for; `k` if None. A model trained with many
            neighbours can so be asked for fewer.
        temperature: see `Aggregator`.

    Example:
        >>> aggregator = Attention(dim=8, k=2, heads=2, feedforward=16)
        >>> tokens = F.normalize(torch.randn(5, 3, 8), dim=-1)
        >>> aggregator(Neighborhood(tokens, torch.ones(5, 3, dtype=torch.bool))).embeddings.shape
        torch.Size([5, 8])
    """

    def __init__(
        self,
        dim: int,
        k: int,
        *,
        layers: int = 3,
        heads: int = 64,
        feedforward: int = 2048,
        dropout: float = 0.0,
        clamp: bool = False,
        norm_first: bool = False,
        positions: int | None = None,
        temperature: float | None = None,
    ) -> None:
        super().__init__(k, temperature)
        self.dim = positive_int("dim", dim, most=MOST_DIMENSION)
        self.layers = positive_int("layers", layers, most=MOST_LAYERS)
        self.heads = _dividing(positive_int("heads", heads), self.dim)
        self.feedforward = positive_int("feedforward", feedforward, most=8 * MOST_WIDTH)
        self.dropout = _share("dropout", dropout)
        self.clamp = bool(clamp)
        self.norm_first = bool(norm_first)
        room = self.k if positions is None else positive_int("positions", positions, most=MOST)
        if self.k > room:
            raise InputError(f"k: {self.k} neighbours, but positions for {room} only; use k <= {room}")
        # As long as the tokens they are added to: longer ones would drown the tokens in the first layers.
        self.positions = nn.Parameter(torch.randn(room + 1, self.dim) / self.dim**0.5)
        self.encoder = nn.ModuleList(
            EncoderLayer(self.dim, self.heads, self.feedforward, self.dropout, self.norm_first)
            for _ in range(self.layers)
        )
        self.norm = nn.LayerNorm(self.dim) if self.norm_first else None

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1): 1, then the cosines of the encoded node with its encoded neighbours."""
        encoded = self.encode(neighborhood)
        cosines = _cosines(encoded)
        weights = torch.cat([cosines.new_ones(len(cosines), 1), cosines], dim=1)
        if self.clamp:
            weights = weights.clamp(min=0.0)
        return weights.to(neighborhood.tokens.dtype)

    def encode(self, neighborhood: Neighborhood) -> Tensor:
        """Encoded tokens (batch, K+1, d), in the type the encoder computes in."""
        tokens, mask = neighborhood.tokens, neighborhood.mask
        self._check(tokens)
        place = tokens.device.type
        dtype = self.positions.dtype
        if torch.is_autocast_enabled(place):
            dtype = torch.get_autocast_dtype(place)
        with torch.autocast(place, enabled=False):
            x = tokens.to(dtype) + self.positions[: tokens.shape[1]].to(dtype)
            needed = mask if _own_kernel(x, self.heads, self.training and self.dropout) else _if_needed(mask)
            for layer in self.encoder:
                x = layer(x, needed)
            return x if self.norm is None else _norm(x, self.norm)

    def memory_per_token(self) -> int:
        """Numbers kept for the backward pass for each token; a training step plans its memory by it."""
        kept = 7 * self.dim + self.feedforward  # what goes into each product, norm and attention
        return self.layers * (kept + (self.feedforward + self.dim if self.dropout else 0)) + 4 * self.dim

    def compile_layers(self) -> Self:
        """Compile with `torch.compile`: pays in long training on a GPU."""
        for layer in self.encoder:
            layer.compile(dynamic=True)
        return self

    def settings(self) -> dict[str, Any]:
        """The keyword arguments that make this aggregator again."""
        return super().settings() | {"positions": len(self.positions) - 1}

    def cuda_graph_safe(self, device: torch.device) -> bool:
        """See `Aggregator`; other attention kernels ask the GPU whether any token is missing, and wait."""
        tokens = torch.empty((0, self.k + 1, self.dim), dtype=self.positions.dtype, device=device)
        return _own_kernel(tokens, self.heads, 0.0)

    def _check(self, tokens: Tensor) -> None:
        if tokens.shape[2] != self.dim:
            raise InputError(
                f"embeddings: dimension {tokens.shape[2]}, but this model was made for {self.dim};"
                " use embeddings from the network it was trained on, or train a model for these"
            )
        if tokens.shape[1] > len(self.positions):
            raise InputError(
                f"k: {tokens.shape[1] - 1} neighbours, but this model has positions"
                f" for {len(self.positions) - 1}; use a smaller k"
            )


class EncoderLayer(nn.Module):
    """Self-attention and a two-layer ReLU network, each with a residual connection and a layer norm.

    The same function as `nn.TransformerEncoderLayer` (Vaswani et al., 2017) with the same initialisation.
    """

    def __init__(self, dim: int, heads: int, feedforward: int, dropout: float, norm_first: bool) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm_first = norm_first
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.up = nn.Linear(dim, feedforward)
        self.down = nn.Linear(feedforward, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Encode x (batch, tokens, d); the mask (batch, tokens) is False where one is missing."""
        if self.norm_first:
            x = x + self._attend(_norm(x, self.norm1), mask)
            return x + self._transform(_norm(x, self.norm2))
        x = _norm(x + self._attend(x, mask), self.norm1)
        return _norm(x + self._transform(x), self.norm2)

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, tokens, dim = x.shape
        qkv = _linear(x, self.qkv).view(batch, tokens, 3, self.heads, dim // self.heads)
        dropout = self.dropout if self.training else 0.0
        if _own_kernel(x, self.heads, dropout):
            output = _short.short_attention(qkv, None if mask is None else mask.to(torch.uint8))
        else:
            q, k, v = (part.transpose(1, 2) for part in qkv.unbind(dim=2))
            keep = None if mask is None else mask[:, None, None, :]
            output = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, dropout_p=dropout)
            output = output.transpose(1, 2).reshape(batch, tokens, dim)
        return self._drop(_linear(output, self.out))

    def _transform(self, x: Tensor) -> Tensor:
        return self._drop(_linear(self._drop(F.relu(_linear(x, self.up))), self.down))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


def _cosines(encoded: Tensor) -> Tensor:
    """Cosines (batch, K) between the first token and each other one, in float32 at least."""
    with torch.autocast(encoded.device.type, enabled=False):
        wide = encoded if encoded.dtype == torch.float64 else encoded.float()
        lengths = torch.linalg.vector_norm(wide, dim=-1).clamp(min=1e-8)
        products = torch.bmm(wide[:, 1:], wide[:, 0, :, None])[:, :, 0]
        cosines: Tensor = products / (lengths[:, :1] * lengths[:, 1:])
        return cosines


def _own_kernel(x: Tensor, heads: int, dropout: float) -> bool:
    """Whether our own attention kernel is there and made for tokens like these."""
    return _short is not None and not dropout and bool(_short.fits(x, heads))


def _if_needed(mask: Tensor) -> Tensor | None:
    """The mask (batch, tokens), or None if nobody is missing: it rules out the fastest general kernels.

    Our own kernel does not mind a mask, and is so spared the wait for the GPU's answer.
    """
    return None if bool(mask.all()) else mask


def _linear(x: Tensor, linear: nn.Linear) -> Tensor:
    """The linear map in the type of x, whatever type the weights are stored in."""
    return F.linear(x, linear.weight.to(x.dtype), linear.bias.to(x.dtype))


def _norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """The layer norm in the type of x; its statistics are float32 inside the kernel."""
    return F.layer_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.bias.to(x.dtype), norm.eps)


def _dividing(heads: int, dim: int) -> int:
    if dim % heads == 0:
        return heads
    fits = max(number for number in range(1, min(heads, dim) + 1) if dim % number == 0)
    raise InputError(f"heads: {heads} heads do not divide the dimension {dim}; use heads={fits}")


def _share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{name}: expected a number from 0 to below 1, got {value!r}")
    return float(value)
