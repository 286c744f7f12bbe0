"""Part (e) of index.py: the paper's size on one GPU. Needs torch, NumPy, SciPy and safetensors only.

1,000,000 x 2048 in 16 bits, K = 44, two levels of the paper's encoder: exact graph, level 1 and the augmented
database (level 2) from host memory and back to it, then the latency of one query with two exact searches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gqe.aggregators import Attention
from gqe.aggregators.base import Neighborhood, weighted_sum
from gqe.index.half import half_engine
from gqe.neighbors.candidates import exact_candidates
from gqe.neighbors.rescoring import SPARE, Rescorer

N, DIM, K = 1_000_000, 2048, 44
QUERY_BLOCK, NODE_BLOCK = 4096, 4096


def run_gpu(scale: float) -> dict[str, Any]:
    """All of part (e); on a CPU at a small scale it only shows that everything runs."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    n, dim = (int(N * scale), DIM) if on_gpu else (2000, 64)
    heads, feedforward = (64, 2048) if on_gpu else (4, 128)
    torch.manual_seed(0)
    stack = [
        Attention(dim, K, heads=heads, feedforward=feedforward).to(device, torch.bfloat16).eval()
        for _ in range(2)
    ]
    host = made(n, dim, device).cpu()
    host = host.pin_memory() if on_gpu else host
    ceiling = product_ceiling(device) if on_gpu else float("nan")
    with torch.no_grad():
        warm = host[: 4 * QUERY_BLOCK].to(device)
        ids, _ = graph(warm)
        level(warm, ids, stack[0])

        begun = clock(device)
        table = host.to(device, non_blocking=True)
        loaded = clock(device)
        ids, settled = graph(table)
        graph_done = clock(device)
        first = level(table, ids, stack[0])
        level_done = clock(device)
        augmented = level(first, ids, stack[1])
        augmented_done = clock(device)
        result = [part.cpu() for part in (ids.int(), first, augmented)]
        stored = clock(device)
        del result
        latency = query_latency(table, first, stack, device)
    graph_flop = 2.0 * n * n * dim
    token = 3 * 2 * (4 * dim * dim + 2 * dim * feedforward)
    level_flop = float(n) * (K + 1) * (token + 3 * 4 * (K + 1) * dim)
    seconds = {
        "to the device": loaded - begun,
        "exact graph": graph_done - loaded,
        "level 1": level_done - graph_done,
        "augmented": augmented_done - level_done,
        "back to the host": stored - augmented_done,
        "all": stored - begun,
    }
    shares = {
        "exact graph": graph_flop / seconds["exact graph"] / ceiling,
        "level 1": level_flop / seconds["level 1"] / ceiling,
        "augmented": level_flop / seconds["augmented"] / ceiling,
    }
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu, only to see that it runs",
        "size": [n, dim, K],
        "seconds": {what: round(value, 3) for what, value in seconds.items()},
        "goal": "all <= 60 s, one query <= 4 ms",
        "ceiling_tflops": round(ceiling / 1e12, 1) if on_gpu else None,
        "share_of_ceiling": {what: round(value, 3) for what, value in shares.items()} if on_gpu else None,
        "rows_settled_in_float32": settled,
        "graph_exact_on_sample": exact_on_sample(table, ids),
        "one_query_ms": latency,
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1) if on_gpu else None,
    }


