"""How fast a training step is, and how much memory it takes, at the paper's size.

    python benchmarks/train.py                 # one CUDA GPU, about two minutes
    python benchmarks/train.py --tiny          # a small size on any machine, to try the script

Useful work is counted on the distinct nodes of a step: per token and encoder layer the projections, the
attention and the feed-forward network, and twice that for the backward pass. What is computed a second time
to save memory counts for nothing. Beside it stands the rate of a large bf16 matrix product in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gqe.aggregators.attention import Attention, EncoderLayer
from gqe.training.contrastive import contrastive_loss
from gqe.training.forward import expand

MARGIN = 0.71


@dataclass(frozen=True)
class Size:
    """A model, a batch and a database; the defaults are the paper's."""

    dim: int = 2048
    k: int = 44
    layers: int = 3
    heads: int = 64
    feedforward: int = 2048
    batch: int = 64
    items: int = 100_000
    matrix: int = 8192


TINY = Size(dim=64, k=6, layers=2, heads=4, feedforward=64, batch=4, items=400, matrix=256)


class TorchLayer(nn.Module):
    """torch's own encoder layer in the place of ours, run the usual way: autocast around everything."""

    def __init__(self, ours: EncoderLayer) -> None:
        super().__init__()
        dim, feedforward = ours.up.in_features, ours.up.out_features
        self.layer = nn.TransformerEncoderLayer(dim, ours.heads, feedforward, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Encode x (batch, tokens, d)."""
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.layer(x)  # all lists are complete here


def database(size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
    """Items in small groups within large ones, so that lists of K leave the group; and their neighbours."""
    generator = torch.Generator(device).manual_seed(0)

    def random(n: int) -> Tensor:
        return F.normalize(torch.randn(n, size.dim, device=device, generator=generator), dim=1)

    def parents(n: int, among: int) -> Tensor:
        return torch.randint(among, (n,), device=device, generator=generator)

    small, large = size.items // 20, max(1, size.items // 1000)
    centres = F.normalize(random(large)[parents(small, large)] + random(small), dim=1)
    items = F.normalize(centres[parents(size.items, small)] + random(size.items), dim=1)
    compact = items.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    graph = torch.empty(size.items, size.k, dtype=torch.int64, device=device)
    for start in range(0, size.items, 4096):
        similarities = compact[start : start + 4096] @ compact.T
        own = torch.arange(len(similarities), device=device)
        similarities[own, own + start] = -2
        graph[start : start + 4096] = similarities.topk(size.k, dim=1).indices
    return items, graph


def useful_flops(nodes: int, size: Size) -> int:
    """Forward and backward of one aggregator over that many nodes."""
    tokens, d = size.k + 1, size.dim
    per_token = 8 * d * d + 4 * d * size.feedforward + 4 * tokens * d
    return 3 * nodes * tokens * size.layers * per_token


class Clock:
    """Seconds by device events on a GPU, by the wall clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def laps(self, calls: list[Callable[[], Any]]) -> list[float]:
        """Seconds of each of several calls made one after the other, as a training loop makes them."""
        marks = [self._mark()]
        for call in calls:
            call()
            marks.append(self._mark())
        if not self.cuda:
            return [after - before for before, after in pairwise(marks)]
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]

    def median(self, call: Callable[[], Any], times: int, warmup: int) -> float:
        """Median seconds of a call."""
        return statistics.median(self.laps([call] * (warmup + times))[warmup:])

    def _mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def ceiling(size: Size, device: torch.device, clock: Clock) -> float:
    """FLOP/s of a large matrix product of random numbers in the type a step computes in."""
    n = size.matrix
    a, b = (torch.randn(n, n, device=device).to(torch.bfloat16) for _ in range(2))
    return 2 * n**3 / clock.median(lambda: a @ b, times=20, warmup=5)


def make_stack(size: Size, levels: int, device: torch.device, kind: str) -> list[Attention]:
    torch.manual_seed(0)
    stack = [
        Attention(size.dim, size.k, layers=size.layers, heads=size.heads, feedforward=size.feedforward)
        for _ in range(levels)
    ]
    for aggregator in stack:
        aggregator.to(device).train()
        if kind == "torch layers":
            for i, layer in enumerate(aggregator.encoder):
                aggregator.encoder[i] = TorchLayer(layer).to(device)
        if kind == "compiled":
            aggregator.compile_layers()
    return stack


