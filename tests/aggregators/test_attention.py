"""Algorithm 1 against the paper written out as loops, and against torch's own encoder layer."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gqe.aggregators.attention import Attention
from gqe.aggregators.base import Neighborhood
from gqe.errors import InputError

DIM, K = 12, 5


def aggregator(**settings):
    torch.manual_seed(0)
    arguments = {"dim": DIM, "k": K, "layers": 2, "heads": 3, "feedforward": 20} | settings
    return Attention(**arguments).double().eval()


def neighborhood(batch=4, k=K, dim=DIM, missing=(), seed=1):
    generator = torch.Generator().manual_seed(seed)
    tokens = F.normalize(torch.randn(batch, k + 1, dim, dtype=torch.float64, generator=generator), dim=-1)
    mask = torch.ones(batch, k + 1, dtype=torch.bool)
    for row, column in missing:
        mask[row, column] = False
    return Neighborhood(tokens, mask)


def torch_layer(layer, dim, norm_first):
    """torch's own encoder layer with the same weights."""
    twin = nn.TransformerEncoderLayer(
        dim, layer.heads, len(layer.up.bias), dropout=0.0, norm_first=norm_first, batch_first=True
    ).double()
    twin.load_state_dict(
        {
            "self_attn.in_proj_weight": layer.qkv.weight,
            "self_attn.in_proj_bias": layer.qkv.bias,
            "self_attn.out_proj.weight": layer.out.weight,
            "self_attn.out_proj.bias": layer.out.bias,
            "linear1.weight": layer.up.weight,
            "linear1.bias": layer.up.bias,
            "linear2.weight": layer.down.weight,
            "linear2.bias": layer.down.bias,
            **{f"norm{i}.{key}": value for i in (1, 2) for key, value in
               getattr(layer, f"norm{i}").state_dict().items()},
        }
    )  # fmt: skip
    return twin.train()  # eval mode takes another path inside torch


def algorithm_1(model, tokens):
    """The paper's Algorithm 1 for one node and its present neighbours (count+1, d), step by step."""
    v, *d = tokens
    encoder_input = [v + model.positions[0]]
    for i in range(1, len(d) + 1):
        encoder_input.append(d[i - 1] + model.positions[i])
    encoded = torch.stack(encoder_input)[None]
    for layer in model.encoder:
        encoded = torch_layer(layer, model.dim, model.norm_first)(encoded)
    if model.norm is not None:
        encoded = model.norm(encoded)
    v_encoded, *d_encoded = encoded[0]
    sims = [torch.tensor(1.0, dtype=torch.float64)]
    for d_i in d_encoded:
        sim = (v_encoded @ d_i) / (v_encoded.norm() * d_i.norm())
        sims.append(sim.clamp(min=0) if model.clamp else sim)
    total = sims[0] * v
    for sim, d_i in zip(sims[1:], d, strict=True):
        total = total + sim * d_i
    return total / total.norm(), torch.stack(sims)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("k", [0, 1, 3, K])
