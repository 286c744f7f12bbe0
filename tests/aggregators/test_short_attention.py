"""The GPU kernel for short lists against attention in float64."""

import pytest
import torch
import torch.nn.functional as F

from gqe.aggregators.attention import Attention
from gqe.aggregators.base import Neighborhood

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
short_attention = pytest.importorskip("gqe.aggregators.short_attention")

pytestmark = pytest.mark.gpu


def relative(ours, exact):
    return ((ours.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "shape", [(7, 45, 64, 32), (3, 1, 2, 32), (2, 64, 4, 64), (5, 17, 3, 16), (2, 33, 2, 128)]
)
def test_equals_attention_both_ways(shape, masked):
    batch, tokens, heads, width = shape
    qkv = torch.randn(batch, tokens, 3, heads, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    mask = torch.ones(batch, tokens, dtype=torch.bool, device="cuda")
    if masked:
        mask = torch.rand(batch, tokens, device="cuda") > 0.4
        mask[:, 0] = True
    exact = qkv.detach().double().requires_grad_()
    q, k, v = (part.transpose(1, 2) for part in exact.unbind(dim=2))
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
    expected = expected.transpose(1, 2).reshape(batch, tokens, heads * width)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)

    result = short_attention.short_attention(qkv, mask.to(torch.uint8) if masked else None)
    result.backward(gradient.to(torch.bfloat16))
    assert relative(result, expected.detach()) < 0.01
    assert relative(qkv.grad, exact.grad) < 0.015
    torch.library.opcheck(
        short_attention.short_attention,
        (qkv, mask.to(torch.uint8)),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


def test_an_empty_batch():
    qkv = torch.empty(0, 5, 3, 2, 32, device="cuda", dtype=torch.bfloat16)
    assert short_attention.short_attention(qkv, None).shape == (0, 5, 64)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_in_16_bits_stays_close_to_float64_on_a_cpu(compiled):
    torch.manual_seed(0)
    exact = Attention(256, 20, layers=2, heads=8, feedforward=64).double()
    tokens = F.normalize(torch.randn(30, 21, 256, dtype=torch.float64), dim=-1)
    mask = torch.ones(30, 21, dtype=torch.bool)
    mask[3, 12:] = False
    mask[4, 1:] = False
    expected = exact(Neighborhood(tokens, mask)).embeddings
    (expected**3).sum().backward()
    rough = Attention(**exact.settings()).cuda()
    rough.load_state_dict(exact.state_dict())
    if compiled:
        rough.compile_layers()
    given = Neighborhood(tokens.float().cuda(), mask.cuda())
    with torch.autocast("cuda", torch.bfloat16):
        weights = rough.weights(given)
    result = torch.nn.functional.normalize((weights[:, :, None] * given.tokens).sum(dim=1), dim=1)
    (result**3).sum().backward()
    assert relative(result.detach().cpu(), expected.detach()) < 0.01
    for ours, theirs in zip(rough.parameters(), exact.parameters(), strict=True):
        assert relative(ours.grad.cpu(), theirs.grad) < 0.15 or theirs.grad.norm() < 1e-4