def measure(
    kind: str,
    levels: int,
    size: Size,
    data: tuple[Tensor, Tensor],
    clock: Clock,
    *,
    steps: int,
    warmup: int,
    memory: int | None = None,
) -> dict[str, Any]:
    """Steps of forward, backward and Adam on changing batches."""
    table, graph = data
    device = table.device
    stack = make_stack(size, levels, device, kind)
    parameters = [parameter for aggregator in stack for parameter in aggregator.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=5e-5, weight_decay=1.5e-6, fused=device.type == "cuda")
    generator = torch.Generator(device).manual_seed(1)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def step(ids: Tensor, positives: Tensor, negatives: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            expanded = expand(stack, table[ids], graph[ids], table, graph, memory=memory).embeddings
        contrastive_loss(expanded, table[positives], table[negatives], MARGIN).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def draw() -> tuple[Tensor, Tensor, Tensor]:
        ids = torch.randint(size.items, (size.batch * 7,), device=device, generator=generator)
        return ids[: size.batch], ids[size.batch : 2 * size.batch], ids[2 * size.batch :].view(size.batch, 5)

    def nodes_of(ids: Tensor) -> int:
        with torch.no_grad():
            expanded = expand(stack, table[ids], graph[ids], table, graph, memory=memory)
        return sum(len(level.nodes) for level in expanded.levels)

    for _ in range(warmup):
        step(*draw())
    batches = [draw() for _ in range(steps)]
    nodes = [nodes_of(batch[0]) for batch in batches]
    seconds = clock.laps([lambda batch=batch: step(*batch) for batch in batches])
    rate = useful_flops(sum(nodes), size) / sum(seconds)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return {
        "kind": kind,
        "levels": levels,
        "nodes": int(statistics.median(nodes)),
        "seconds": statistics.median(seconds),
        "spread": (max(seconds) - min(seconds)) / statistics.median(seconds),
        "flops": rate,
        "peak_bytes": peak,
        "kept_limit_bytes": memory,
    }


def attention_kernels(size: Size, nodes: int, clock: Clock) -> dict[str, float]:
    """Milliseconds of forward and backward of one layer's attention, by kernel."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from gqe.aggregators import short_attention

    shape = (nodes, size.k + 1, 3, size.heads, size.dim // size.heads)
    qkv = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(nodes, size.k + 1, size.dim, device="cuda", dtype=torch.bfloat16)

    def general(backend: SDPBackend) -> None:
        with sdpa_kernel(backend):
            q, k, v = (part.transpose(1, 2) for part in qkv.unbind(dim=2))
            heard = F.scaled_dot_product_attention(q, k, v)
        heard.transpose(1, 2).reshape(gradient.shape).backward(gradient)
        qkv.grad = None

    def ours(warps: int) -> None:
        short_attention._WARPS.update(forward=warps, backward=warps)
        short_attention.short_attention(qkv, None).backward(gradient)
        qkv.grad = None

    found = {}
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
        call = partial(general, SDPBackend.__members__[name])
        found[name.lower()] = 1e3 * clock.median(call, times=5, warmup=3)
    chosen = dict(short_attention._WARPS)
    for warps in (1, 2, 4, 8):
        found[f"ours, {warps} warps"] = 1e3 * clock.median(partial(ours, warps), times=5, warmup=3)
    short_attention._WARPS.update(chosen)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a small size, on a CPU if need be")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--shallow", action="store_true", help="leave out L = 3")
    parser.add_argument("--kernels", action="store_true", help="compare attention kernels")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not arguments.tiny:
        parser.error("no CUDA GPU here; use --tiny to try the script")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, clock = TINY if arguments.tiny else Size(), Clock(device)

    top = ceiling(size, device, clock)
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "size": vars(size),
        "ceiling_flops": top,
        "steps": [],
    }
    if arguments.kernels and device.type == "cuda":
        report["attention_ms"] = attention_kernels(size, 2880, clock)
        print("attention, ms a layer:", report["attention_ms"], flush=True)
    data = database(size, device)
    print(f"{report['device']}, bf16 matrix product {top / 1e12:.3g} TFLOP/s")
    print(f"{'L':>2} {'layers':14} {'nodes':>7} {'ms':>8} {'TFLOP/s':>8} {'of ceiling':>10} {'peak GB':>8}")
    kinds = ["torch layers", "eager"] + (["compiled"] if device.type == "cuda" else [])
    runs: list[dict[str, Any]] = [{"kind": kind, "levels": 2} for kind in kinds]
    if not arguments.shallow:
        runs += [{"kind": kinds[-1], "levels": 3}, {"kind": kinds[-1], "levels": 3, "memory": 0}]
    for run in runs:
        deep = run["levels"] == 3
        row = measure(
            size=size,
            data=data,
            clock=clock,
            steps=2 if deep else arguments.steps,
            warmup=1 if deep else 3,
            **run,
        )
        row["share"] = row["flops"] / top
        report["steps"].append(row)
        note = "  (keeps no activations)" if run.get("memory") == 0 else ""
        print(
            f"{row['levels']:>2} {row['kind']:14} {row['nodes']:>7} {1e3 * row['seconds']:>8.1f}"
            f" {row['flops'] / 1e12:>8.3g} {row['share']:>10.1%} {row['peak_bytes'] / 1e9:>8.1f}{note}",
            flush=True,
        )
    text = json.dumps(report, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
