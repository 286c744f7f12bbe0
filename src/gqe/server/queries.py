"""From what a request asks to vectors: given ones, those of items, or one made of examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gqe.embeddings import LENGTH_TOLERANCE, as_table
from gqe.errors import InputError
from gqe.server.engine import Engine, ItemId
from gqe.server.schemas import Ask, Example

Array = np.ndarray[Any, Any]
_VANISHED = 1e-6
# Vectors shorter or longer are looked at with more care.
_SHORTEST, _LONGEST = 1e-15, 1e30


class Queries(NamedTuple):
    """What to search with.

    Attributes:
        vectors: (m, d) float32 of unit length.
        exclude: (m,) for each an item that it neither listens to nor finds, or None.
        drop: Items that are left out of all results, though they may be listened to.
    """

    vectors: Array
    exclude: list[ItemId | None]
    drop: list[ItemId]

    def part(self, start: int, stop: int) -> Queries:
        """Those of some rows."""
        return Queries(self.vectors[start:stop], self.exclude[start:stop], self.drop)


def resolved(engine: Engine, ask: Ask) -> Queries:
    """Vectors of what is asked; called by the thread that reads."""
    if ask.ids is not None:
        return Queries(engine.vectors(ask.ids), list(ask.ids), [])
    if ask.vectors is not None:
        return Queries(checked(ask.vectors, engine.dimension), [None] * len(ask.vectors), [])
    assert ask.like is not None
    query = from_examples(engine, ask.like, ask.dislike, ask.dislike_weight)
    return Queries(query[None], [None], [each.id for each in ask.dislike if each.id is not None])


def from_examples(
    engine: Engine, like: Sequence[Example], dislike: Sequence[Example], dislike_weight: float
) -> Array:
    """One query (d,) of examples, after Rocchio (The SMART Retrieval System, 1971).

    With unit vectors x of liked examples of weights w, and y of disliked ones of weights v, it is the unit
    vector along  (Σ w x) / (Σ w)  -  dislike_weight · (Σ v y) / (Σ v).
    """
    query = _mean(engine, like, "like")
    if dislike:
        query = query - dislike_weight * _mean(engine, dislike, "dislike")
    length = float(np.linalg.norm(query))
    if length < _VANISHED:
        raise InputError("like, dislike: the examples cancel each other out; give others, or other weights")
    return np.asarray(query / length, dtype=np.float32)


def checked(vectors: Sequence[Sequence[float]], dimension: int, name: str = "vectors") -> Array:
    """Vectors (m, d) of a request, of unit length."""
    for row, vector in enumerate(vectors):
        if len(vector) != dimension:
            raise InputError(f"{name}: row {row} has {len(vector)} numbers, the index {dimension} dimensions")
    table = np.asarray(vectors, dtype=np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", table, table))
    if not (lengths > _SHORTEST).all() or not (lengths < _LONGEST).all():
        return np.asarray(as_table(table, name, dim=dimension).numpy())  # says what is wrong
    # As `as_table` does, which takes several times as long for a single vector.
    scale = np.where(np.abs(lengths - 1) <= LENGTH_TOLERANCE[torch.float32], 1.0, lengths)
    return np.asarray(table / scale[:, None], dtype=np.float32)


def _mean(engine: Engine, examples: Sequence[Example], name: str) -> Array:
    weights = np.array([each.weight for each in examples])
    vectors = np.empty((len(examples), engine.dimension))
    for row, each in enumerate(examples):
        if each.id is not None:
            vectors[row] = engine.vectors([each.id])[0]
        else:
            assert each.vector is not None
            vectors[row] = checked([each.vector], engine.dimension, name)[0]
    return np.asarray(weights @ vectors / weights.sum())