def made(n: int, dim: int, device: torch.device) -> Tensor:
    """(n, dim) float16 unit vectors around n / 50 centres, made in blocks."""
    generator = torch.Generator(device).manual_seed(0)
    centres = torch.randn(max(1, n // 50), dim, generator=generator, device=device)
    parts = []
    for start in range(0, n, 50_000):
        count = min(50_000, n - start)
        of = torch.randint(len(centres), (count,), generator=generator, device=device)
        rows = centres[of] + 0.7 * torch.randn(count, dim, generator=generator, device=device)
        parts.append(torch.nn.functional.normalize(rows, dim=1).half())
    return torch.cat(parts)


def graph(table: Tensor) -> tuple[Tensor, int]:
    """(n, K) exact neighbours of every row, and how many rows had to be compared in float32."""
    engine, rescorer = half_engine(table), CountingRescorer(table, K, exact=True)
    ids = torch.empty((len(table), K), dtype=torch.int64, device=table.device)
    for start in range(0, len(table), QUERY_BLOCK):
        part = slice(start, min(start + QUERY_BLOCK, len(table)))
        queries = table[part].float()
        own = torch.arange(part.start, part.stop, device=table.device)
        ids[part] = rescorer.rank(queries, engine(queries, K + SPARE + 1), own).ids
    return ids, rescorer.settled


class CountingRescorer(Rescorer):
    """Counts the queries whose answer 16 bits could not settle."""

    settled = 0

    def _settled(self, queries: Tensor, *rest: Any) -> Any:
        self.settled += len(queries)
        return super()._settled(queries, *rest)


def level(table: Tensor, ids: Tensor, aggregator: Attention) -> Tensor:
    """(n, d) the next level of all rows, in large blocks with everything on the device."""
    result = torch.empty_like(table)
    for start in range(0, len(table), NODE_BLOCK):
        part = slice(start, min(start + NODE_BLOCK, len(table)))
        own = torch.arange(part.start, part.stop, device=table.device)
        result[part] = aggregate(table, torch.cat([own[:, None], ids[part]], dim=1), aggregator)
    return result


def aggregate(table: Tensor, with_self: Tensor, aggregator: Attention) -> Tensor:
    """(b, d) one aggregator over nodes and their neighbours (b, K+1)."""
    tokens = table.index_select(0, with_self.reshape(-1)).view(*with_self.shape, -1)
    mask = torch.ones(with_self.shape, dtype=torch.bool, device=table.device)
    weights = aggregator.weights(Neighborhood(tokens.to(torch.bfloat16), mask))
    return weighted_sum(tokens, weights.to(tokens.dtype)).embeddings


def query_latency(
    table: Tensor, first: Tensor, stack: list[Attention], device: torch.device
) -> dict[str, float]:
    """Milliseconds of one query: search, two levels, search again; as a CUDA graph where there is one."""
    query = table[:1].clone()
    products: dict[str, Callable[[Tensor], Tensor]] = {
        "mv": lambda q: torch.mv(table, q[0])[None],
        "mm of 8": lambda q: (table @ q.expand(8, -1).T.contiguous())[:, 0][None],
        "mm of 16": lambda q: (table @ q.expand(16, -1).T.contiguous())[:, 0][None],
    }

    def nearest(q: Tensor, product: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        candidates = torch.topk(product(q), min(len(table), K + 84), dim=1, sorted=False).indices
        exact = torch.mv(table.index_select(0, candidates[0]).float(), q[0].float())
        best = torch.topk(exact, K)
        return candidates[:, best.indices], best.values

    def one(q: Tensor, product: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        near, _ = nearest(q, product)
        current = q
        for source, aggregator in zip((table, first), stack, strict=True):
            tokens = torch.cat([current[:, None], source.index_select(0, near[0])[None]], dim=1)
            mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=device)
            weights = aggregator.weights(Neighborhood(tokens.to(torch.bfloat16), mask))
            current = weighted_sum(tokens, weights.to(tokens.dtype)).embeddings
        return nearest(current, product)

    result = {}
    for name, product in products.items():
        result[name] = measured(lambda product=product: one(query, product), device)
        result[f"{name}, one search"] = measured(lambda product=product: nearest(query, product), device)
    return {name: round(1000 * value, 3) for name, value in result.items()}


def measured(work: Callable[[], Any], device: torch.device) -> float:
    """Median seconds of a piece of work, replayed as a CUDA graph on a GPU."""
    for _ in range(3):
        work()
    replay = work
    if device.type == "cuda":
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            kept = work()
        replay = captured.replay
    times = []
    for _ in range(30):
        begun = clock(device)
        replay()
        times.append(clock(device) - begun)
    if device.type == "cuda":
        del kept
    return statistics.median(times)


def exact_on_sample(table: Tensor, ids: Tensor) -> float:
    """The share of neighbours that a search in float32 gives, too, for 512 rows."""
    chosen = torch.linspace(0, len(table) - 1, min(512, len(table)), device=table.device).long()
    truth = exact_candidates(table[chosen].float(), table, K + 1).ids
    own = truth == chosen[:, None]
    same = [
        torch.isin(row[~mine][:K], found).float().mean().item()
        for row, mine, found in zip(truth, own, ids[chosen], strict=True)
    ]
    return round(statistics.mean(same), 6)


def product_ceiling(device: torch.device) -> float:
    """Operations a second of a large bf16 product, the fastest of ten."""
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = min(timed_product(a, b, device) for _ in range(10))
    return float(2.0 * 8192**3 / best)


def timed_product(a: Tensor, b: Tensor, device: torch.device) -> float:
    begun = clock(device)
    for _ in range(5):
        a @ b
    return (clock(device) - begun) / 5


def clock(device: torch.device) -> float:
    """Now, after everything that was started is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
