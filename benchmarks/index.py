"""The index: searching against not having one, adding, a million items, and how cost grows.

    python benchmarks/index.py                        # all parts for a CPU: about an hour on two cores
    python benchmarks/index.py --part add search      # some of them
    python benchmarks/index.py --scale 0.1            # a tenth of the items, to see that it runs
    python benchmarks/index.py --part gpu             # on one H200

What is measured, and why it is measured so, stands in docs/index-on-disk.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import clustered, timed

import gqe
from gqe.aggregators import Aggregator, Attention
from gqe.embeddings import as_table
from gqe.expansion import gather
from gqe.index import Index
from gqe.models import Expander
from gqe.neighbors import knn
from gqe.source import MemorySource

DIM = 512


class Row(dict[str, Any]):
    """One line of the table: what, the measured value, the goal at full size and whether less is better."""

    def __init__(self, what: str, value: float, unit: str, goal: str = "", note: str = "") -> None:
        super().__init__(what=what, value=round(value, 4), unit=unit, goal=goal, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", choices=[*PARTS, "gpu"], nargs="+", default=list(PARTS))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the items")
    parser.add_argument("--expander", nargs="+", default=["aqe-g:k=32", "universal"], help="of part add")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--figure", type=Path, help="where to draw the growth of cost")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured_build(options.child)))
        return
    if "gpu" in options.part:
        from index_gpu import run_gpu

        print(json.dumps(run_gpu(options.scale), indent=2))
        return
    rows: list[Row] = []
    for name in options.part:
        print(f"{name} ...", file=sys.stderr, flush=True)
        given = (options.scale, options.expander) if name == "add" else (options.scale,)
        for row in PARTS[name](*given):
            line = f"{row['what']:56} {row['value']:>10.3f} {row['unit']:4} {row['goal']:12} {row['note']}"
            print(line, flush=True)
            rows.append(row)
    if options.figure:
        draw(rows, options.figure)
    if options.json:
        about = {"scale": options.scale, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
        options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")


def literal(scale: float) -> list[Row]:
    """(a) An expanded search of an index, beside Algorithm 2 that knows no levels: L = 2, K = 44."""
    k, queries_at_once = 44, 8
    n, dim = max(100, int(1000 * scale)), 2048
    database, queries = clustered(n, dim), clustered(n, dim, seed=1)[:queries_at_once]
    torch.manual_seed(0)
    stack: list[Aggregator] = [Attention(dim, k), Attention(dim, k)]
    with tempfile.TemporaryDirectory() as folder:
        index = Index.build(database, Expander(stack), Path(folder) / "index")
        theirs, expected = timed(lambda: literally(stack, database, queries, k))
        index.search(queries, 10)
        ours = statistics.median(timed(lambda: index.search(queries, 10))[0] for _ in range(5))
        difference = float(np.abs(index.expand(queries) - expected).max())
    note = f"{n:,} x {dim}, {queries_at_once} queries; results differ by {difference:.0e}"
    return [
        Row("(a) Algorithm 2 as written, the paper's encoder", theirs, "s", note=note),
        Row("(a) expanded search of an index", ours, "s"),
        Row("(a) ratio", theirs / ours, "x", ">= 20"),
    ]


def literally(stack: list[Aggregator], database: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """Expanded queries by Algorithm 2: every neighbour's own neighbours are searched for and aggregated."""
    table, cpu = as_table(database), torch.device("cpu")
    source = MemorySource(stack, table, device=cpu)
    expanded = []
    with torch.no_grad():
        for query in as_table(queries).split(1):
            near = knn(table, k, queries=query).ids[0].astype(np.int64)
            own = torch.cat([query, table[near]])
            second = knn(table, k, queries=own[1:], exclude=near).ids.astype(np.int64)
            lists = torch.from_numpy(np.concatenate([near[None], second]))
            level = stack[0].eval()(gather(source, 0, own, lists)).embeddings
            above = MemorySource(stack, level[1:], device=cpu)
            around = gather(above, 0, level[:1], torch.arange(k)[None])
            expanded.append(stack[1].eval()(around).embeddings)
            knn(table, 10, queries=expanded[-1])  # and the second search
    return torch.cat(expanded).numpy()