def test_is_algorithm_1(norm_first, clamp, k):
    model = aggregator(norm_first=norm_first, clamp=clamp)
    with torch.no_grad():  # spread the encoder out, or all cosines are nearly 1
        for layer in model.encoder:
            layer.qkv.weight.mul_(3)
            layer.up.weight.mul_(3)
    given = neighborhood(k=k)
    result = model(given)
    weights = model.score(given)
    for row in range(4):
        expected, sims = algorithm_1(model, given.tokens[row])
        torch.testing.assert_close(result.embeddings[row], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(weights[row], sims, rtol=0, atol=1e-12)


def test_missing_neighbours_play_no_part_wherever_they_stand():
    model = aggregator()
    given = neighborhood(missing=[(0, 5), (1, 4), (1, 5), *((2, i) for i in range(1, 6))])
    result = model(given)
    for row, present in ((0, 5), (1, 4), (2, 1), (3, 6)):
        expected, _ = algorithm_1(model, given.tokens[row, :present])
        torch.testing.assert_close(result.embeddings[row], expected, rtol=0, atol=1e-12)
        assert (result.coefficients[row, present:] == 0).all()
    torch.testing.assert_close(result.embeddings[2], given.tokens[2, 0])  # nobody there: itself


def test_padding_changes_nothing():
    model = aggregator()
    given = neighborhood(k=3)
    junk = F.normalize(torch.randn(4, 2, DIM, dtype=torch.float64), dim=-1)
    padded = Neighborhood(torch.cat([given.tokens, junk], 1), F.pad(given.mask, (0, 2), value=False))
    torch.testing.assert_close(model(padded).embeddings, model(given).embeddings, rtol=0, atol=1e-12)


@pytest.mark.parametrize("missing", [(), ((3, 4), (3, 5))])
def test_batch_size_does_not_matter(missing):
    model = aggregator().float()
    tokens, mask, *_ = neighborhood(batch=7, missing=missing)
    together = model(Neighborhood(tokens.float(), mask)).embeddings
    alone = [model(Neighborhood(tokens[i : i + 1].float(), mask[i : i + 1])).embeddings for i in range(7)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6)


def test_an_empty_batch():
    assert aggregator()(neighborhood(batch=0)).embeddings.shape == (0, DIM)


def test_positions_matter():
    model = aggregator()
    given = neighborhood()
    turned = Neighborhood(given.tokens[:, [0, 5, 4, 3, 2, 1]], given.mask)
    assert (model.score(given)[:, 1:] - model.score(turned)[:, 1:].flip(1)).abs().max() > 1e-4


@pytest.mark.parametrize("norm_first", [False, True])
def test_gradients_reach_every_parameter(norm_first):
    model = aggregator(norm_first=norm_first)
    given = neighborhood(missing=[(0, 5)])
    model(given).embeddings.mul(torch.randn(4, DIM, dtype=torch.float64)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_dropout_only_while_training():
    model = aggregator(dropout=0.5)
    given = neighborhood()
    assert torch.equal(model.score(given), model.score(given))
    assert torch.equal(model.score(given), aggregator().score(given))
    model.train()
    assert not torch.equal(model.score(given), model.score(given))


def test_the_seed_makes_the_weights_and_a_state_dict_carries_them():
    first, second = aggregator(), aggregator()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    torch.manual_seed(5)
    other = Attention(**first.settings()).double().eval()
    assert other.settings() == first.settings()
    assert not torch.equal(other.score(neighborhood()), first.score(neighborhood()))
    other.load_state_dict(first.state_dict())
    assert torch.equal(other.score(neighborhood()), first.score(neighborhood()))


def test_a_trained_model_can_be_asked_for_fewer_neighbours():
    trained = aggregator()
    fewer = Attention(**(trained.settings() | {"k": 2})).double().eval()
    fewer.load_state_dict(trained.state_dict())
    assert fewer.settings()["positions"] == K
    assert torch.equal(fewer.score(neighborhood(k=2)), trained.score(neighborhood(k=2)))


def test_autocast_gives_nearly_the_same_weights():
    model = aggregator().float()
    tokens, mask, *_ = neighborhood()
    given = Neighborhood(tokens.float(), mask)
    with torch.autocast("cpu", torch.bfloat16):
        assert model.encode(given).dtype == torch.bfloat16
        rough = model.score(given)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, model.score(given), rtol=0, atol=0.03)


def test_mistakes_are_named():
    with pytest.raises(InputError, match="heads: 64 heads do not divide the dimension 100; use heads=50"):
        Attention(dim=100, k=3)
    with pytest.raises(InputError, match="dimension 8, but this model was made for 12"):
        aggregator()(neighborhood(dim=8))
    with pytest.raises(InputError, match="6 neighbours, but this model has positions for 5"):
        aggregator()(neighborhood(k=6))
    with pytest.raises(InputError, match="k: 6 neighbours, but positions for 5"):
        aggregator(k=6, positions=5)
    for wrong in (-0.1, 1, "x", True):
        with pytest.raises(InputError, match="dropout"):
            aggregator(dropout=wrong)
    with pytest.raises(InputError, match="layers"):
        aggregator(layers=0)
