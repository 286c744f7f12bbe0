"""What every aggregator is: weights of a node and of each of its neighbours."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from inspect import Parameter
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gqe.errors import InputError, short_repr
from gqe.registry import Registered, is_ours

MOST = 1_000_000
"""Neighbours or results that may be looked at: the limit of every such setting."""
MOST_LEVELS = 16
"""Of a stack: the work grows with each, and beyond a few nothing changes any more."""
MOST_LAYERS, MOST_WIDTH, MOST_DIMENSION = 64, 16_384, 65_536
"""Of an encoder, and of the embeddings it is for."""
TUNING_K = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48)
"""Values of K that are tried on validation data."""

AGGREGATORS: dict[str, type[Aggregator]] = {}
"""All aggregators by the name under which they are stored."""
METHODS: dict[str, type[Aggregator]] = {}
"""The aggregator of every hand-crafted method, by the name of the method."""


class Neighborhood(NamedTuple):
    """A batch of nodes, each with its neighbours.

    Attributes:
        tokens: (batch, K+1, d) unit vectors; the node first, then its neighbours by falling similarity.
        mask: (batch, K+1) bool, False where a neighbour is missing. The node is always there.

    The rest is there only for aggregators with `needs_context` (see `gqe.statistics`):

    Attributes:
        base: (batch, K+1, d) the same tokens as they were before the first level.
        profiles: (batch, K+1, places) similarities at some places of each token's own neighbour list.
        background: (2, 2) median and deviation of unrelated similarities, before the first level and now.
        quantiles: (QUANTILES, places) how near neighbours are all over the database.
    """

    tokens: Tensor
    mask: Tensor
    base: Tensor | None = None
    profiles: Tensor | None = None
    background: Tensor | None = None
    quantiles: Tensor | None = None


class Aggregation(NamedTuple):
    """New embeddings, and how they were put together.

    Attributes:
        embeddings: (batch, d) unit vectors.
        coefficients: (batch, K+1); `embeddings` is exactly this weighted sum of the tokens.
        weights: (batch, K+1) before the sum was normalised, 0 for missing neighbours.
    """

    embeddings: Tensor
    coefficients: Tensor
    weights: Tensor


class Aggregator(Registered, nn.Module, ABC):
    """One level of expansion. A subclass writes `score`; everything else happens here, for all.

    What a subclass may set beside its `name` and `tuning_grid` (see `Registered`):

    Attributes:
        methods: names of methods that are this aggregator, on as many levels as `levels` says (one if it
            does not), each with default settings other than those of the constructor.
        needs_context: whether `score` reads the optional fields of a `Neighborhood`.
        fixed_steps: whether `score` takes the same steps for all inputs and never waits for the device. Not
            inherited.

    Args:
        k: how many neighbours are summed.
        temperature: if given, the weights pass through softmax(weight / temperature) over the node and its
            neighbours: small values give back the node itself, large ones the plain mean (Gordo et al.,
            2020).
    """

    registry: ClassVar[dict[str, type[Aggregator]]] = AGGREGATORS
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {"k": TUNING_K}
    methods: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    needs_context: ClassVar[bool] = False
    fixed_steps: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.methods = vars(cls).get("methods", {})
        for name in cls.methods:
            if is_ours(METHODS.get(name)):
                raise InputError(f"methods: {name!r} of {cls.__name__} is a method already; rename it")
            for key, value in cls.method_settings(name).items():
                if value is Parameter.empty:
                    raise InputError(f"methods: {name!r} of {cls.__name__} gives no default for {key}")
            METHODS[name] = cls

    def __init__(self, k: int, temperature: float | None = None) -> None:
        super().__init__()
        self.k = positive_int("k", k, most=MOST)
        self.temperature = None if temperature is None else positive("temperature", temperature)

    @property
    def graph_k(self) -> int:
        """How many neighbours of every item must be known."""
        return self.k

    @abstractmethod
    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1) of the node (first) and its neighbours; missing ones are ignored."""

    def weights(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1) as they enter the sum: tempered if asked for, 0 for missing neighbours."""
        weights = self.score(neighborhood)
        if self.temperature is None:
            return weights.masked_fill(~neighborhood.mask, 0.0)
        weights = weights / max(self.temperature, 1e-30)  # beyond that float32 ends
        return torch.softmax(weights.masked_fill(~neighborhood.mask, float("-inf")), dim=1)

    def forward(self, neighborhood: Neighborhood) -> Aggregation:
        """Sum the raw tokens by their weights and normalise the sum."""
        tokens, weights = neighborhood.tokens, self.weights(neighborhood)
        if not torch.is_autocast_enabled(tokens.device.type):
            return weighted_sum(tokens, weights)
        with torch.autocast(tokens.device.type, enabled=False):  # 16 bits would cost the sum its last digits
            return weighted_sum(tokens, weights.to(tokens.dtype))

    @classmethod
    def method_settings(cls, name: str) -> dict[str, Any]:
        """The settings of one of `methods` with their default values."""
        own = cls.methods[name]
        return {**own, **{key: value for key, value in cls.default_settings().items() if key not in own}}

    def cuda_graph_safe(self, device: torch.device) -> bool:
        """Whether a CUDA graph can hold `forward`: the same steps for all inputs, all on the device."""
        return bool(vars(type(self)).get("fixed_steps", False))

    def __repr__(self) -> str:
        try:
            settings = self.settings()
        except InputError:  # it can be used all the same, and is refused when it is saved
            settings = {"k": self.k}
        shown = ", ".join(f"{key}={value!r}" for key, value in settings.items() if value is not None)
        return f"{type(self).__name__}({shown})"


def weighted_sum(tokens: Tensor, weights: Tensor) -> Aggregation:
    """The one place where tokens are summed and normalised.

    A sum that vanishes (weights that cancel each other) has no direction: the node is kept as it is.

    Args:
        tokens: (batch, K+1, d), the node first.
        weights: (batch, K+1).
    """
    total = torch.bmm(weights[:, None], tokens)[:, 0]
    length = torch.linalg.vector_norm(total, dim=1, keepdim=True)
    vanished = length < 1e-6 * (weights.abs().sum(dim=1, keepdim=True) + 1e-30)
    length = torch.where(vanished, torch.ones_like(length), length)
    coefficients = torch.where(vanished, _only_the_node(weights), weights / length)
    embeddings = torch.where(vanished, tokens[:, 0], total / length)
    return Aggregation(embeddings, coefficients, weights)


def _only_the_node(weights: Tensor) -> Tensor:
    one_hot = torch.zeros_like(weights)
    one_hot[:, 0] = 1.0
    return one_hot


def positive_int(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """Check a whole number such as K."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InputError(f"{name}: expected a whole number of at least {least}, got {short_repr(value)}")
    if most is not None and int(value) > most:
        raise InputError(f"{name}: expected a whole number of at most {most:,}, got {short_repr(value)}")
    return int(value)


def positive(name: str, value: object, *, or_zero: bool = False) -> float:
    """Check a finite number above zero (or at least zero)."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not (0 < number < math.inf or (or_zero and number == 0)):
        least = "of at least" if or_zero else "above"
        raise InputError(f"{name}: expected a finite number {least} 0, got {short_repr(value)}")
    return number
