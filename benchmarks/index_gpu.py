"""Part (e) of index.py: the paper's size on one GPU. Needs torch, NumPy, SciPy and safetensors only.

1,000,000 x 2048 in 16 bits, K = 44, two levels of the paper's encoder: `Index.build` with the augmented
database (level 2), from host memory to files in memory (if there is room, see "files"), then `Index.search`
of one query: two exact searches and two levels. Beside it stands the same query as one CUDA graph of nothing
but the operations it needs.

The times of the parts of a build end when their last block is computed, while a few blocks are still being
written; "writing" is how long the thread that computes checksums and writes files was at it. As long as that
is clearly less than the part took, files cost nothing but what is left over at the end ("rest"). "one block"
takes a block of level 1 apart, each step alone and waited for.
"""

from __future__ import annotations

import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators import Attention
from gqe.aggregators.base import Neighborhood, weighted_sum
from gqe.expansion import compute_level, expand, gather
from gqe.index import Index
from gqe.index.files import Checksum
from gqe.index.plan import fingerprint, make_plan
from gqe.index.tables import copy_to_host
from gqe.models import Expander
from gqe.neighbors.candidates import exact_candidates

N, DIM, K = 1_000_000, 2048, 44
FOUND = 10


def run_gpu(scale: float) -> dict[str, Any]:
    """All of part (e); on a CPU at a small scale it only shows that everything runs."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    n, dim = (int(N * scale), DIM) if on_gpu else (2000, 64)
    heads, feedforward = (64, 2048) if on_gpu else (4, 128)
    torch.manual_seed(0)
    expander = Expander([Attention(dim, K, heads=heads, feedforward=feedforward) for _ in range(2)])
    vectors, queries = made(n, dim, device, 0).cpu(), made(n, dim, device, 1)[:64].cpu().float().numpy()
    ceiling = product_ceiling(device) if on_gpu else float("nan")
    room = in_memory(7 * n * dim + (2 << 30))  # three tables, the lists, the model twice
    with tempfile.TemporaryDirectory(dir=room) as folder:
        built(vectors[:20_000], expander, Path(folder) / "warm", device)
        shutil.rmtree(Path(folder) / "warm")
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        with writing_seconds() as writing:
            index, seconds = built(vectors, expander, Path(folder) / "index", device)
        peak = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else float("nan")
        latency = latencies(index, queries, device)
        with torch.no_grad():
            latency |= floor(index, queries, device)
            block = one_block(index, Path(folder) / "block", device)
        plan = make_plan(vectors, expander, None, None, "float16", True, None, "auto", device, 0)
        block["checksum of the whole input and the model"] = measured(lambda: fingerprint(plan), device, 1)
        exact = exact_on_sample(index)
        size = index.stats()["bytes"]["all"]
        recorded = [r is not None for r in index._target._runners[0.0]._recordings.values()]
    token = 3 * 2 * (4 * dim * dim + 2 * dim * feedforward)
    level_flop = float(n) * (K + 1) * (token + 3 * 4 * (K + 1) * dim)
    flop = {"neighbours": 2.0 * n * n * dim, "level-1": level_flop, "level-2": level_flop}
    shares = {what: round(flop[what] / seconds[what] / ceiling, 3) for what in flop}
    seconds["graph, level 1 and augmentation"] = sum(seconds[what] for what in flop)
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu, only to see that it runs",
        "files": f"in memory, {room}" if room else f"on disk, {tempfile.gettempdir()}",
        "cores": [os.cpu_count(), torch.get_num_threads()],
        "size": [n, dim, K],
        "goal": "graph, level 1 and augmentation <= 60 s, one expanded search <= 4 ms",
        "seconds": {what: round(value, 3) for what, value in seconds.items()},
        "writing": {what: round(value, 3) for what, value in writing.items()},
        "ceiling_tflops": round(ceiling / 1e12, 1) if on_gpu else None,
        "share_of_ceiling": shares if on_gpu else None,
        "graph_exact_on_sample": exact,
        "milliseconds": {what: round(1000 * value, 3) for what, value in latency.items()},
        "single queries recorded": all(recorded) and bool(recorded),
        "one block, milliseconds": {what: round(1000 * value, 3) for what, value in block.items()},
        "peak_gb": round(peak, 1) if on_gpu else None,
        "on_disk_gb": round(size / 1e9, 2),
    }


def made(n: int, dim: int, device: torch.device, seed: int) -> Tensor:
    """(n, dim) float16 unit vectors around n / 50 centres that are the same for every seed, in blocks."""
    centres = torch.randn(
        max(1, n // 50), dim, generator=torch.Generator(device).manual_seed(99), device=device
    )
    generator = torch.Generator(device).manual_seed(seed)
    result = torch.empty((n, dim), dtype=torch.float16, device=device)
    for start in range(0, n, 50_000):
        part = result[start : start + 50_000]
        of = torch.randint(len(centres), (len(part),), generator=generator, device=device)
        rows = centres[of] + 0.7 * torch.randn(part.shape, generator=generator, device=device)
        part[:] = torch.nn.functional.normalize(rows, dim=1)
    return result


def in_memory(size: int) -> str | None:
    """A folder whose files lie in memory, if it has room: what is measured is not the disk."""
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() and shutil.disk_usage(folder).free > size else None


def built(
    vectors: Tensor, expander: Expander, folder: Path, device: torch.device
) -> tuple[Index, dict[str, float]]:
    """The index, and the seconds of each part of its building."""
    ends: dict[str, float] = {}
    begun = clock(device)

    def progress(_: int, __: int, what: str) -> None:
        ends.setdefault("checksum of the input, model", time.perf_counter())
        ends[what] = time.perf_counter()

    index = Index.build(
        vectors, expander, folder, storage="float16", dba=True, device=device, progress=progress
    )
    ends["rest"] = clock(device)
    starts = [begun, *ends.values()]
    seconds = {what: end - start for start, (what, end) in zip(starts, ends.items(), strict=False)}
    return index, seconds | {"all": ends["rest"] - begun}


@contextmanager
def writing_seconds() -> Iterator[dict[str, float]]:
    """How long each part of a build was writing, as the journal logs it."""
    result: dict[str, float] = {}

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.args, tuple) and len(record.args) == 3:
                what, _, writing = record.args
                result[str(what)] = float(writing)  # type: ignore[arg-type]

    log, listener = logging.getLogger("gqe.index.journal"), Listener()
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(listener)
    try:
        yield result
    finally:
        log.removeHandler(listener)
        log.setLevel(before)


def latencies(index: Index, queries: np.ndarray, device: torch.device) -> dict[str, float]:
    """Median seconds of searches; the first ones move the tables to the GPU and are recorded there."""
    index.search(queries[0], FOUND)
    target = index._target
    asked = torch.from_numpy(queries[:1]).to(device)
    source, near = target.neighbors(asked, target.levels.query.graph_k, None, None)
    recorded = target.cuda_graph(source, 0.0) or (lambda *given: expand(source, asked, near))
    works: dict[str, Callable[[int], Any]] = {
        "one expanded search": lambda i: index.search(queries[i], FOUND),
        "one plain search": lambda i: index.search(queries[i], FOUND, expand=False),
        "one expansion": lambda i: index.expand(queries[i]),
        "expanded search of 64": lambda i: index.search(queries, FOUND),
    }
    result = {}
    for what, work in works.items():
        times = []
        for i in range(len(queries)):
            begun = time.perf_counter()
            work(i)  # answers come back to the host, so there is nothing left to wait for
            times.append(time.perf_counter() - begun)
        result[what] = statistics.median(times[5:])
    result["levels of one query, recorded"] = measured(lambda: recorded(asked, *near), device)
    result["levels of one query, step by step"] = measured(lambda: expand(source, asked, near), device)
    return result


def one_block(index: Index, file: Path, device: torch.device) -> dict[str, float]:
    """Seconds of the steps that a block of level 1 takes, and of writing it."""
    source = index._target.levels.query
    numbers = torch.arange(min(4096, len(index)))
    encoder, nodes = source.aggregator(0), source.table(0)[: len(numbers)].float()
    lists = source.lists(numbers).ids[:, :K]
    around = gather(source, 0, nodes, lists)
    weights = encoder.weights(around)
    content = copy_to_host(nodes, "float16").wait()[0].numpy().tobytes()
    with file.open("wb", buffering=0) as opened:
        works: dict[str, Callable[[], Any]] = {
            "lists from the file": lambda: source.lists(numbers),
            "tokens": lambda: gather(source, 0, nodes, lists),
            "encoder": lambda: encoder.encode(around),
            "encoder and cosines": lambda: encoder.weights(around),
            "sum": lambda: weighted_sum(around.tokens, weights),
            "all of these": lambda: compute_level(source, 1, numbers),
            "to the host": lambda: copy_to_host(nodes, "float16").wait(),
            "checksum": lambda: Checksum().update(content),
            "file": lambda: opened.write(content),
            "file and flush": lambda: (opened.write(content), os.fsync(opened.fileno())),
        }
        return {what: measured(work, device, 5) for what, work in works.items()}


def measured(work: Callable[[], Any], device: torch.device, times: int = 30) -> float:
    """Median seconds of a piece of work, the first run not counted if there are several."""
    seconds = []
    for _ in range(times + (times > 1)):
        begun = clock(device)
        work()
        seconds.append(clock(device) - begun)
    return statistics.median(seconds[(times > 1) :])


def floor(index: Index, queries: np.ndarray, device: torch.device) -> dict[str, float]:
    """Seconds of one expanded search, and of one search, without ties, checks, ids and steps of Python."""
    source = index._target.levels.query
    if device.type == "cuda":
        tables = [source.table(i) for i in range(3)]
    else:
        tables = [source.table(i)[:] for i in range(3)]
    encoders = [source.aggregator(i) for i in range(2)]
    query = torch.from_numpy(queries[:1]).to(device)

    def nearest(table: Tensor, q: Tensor, k: int) -> tuple[Tensor, Tensor]:
        scores = torch.mv(table, q[0].to(table.dtype))
        candidates = torch.topk(scores, min(len(table), k + 80), sorted=False).indices
        exact = torch.mv(table.index_select(0, candidates).float(), q[0])
        best = torch.topk(exact, k)
        return candidates[best.indices], best.values

    def one() -> tuple[Tensor, Tensor]:
        near, _ = nearest(tables[0], query, K)
        current = query
        for table, encoder in zip(tables, encoders, strict=False):
            tokens = torch.cat([current[:, None], table.index_select(0, near)[None].float()], dim=1)
            mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=device)
            current = weighted_sum(tokens, encoder.weights(Neighborhood(tokens, mask))).embeddings
        return nearest(tables[2], current, FOUND)

    return {
        "floor of one expanded search": replayed(one, device),
        "floor of one plain search": replayed(lambda: nearest(tables[2], query, FOUND), device),
    }


def replayed(work: Callable[[], Any], device: torch.device) -> float:
    """Median seconds of a piece of work, replayed as a CUDA graph on a GPU."""
    for _ in range(3):
        work()
    if device.type != "cuda":
        return measured(work, device)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        kept = work()
    result = measured(captured.replay, device)
    del kept
    return result


def exact_on_sample(index: Index) -> float:
    """The share of neighbours that a search in float32 gives, too, for 512 rows."""
    table = index._target.levels.query.table(0)
    chosen = torch.linspace(0, len(table) - 1, min(512, len(table))).long()
    lists = torch.from_numpy(index._snapshot.graph.take(chosen.numpy()).ids[:, :K].astype(np.int64))
    asked = table[chosen.to(table.device)].float()
    truth = exact_candidates(asked, table, K + 1).ids.cpu()
    same = [
        torch.isin(row[row != own][:K], found).float().mean().item()
        for row, own, found in zip(truth, chosen, lists, strict=True)
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
