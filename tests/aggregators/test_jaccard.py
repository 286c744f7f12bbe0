"""Weights by shared reciprocal neighbours."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch

import gqe
import gqe.aggregators.jaccard as jaccard_file
from gqe.aggregators import Jaccard, Neighborhood
from gqe.aggregators.context import PLACES, QUANTILES


def literal_weights(
    tokens: np.ndarray, present: list[bool], lists: np.ndarray, spread: float, weight: float
) -> list[float]:
    """The weights of one neighbourhood as plain loops in float64."""
    count = len(tokens)

    def is_near(i: int, j: int, k1: int) -> float:
        last = lists[j][PLACES.index(k1)]
        cosine = sum(a * b for a, b in zip(tokens[i], tokens[j], strict=True))
        return 1 / (1 + math.exp(-(cosine - last) / (0.25 * spread)))

    def mutual(i: int, j: int, k1: int) -> float:
        if not (present[i] and present[j]):
            return 0.0
        return 1.0 if i == j else is_near(i, j, k1) * is_near(j, i, k1)

    result = [1.0]
    for j in range(1, count):
        overlaps = []
        for k1 in (8, 16, 32):
            ours = [mutual(0, c, k1) for c in range(count)]
            theirs = [mutual(j, c, k1) for c in range(count)]
            shared = sum(a * b for a, b in zip(ours, theirs, strict=True))
            overlaps.append(shared / max(sum(ours) + sum(theirs) - shared, 1e-6))
        result.append(weight * sum(overlaps) / 3)
    return result


@pytest.mark.parametrize("base", [False, True])
def test_weights_are_those_of_plain_loops(random_unit, base: bool):
    tokens = torch.from_numpy(random_unit(2 * 9, 5).reshape(2, 9, 5))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 7:] = False
    lists = (
        torch.rand(2, 9, len(PLACES), generator=torch.Generator().manual_seed(3)).sort(descending=True).values
    )
    ground = torch.tensor([[0.1, 0.2], [0.3, 0.1]])
    quantiles = torch.linspace(0, 1, QUANTILES)[:, None].expand(-1, len(PLACES))
    # What the level before made of the tokens plays no part: only the original embeddings do.
    now = torch.from_numpy(random_unit(2 * 9, 5, seed=4).reshape(2, 9, 5)) if base else tokens
    around = Neighborhood(now, mask, tokens, lists, ground, quantiles)
    got = Jaccard(k=8, weight=0.7).weights(around)
    for i in range(2):
        wanted = literal_weights(tokens[i].double().numpy(), mask[i].tolist(), lists[i].numpy(), 0.2, 0.7)
        wanted = [w if there else 0.0 for w, there in zip(wanted, mask[i].tolist(), strict=True)]
        np.testing.assert_allclose(got[i], wanted, atol=1e-5)


def test_overlaps_find_classes_in_noise(random_unit):
    """With a K beyond the class, plain weights take in strangers; shared neighbours leave them out."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(60), 16))
    points = random_unit(60, 64)[labels] + 1.7 * rng.normal(size=(len(labels), 64)) / 8
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    database, queries = points[60:], points[:60]
    truth = {"query_labels": labels[:60], "database_labels": labels[60:]}

    def reached(name: str, **settings: float) -> float:
        expanded = gqe.expander(name, **settings).fit(database).expand(queries)
        return gqe.evaluate(expanded @ database.T, truth).main

    plain = max(reached("none"), *(reached(name, k=32) for name in ("aqe", "aqe-g", "alpha", "alpha-g")))
    assert reached("jaccard", k=32, weight=1.0) > plain + 3


def test_a_lonely_query_and_few_items(random_unit):
    database, queries = random_unit(3, 6), random_unit(2, 6, seed=1)
    expander = gqe.expander("jaccard").fit(database)
    assert expander.expand(queries).shape == (2, 6)
    nothing = gqe.expander("jaccard").fit(database[:0])
    np.testing.assert_allclose(nothing.expand(queries), queries, atol=1e-6)


def test_weight_zero_is_refused():
    with pytest.raises(gqe.InputError, match="weight: expected a finite number above 0"):
        Jaccard(weight=0)


def test_examples():
    outcome = doctest.testmod(jaccard_file)
    assert (outcome.attempted > 0, outcome.failed) == (True, 0)
