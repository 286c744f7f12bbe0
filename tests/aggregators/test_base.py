"""The contract of every aggregator: weights, temperature, missing neighbours, the one weighted sum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import literal
from gqe.aggregators import Aggregator, Alpha, Decay, Identity, Mean, Neighborhood, Svm, weighted_sum
from gqe.aggregators.base import positive, positive_int
from gqe.errors import InputError

KINDS = [
    Identity(4),
    Mean(4),
    Decay(4),
    Alpha(4, 2.0),
    Svm(4, positives=1, negatives=2),
    Identity(4, 0.3),
    Mean(4, 0.3),
    Decay(4, 0.3),
    Alpha(4, 2.0, 0.3),
    Svm(4, positives=1, negatives=2, temperature=0.3),
]


def around(seed, present, d=6):
    """Nodes with up to 4 neighbours each; `present` says how many each one has."""
    tokens = np.random.default_rng(seed).normal(size=(len(present), 5, d))
    tokens = torch.from_numpy(tokens / np.linalg.norm(tokens, axis=2, keepdims=True)).float()
    mask = torch.arange(5) <= torch.tensor(present)[:, None]
    return Neighborhood(tokens, mask)


@pytest.mark.parametrize("aggregator", KINDS, ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_weights_and_sum_against_loops_with_missing_neighbours(aggregator, seed):
    neighborhood = around(seed, present=[4, 3, 2, 1, 0, 4])
    weights = aggregator.weights(neighborhood).numpy()
    result = aggregator(neighborhood)
    for row, count in enumerate([4, 3, 2, 1, 0, 4]):
        node, *neighbors = neighborhood.tokens[row, : count + 1].double().numpy()
        expected = literal.weights(aggregator, node, neighbors)
        np.testing.assert_allclose(weights[row, : count + 1], expected, atol=1e-5)
        assert (weights[row, count + 1 :] == 0).all()
        expanded = literal.aggregated(aggregator, node, neighbors)
        np.testing.assert_allclose(result.embeddings[row], expanded, atol=1e-5)


@pytest.mark.parametrize("aggregator", KINDS, ids=repr)
def test_embeddings_are_the_sum_of_tokens_by_coefficients(aggregator):
    neighborhood = around(7, present=[4, 2, 0])
    embeddings, coefficients, _ = aggregator(neighborhood)
    assert torch.allclose((coefficients[:, :, None] * neighborhood.tokens).sum(1), embeddings, atol=1e-6)
    assert torch.allclose(embeddings.norm(dim=1), torch.ones(3), atol=1e-6)
    assert torch.allclose(embeddings[2], neighborhood.tokens[2, 0], atol=1e-6)  # the node itself


@pytest.mark.parametrize("aggregator", KINDS, ids=repr)
def test_what_stands_in_place_of_a_missing_neighbour_does_not_matter(aggregator):
    neighborhood = around(1, present=[3, 1])
    other = neighborhood.tokens.clone()
    other[~neighborhood.mask] = torch.tensor([0.0, 1, 0, 0, 0, 0])
    changed = aggregator(neighborhood._replace(tokens=other))
    assert torch.equal(changed.embeddings, aggregator(neighborhood).embeddings)


@pytest.mark.parametrize("kind", [Mean, Decay, Alpha])
def test_temperature_goes_from_the_node_itself_to_the_plain_mean(kind):
    neighborhood = around(3, present=[4, 4])
    hot = kind(4, temperature=1e6)(neighborhood).embeddings
    assert torch.allclose(hot, Mean(4)(neighborhood).embeddings, atol=1e-4)
    if kind is not Mean:  # the mean gives everyone the same weight at any temperature
        cold = kind(4, temperature=1e-4)(neighborhood).embeddings
        assert torch.allclose(cold, neighborhood.tokens[:, 0], atol=1e-6)


@pytest.mark.parametrize("temperature", [1e-37, 1e-45, 1e-300])
def test_a_temperature_below_float32_is_no_division_by_zero(temperature):
    neighborhood = around(3, present=[4, 4])
    cold = Alpha(4, temperature=temperature)(neighborhood).embeddings
    assert torch.allclose(cold, neighborhood.tokens[:, 0], atol=1e-6)


def test_a_sum_that_vanishes_keeps_the_node():
    tokens = torch.tensor([[[1.0, 0], [-1, 0], [0, 1]], [[1.0, 0], [0, 1], [0, 1]]])
    weights = torch.tensor([[0.7, 0.7, 0.0], [1.0, 1.0, 0.0]])
    embeddings, coefficients, _ = weighted_sum(tokens, weights)
    assert embeddings[0].tolist() == [1, 0]
    assert coefficients[0].tolist() == [1, 0, 0]
    assert embeddings[1].tolist() == pytest.approx([0.5**0.5, 0.5**0.5])
    nothing = weighted_sum(tokens, torch.zeros(2, 3))
    assert torch.equal(nothing.embeddings, tokens[:, 0])


@given(st.integers(0, 2**32 - 1), st.floats(1e-15, 1e15))
def test_only_the_ratio_of_weights_matters(seed, scale):
    neighborhood = around(seed, present=[4])
    weights = torch.rand(1, 5, generator=torch.Generator().manual_seed(seed))
    plain = weighted_sum(neighborhood.tokens, weights).embeddings
    scaled = weighted_sum(neighborhood.tokens, weights * scale).embeddings
    assert torch.allclose(plain, scaled, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("aggregator", KINDS, ids=repr)
def test_the_type_of_the_tokens_is_kept(aggregator, dtype):
    neighborhood = around(0, present=[4, 4])
    result = aggregator(neighborhood._replace(tokens=neighborhood.tokens.to(dtype)))
    assert result.embeddings.dtype == result.coefficients.dtype == dtype


def test_a_new_aggregator_writes_only_its_score():
    class Last(Aggregator):
        def score(self, neighborhood):
            weights = torch.zeros_like(neighborhood.tokens[:, :, 0])
            weights[:, -1] = 1
            return weights

    neighborhood = around(0, present=[4, 3])
    result = Last(4)(neighborhood).embeddings
    assert torch.allclose(result[0], neighborhood.tokens[0, 4])
    assert torch.allclose(result[1], neighborhood.tokens[1, 0])  # the last one is missing
    with pytest.raises(TypeError):
        Aggregator(4)


def test_checks_of_numbers():
    assert positive_int("k", np.int32(5)) == 5
    assert type(positive_int("k", np.int32(5))) is int
    assert positive("c", np.float32(0.5)) == 0.5
    assert positive("c", 3) == 3.0
    assert positive("c", 0, or_zero=True) == 0
    for bad in (0, -1, True, 2.0, "2", None, np.float64(3)):
        with pytest.raises(InputError, match="k: expected a whole number of at least 1"):
            positive_int("k", bad)
    for bad in (0, -1, True, "2", None, float("nan"), float("inf"), 10**400, 1j):
        with pytest.raises(InputError, match="c: expected a finite number above 0"):
            positive("c", bad)
