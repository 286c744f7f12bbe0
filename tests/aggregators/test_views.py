import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gqe.aggregators.base import Neighborhood
from gqe.aggregators.context import PLACES, QUANTILES
from gqe.aggregators.views import CROWDED, LISTED, RARITY, STEPS, Described, base_view, gram, stepped, view_of

GROUND = torch.tensor([0.1, 0.2])
USUAL = torch.linspace(-0.2, 0.9, QUANTILES)[:, None] - 0.02 * torch.arange(len(PLACES))


def neighborhoods(count, missing=(), seed=0):
    """Two neighbourhoods of `count` tokens; the given tokens are missing from the second one."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.nn.functional.normalize(torch.randn(2, count, 5, generator=generator), dim=2)
    own = torch.rand(2, count, len(PLACES), generator=generator).sort(dim=2, descending=True).values
    mask = torch.ones(2, count, dtype=torch.bool)
    mask[1, list(missing)] = False
    return tokens, mask, own


def share(cosine):
    return max((cosine - 0.1) / 0.9, -0.5)


def literal_pairs(tokens, mask, own):
    """The channels of each pair of one neighbourhood, by plain loops."""
    there = [i for i in range(len(tokens)) if mask[i]]
    cosines = (tokens @ tokens.T).tolist()
    inside = [share(cosines[i][j]) for i in there for j in there if i != j]
    centre = sum(inside) / max(1, len(inside))
    variance = sum((value - centre) ** 2 for value in inside) / max(1, len(inside))

    def place(i, j):
        unit = 0.25 * 0.2
        return sum(1 / (1 + math.exp((cosines[i][j] - far) / unit)) for far in own[j].tolist()) / len(PLACES)

    result = torch.zeros(6, len(tokens), len(tokens))
    for i in range(len(tokens)):
        for j in range(len(tokens)):
            result[0, i, j] = 0.0 if mask[j] else -1e4
            if mask[i] and mask[j]:
                contrast = (share(cosines[i][j]) - centre) / (2 * math.sqrt(variance + 1e-6) + 0.02)
                result[1, i, j] = share(cosines[i][j])
                result[2, i, j] = math.tanh((cosines[i][j] - 0.1) / (6 * 0.2))
                result[3, i, j] = min(max(contrast, -2.0), 2.0)
            result[4, i, j] = place(i, j)
            result[5, i, j] = place(j, i)
    return result


@pytest.mark.parametrize(("count", "missing"), [(7, ()), (7, (4, 6)), (20, (1, 19)), (40, ()), (2, (1,))])
def test_pairs_and_rows_are_what_plain_loops_give(count, missing):
    tokens, mask, own = neighborhoods(count, missing)
    view = base_view(tokens, mask, own, GROUND, USUAL).view
    for one in range(2):
        expected = literal_pairs(tokens[one], mask[one], own[one])
        assert torch.allclose(view.pairs[:, one], expected, atol=1e-5)
        first = expected[1:4, :, : LISTED + 1]
        for i in range(count):
            listed = view.listed[one, i].reshape(3, LISTED + 1)
            assert torch.allclose(listed[:, : first.shape[2]], first[:, i], atol=1e-5)
            assert (listed[:, first.shape[2] :] == 0).all()
            others = [
                float(expected[1, i, j]) for j in range(count) if mask[one, i] and mask[one, j] and i != j
            ]
            others.sort(reverse=True)
            wanted = [others[place - 1] if place <= len(others) else 0.0 for place in PLACES]
            assert view.ordered[one, i].tolist() == pytest.approx(wanted, abs=1e-5)


def test_crowding_of_tokens_and_of_the_node_and_between_them():
    tokens, mask, own = neighborhoods(5)
    found = base_view(tokens, mask, own, GROUND, USUAL).crowded
    assert found.shape == (2, 5, CROWDED)

    def crowded(value, place):
        low, high = float(USUAL[0, place]), float(USUAL[-1, place])
        return min(1.0, max(0.0, (value - low) / (high - low)))

    for i in range(5):
        lists = [crowded(float(own[0, i, p]), p) for p in range(len(PLACES))]
        node = [crowded(float(own[0, 0, p]), p) for p in range(len(PLACES))]
        near = float(tokens[0, i] @ tokens[0, 0])
        shares = [*lists, *node, crowded(near, 0), crowded(near, 3)]
        rarity = [-math.log2(1 - value + 1 / 64) / 6 for value in shares]
        assert found[0, i].tolist() == pytest.approx(shares + rarity, abs=1e-4)
        assert float(found[0, i, RARITY]) == pytest.approx(rarity[len(PLACES) + 2], abs=1e-4)


def test_with_and_without_gradients_rows_are_sorted_alike():
    tokens, mask, own = neighborhoods(40, missing=(3, 9))
    view = base_view(tokens, mask, own, GROUND, USUAL)
    cosines = gram(tokens).requires_grad_()
    learning = view_of(cosines, GROUND, view.both, view.others)
    assert torch.allclose(learning.ordered, view.view.ordered)
    learning.ordered.sum().backward()
    assert cosines.grad.abs().sum(dim=2).min() == 0  # the missing ones
    assert torch.isfinite(cosines.grad).all()
    assert (cosines.grad[0].abs().sum(dim=1) > 0).all()


@settings(max_examples=20, deadline=None)
@given(st.floats(-0.1, 1.02))
def test_steps_share_a_value_between_two_neighbours(value):
    spread = stepped(torch.tensor([[[value]]]))[0, 0]
    assert float(spread.sum()) == pytest.approx(1.0, abs=1e-4)
    assert float(spread @ torch.tensor(STEPS)) == pytest.approx(value, abs=1e-4)
    assert int((spread > 1e-6).sum()) <= 2  # on a step, rounding leaves 2e-7 on either side of it


def test_a_described_neighbourhood_is_the_same_with_its_view():
    tokens, mask, own = neighborhoods(4)
    view = base_view(tokens, mask, own, GROUND, USUAL)
    described = Described.of(Neighborhood(tokens, mask), view)
    assert isinstance(described, Neighborhood)
    assert described.tokens is tokens
    assert described.base_view is view