def search(scale: float) -> list[Row]:
    """(b) One expanded search of 64 queries beside a plain exact search by faiss, 100,000 x 512."""
    import faiss

    n = int(100_000 * scale)
    database, queries = clustered(n, DIM), clustered(n, DIM, seed=1)[:64]
    flat = faiss.IndexFlatIP(DIM)
    flat.add(database)
    with tempfile.TemporaryDirectory() as folder:
        index = Index.build(database, "universal", Path(folder) / "index")
        del database
        works = {
            "faiss": lambda: flat.search(queries, 10),
            "expanded": lambda: index.search(queries, 10),
            "plain": lambda: index.search(queries, 10, expand=False),
        }
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(8):  # turn about, so that other work on the machine disturbs all alike
            for name, work in works.items():
                times[name].append(timed(work)[0])
    middle = {name: statistics.median(found[1:]) for name, found in times.items()}
    return [
        Row("(b) plain exact search by faiss", middle["faiss"], "s", note=f"{n:,} x {DIM}, batch of 64"),
        Row("(b) plain search of the index", middle["plain"], "s"),
        Row("(b) expanded search of the index, universal", middle["expanded"], "s"),
        Row("(b) ratio of expanded to faiss", middle["expanded"] / middle["faiss"], "x", "<= 2.5"),
    ]


