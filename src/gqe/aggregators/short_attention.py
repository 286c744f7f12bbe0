# mypy: ignore-errors
# (Triton's kernel language has no types to check.)
"""Self-attention over short lists on a GPU, in one kernel each way.

A neighbourhood is a list of at most 64 tokens: all its scores of one head fit into registers. General
attention kernels are made for long lists and spend most of their time here on padding and on passes that
short lists do not need. This one reads queries, keys and values where the projection left them, keeps nothing
else for the backward pass, and writes their gradients back into the same layout.

Imported only where Triton and a CUDA build of torch are at hand.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_TOKENS = 64
# On an H200, at 45 tokens and width 32, 1, 2, 4 and 8 warps take 3.8, 2.8, 2.1 and 3.9 ms both ways together.
_WARPS = {"forward": 4, "backward": 4}


def fits(x: Tensor, heads: int) -> bool:
    """Whether the kernel is made for tokens like these (batch, tokens, d)."""
    return (
        x.is_cuda
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.shape[1] <= MOST_TOKENS
        and x.shape[2] // heads in (16, 32, 64, 128)
    )


@triton.jit
def _tile(pointer, rows, present, stride, WIDTH: tl.constexpr):
    """Rows (BLOCK, WIDTH) of one head; 0 where there is no token."""
    columns = tl.arange(0, WIDTH)
    return tl.load(pointer + rows[:, None] * stride + columns[None, :], mask=present[:, None], other=0.0)


@triton.jit
def _probabilities(q, k, seen, scale):
    """How much each token listens to each other one (BLOCK, BLOCK), float32."""
    scores = tl.where(seen[None, :], tl.dot(q, tl.trans(k)) * scale, -1.0e30)
    powers = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return powers / tl.sum(powers, axis=1)[:, None]


@triton.jit
def _forward_kernel(
    qkv, mask, out, tokens, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    node, head = (program // HEADS).to(tl.int64), program % HEADS
    dim = HEADS * WIDTH
    rows = tl.arange(0, BLOCK)
    present = rows < tokens
    seen = present
    if MASKED:
        seen = tl.load(mask + node * tokens + rows, mask=present, other=0) != 0
    start = qkv + node * tokens * 3 * dim + head * WIDTH
    q = _tile(start, rows, present, 3 * dim, WIDTH)
    k = _tile(start + dim, rows, present, 3 * dim, WIDTH)
    v = _tile(start + 2 * dim, rows, present, 3 * dim, WIDTH)
    heard = tl.dot(_probabilities(q, k, seen, scale).to(v.dtype), v)
    place = out + node * tokens * dim + head * WIDTH + rows[:, None] * dim + tl.arange(0, WIDTH)[None, :]
    tl.store(place, heard.to(v.dtype), mask=present[:, None])


@triton.jit
def _backward_kernel(
    qkv, mask, gradient, out, tokens, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    node, head = (program // HEADS).to(tl.int64), program % HEADS
    dim = HEADS * WIDTH
    rows = tl.arange(0, BLOCK)
    present = rows < tokens
    seen = present
    if MASKED:
        seen = tl.load(mask + node * tokens + rows, mask=present, other=0) != 0
    offset = node * tokens * 3 * dim + head * WIDTH
    q = _tile(qkv + offset, rows, present, 3 * dim, WIDTH)
    k = _tile(qkv + offset + dim, rows, present, 3 * dim, WIDTH)
    v = _tile(qkv + offset + 2 * dim, rows, present, 3 * dim, WIDTH)
    g = _tile(gradient + node * tokens * dim + head * WIDTH, rows, present, dim, WIDTH)

    p = _probabilities(q, k, seen, scale)
    dp = tl.dot(g, tl.trans(v))
    ds = (p * (dp - tl.sum(p * dp, axis=1)[:, None]) * scale).to(q.dtype)
    dv = tl.dot(tl.trans(p.to(q.dtype)), g)
    dq = tl.dot(ds, k)
    dk = tl.dot(tl.trans(ds), q)

    place = out + offset + rows[:, None] * (3 * dim) + tl.arange(0, WIDTH)[None, :]
    tl.store(place, dq.to(q.dtype), mask=present[:, None])
    tl.store(place + dim, dk.to(q.dtype), mask=present[:, None])
    tl.store(place + 2 * dim, dv.to(q.dtype), mask=present[:, None])


def _shape(qkv: Tensor) -> dict[str, int]:
    _, tokens, _, heads, width = qkv.shape
    return {"HEADS": heads, "WIDTH": width, "BLOCK": max(16, triton.next_power_of_2(tokens))}


def forward(qkv: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of qkv (batch, tokens, 3, heads, width) without gradient: (batch, tokens, heads x width)."""
    batch, tokens, _, heads, width = qkv.shape
    out = torch.empty(batch, tokens, heads * width, dtype=qkv.dtype, device=qkv.device)
    if batch:
        _forward_kernel[(batch * heads,)](
            qkv, qkv if mask is None else mask, out, tokens, width**-0.5,
            MASKED=mask is not None, num_warps=_WARPS["forward"], **_shape(qkv),
        )  # fmt: skip
    return out


def backward(qkv: Tensor, mask: Tensor | None, gradient: Tensor) -> Tensor:
    """Gradient like qkv, given that of the output (batch, tokens, heads x width)."""
    batch, tokens, _, heads, width = qkv.shape
    out = torch.empty_like(qkv)
    if batch:
        _backward_kernel[(batch * heads,)](
            qkv, qkv if mask is None else mask, gradient, out, tokens, width**-0.5,
            MASKED=mask is not None, num_warps=_WARPS["backward"], **_shape(qkv),
        )  # fmt: skip
    return out


@torch.library.custom_op("gqe::short_attention", mutates_args=(), device_types="cuda")
def short_attention(qkv: Tensor, mask: Tensor | None) -> Tensor:
    """Self-attention over short lists.

    Args:
        qkv: (batch, tokens, 3, heads, width) 16-bit queries, keys and values.
        mask: (batch, tokens) uint8, 0 for tokens nobody may look at; None if all are there.

    Returns:
        (batch, tokens, heads x width).
    """
    return forward(qkv.contiguous(), None if mask is None else mask.contiguous())


@torch.library.custom_op("gqe::short_attention_backward", mutates_args=(), device_types="cuda")
def _short_attention_backward(qkv: Tensor, mask: Tensor | None, gradient: Tensor) -> Tensor:
    return backward(qkv.contiguous(), None if mask is None else mask.contiguous(), gradient.contiguous())


@short_attention.register_fake
def _(qkv, mask):
    return qkv.new_empty(qkv.shape[0], qkv.shape[1], qkv.shape[3] * qkv.shape[4])


@_short_attention_backward.register_fake
def _(qkv, mask, gradient):
    return qkv.new_empty(qkv.shape)


def _keep_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, gradient):
    qkv, mask = ctx.saved_tensors
    return _short_attention_backward(qkv, mask, gradient), None


short_attention.register_autograd(_differentiate, setup_context=_keep_inputs)
