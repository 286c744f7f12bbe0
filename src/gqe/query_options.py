"""What is done to queries beside running aggregators: one value, held by models, expanders and indexes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from gqe.errors import InputError, short_repr

MAX_ROUNDS = 16
"""Each round costs a search and an expansion, and beyond a few nothing changes any more."""
NEGATIVE_RANKS = (64, 192)
"""First rank and end of the neighbours whose mean is subtracted: behind most classes, and still similar."""


@dataclass(frozen=True)
class QueryOptions:
    """Settings of query expansion that do not concern the database's side.

    Attributes:
        contrast: weight of the negatives that are subtracted from an expanded query, see `gqe.negatives`.
        rounds: how often a query is expanded; each round searches with the result of the one before.
    """

    contrast: float = 0.0
    rounds: int = 1

    def __post_init__(self) -> None:
        number = isinstance(self.contrast, Real) and not isinstance(self.contrast, bool)
        if not number or not 0 <= self.contrast < 1:
            raise InputError(
                "contrast: expected a number of at least 0 and below 1, such as 0.4,"
                f" got {short_repr(self.contrast)}"
            )
        whole = isinstance(self.rounds, Integral) and not isinstance(self.rounds, bool)
        if not whole or self.rounds < 1:
            raise InputError(f"rounds: expected a whole number of at least 1, got {short_repr(self.rounds)}")
        if self.rounds > MAX_ROUNDS:
            raise InputError(
                f"rounds: expected a whole number of at most {MAX_ROUNDS}, got {short_repr(self.rounds)}"
            )
        object.__setattr__(self, "contrast", float(self.contrast))
        object.__setattr__(self, "rounds", int(self.rounds))

    def num_neighbors(self, graph_k: int) -> int:
        """How many neighbours of a query are read: those of the aggregators, and the negatives."""
        return max(graph_k, NEGATIVE_RANKS[1]) if self.contrast else graph_k

    def to_config(self) -> dict[str, Any]:
        """As stored in a configuration, and as it enters checksums: only what differs from the defaults."""
        return {name: value for name, value in vars(self).items() if value != getattr(QueryOptions(), name)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> QueryOptions:
        """Read from a configuration that may hold other entries, too."""
        return cls(**{name: config[name] for name in cls.__dataclass_fields__ if name in config})

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.to_config().items())