def add(scale: float, expanders: list[str]) -> Iterator[Row]:
    """(c) Adding 1% beside building anew, 100,000 x 512."""
    n = int(100_000 * scale)
    database, new = clustered(n, DIM), clustered(n, DIM, seed=2)[: n // 100]
    whole = np.concatenate([database, new])
    for expander in expanders:
        from gqe.methods import parse_method
        from gqe.models import from_method

        with tempfile.TemporaryDirectory() as folder:
            index = Index.build(database, from_method(parse_method(expander)), Path(folder) / "index")
            adding, _ = timed(lambda index=index: index.add(new))
            stale = index.stats()["stale"].get("level-1", 0.0)
            refreshing, _ = timed(index.refresh)
            anew = Path(folder) / "anew"
            rebuild, _ = timed(lambda e=expander, p=anew: Index.build(whole, from_method(parse_method(e)), p))
        note = f"{stale:.0%} of level 1 has to follow"
        yield Row(f"(c) {expander}: building anew", rebuild, "s", note=f"{n:,} + {len(new):,} x {DIM}")
        yield Row(f"(c) {expander}: adding", adding, "s", note=note)
        yield Row(f"(c) {expander}: adding over building", 100 * adding / rebuild, "%", "<= 5")
        yield Row(f"(c) {expander}: refreshing levels afterwards", refreshing, "s")


def changes(scale: float) -> Iterator[Row]:
    """(f) An approximate graph after adding 10% in ten steps and removing 10%, beside a rebuild."""
    n, k, recall = int(100_000 * scale), 32, 0.95
    rng = np.random.default_rng(3)
    # Without clusters, since an inverted file finds those whole.
    whole = rng.standard_normal((n + n // 10, 24), dtype=np.float32) @ rng.standard_normal((24, 128))
    gone = rng.choice(len(whole), n // 10, replace=False)
    with tempfile.TemporaryDirectory() as folder:
        changed, anew = Path(folder) / "changed", Path(folder) / "anew"
        index = Index.build(whole[:n], gqe.expander("aqe-g", k=k), changed, recall=recall)
        first = graph_recall(changed, k)
        adding, _ = timed(lambda: [index.add(part) for part in np.array_split(whole[n:], 10)])
        added = graph_recall(changed, k)
        removing, _ = timed(lambda: index.remove(gone))
        left = np.delete(whole, gone, axis=0)
        rebuild, _ = timed(lambda: Index.build(left, gqe.expander("aqe-g", k=k), anew, recall=recall))
        yield Row("(f) recall of the graph as built", first, "", note=f"{n:,} x 128, {recall} asked for")
        yield Row("(f) after adding 10% in ten steps", added, "", note=f"{adding:.1f} s")
        yield Row("(f) after removing 10%", graph_recall(changed, k), "", note=f"{removing:.1f} s")
        yield Row("(f) of an index built anew", graph_recall(anew, k), "", note=f"{rebuild:.1f} s")


def growth(scale: float) -> Iterator[Row]:
    """(d) Time and memory at 10k, 100k and 1M x 128, graph of recall 0.95, K = 32; faiss HNSW beside them."""
    sizes, found = [10_000, 100_000, 1_000_000], []
    for size in sizes:
        goals = ("<= 6", ">= 0.95") if size == sizes[-1] else ("", "")
        with tempfile.TemporaryDirectory() as folder:
            path = saved(int(size * scale), 128, Path(folder))
            result = in_a_child("build", path, Path(folder) / "index", "aqe-g:k=32", "0.95")
            recall = graph_recall(Path(folder) / "index", 32)
            found.append(result)
            label = f"(d) {int(size * scale):,} x 128"
            note = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in result["parts"].items())
            yield Row(f"{label}: build", result["seconds"], "s", note=note)
            yield Row(f"{label}: most resident memory", result["resident"] / 1e9, "GB", goals[0])
            yield Row(f"{label}: recall of the graph", recall, "", goals[1], "K = 32, 1,000 items")
            yield Row(f"{label}: on disk", result["disk"] / 1e9, "GB")
            yield Row(f"{label}: exact expanded search, batch of 64", 1000 * result["exact"], "ms")
            yield Row(
                f"{label}: approximate expanded search, batch of 64", 1000 * result["approximate"], "ms"
            )
            yield Row(f"{label}: faiss HNSW alone, M = 32, no graph yet", hnsw_build(path), "s")
    for what in ("seconds", "resident", "exact", "approximate"):
        exponent = np.polyfit(np.log(sizes), np.log([result[what] for result in found]), 1)[0]
        yield Row(f"(d) exponent of {what}", float(exponent), "", note="cost ~ size^exponent")


def hnsw_build(path: Path) -> float:
    """Seconds to put the vectors of a file into faiss' HNSW."""
    import faiss

    vectors = np.load(path, mmap_mode="r")
    hnsw = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    hnsw.hnsw.efConstruction = 80
    return sum(
        timed(lambda s=s: hnsw.add(vectors[s : s + 50_000]))[0] for s in range(0, len(vectors), 50_000)
    )


def measured_build(arguments: list[str]) -> dict[str, Any]:
    """In a process of its own: time and memory of one build, then of searches."""
    from gqe.methods import parse_method
    from gqe.models import from_method

    _, path, folder, expander, recall = arguments
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}

    def progress(done: int, total: int, what: str) -> None:
        begun.setdefault(what, time.perf_counter())
        ended[what] = time.perf_counter()

    vectors = np.load(path, mmap_mode="r")
    chosen = from_method(parse_method(expander))
    seconds, index = timed(
        lambda: Index.build(vectors, chosen, folder, recall=float(recall), progress=progress)
    )
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    resident = int(status["VmHWM"].split()[0]) * 1024
    queries = clustered(len(vectors), vectors.shape[1], seed=1)[:64]
    times = {}
    for name, exact in (("exact", True), ("approximate", None)):
        runs = [timed(lambda e=exact: index.search(queries, 10, exact=e))[0] for _ in range(6)]
        times[name] = statistics.median(runs[1:])
    parts = {what: ended[what] - begun[what] for what in begun}
    return {
        "seconds": seconds,
        "resident": resident,
        "parts": parts,
        "disk": index.stats()["bytes"]["all"],
    } | times


def in_a_child(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def graph_recall(folder: Path, k: int) -> float:
    """The share of true neighbours in the lists of 1,000 items."""
    snapshot = Index.open(folder)._snapshot
    rows = np.flatnonzero(snapshot.alive)
    table = snapshot.vectors[torch.from_numpy(rows)]
    chosen = np.sort(np.random.default_rng(7).choice(len(table), min(1000, len(table)), replace=False))
    truth = rows[knn(table, k, queries=table[chosen], exclude=chosen).ids]
    lists = snapshot.graph.take(rows[chosen]).ids[:, :k]
    return float(np.mean([np.isin(t, f).mean() for t, f in zip(truth, lists, strict=True)]))


def saved(n: int, dim: int, folder: Path) -> Path:
    """Clustered vectors in a file."""
    np.save(folder / "vectors.npy", clustered(n, dim))
    return folder / "vectors.npy"


def draw(rows: list[Row], path: Path) -> None:
    """Build and search time and memory against size."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4))
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        parts = row["what"].split(": ")
        if len(parts) == 2 and parts[0].endswith("x 128") and row["unit"]:
            size = int(parts[0].split(" ")[1].replace(",", ""))
            lines.setdefault(f"{parts[1]} ({row['unit']})", []).append((size, row["value"]))
    for label, points in lines.items():
        axes.loglog(*zip(*points, strict=True), marker="o", label=label)
    axes.set_xlabel("items")
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=150)


PARTS: dict[str, Callable[..., Iterable[Row]]] = {
    "literal": literal,
    "search": search,
    "add": add,
    "growth": growth,
    "changes": changes,
}

if __name__ == "__main__":
    main()
