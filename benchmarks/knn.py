"""Speed and memory of the neighbour search and of expansion, beside faiss in the same run.

    python benchmarks/knn.py              # full size: about ten minutes on two cores
    python benchmarks/knn.py --scale 0.1  # a tenth of the items

What is measured, and why it is measured so, stands in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from common import clustered, timed

import gqe
from gqe.expansion import expand

K, DIM = 50, 512
RECALL = 0.95


class Row(dict[str, Any]):
    """One line of the table: what, the measured value, the most it should be at full size."""

    def __init__(self, what: str, value: float, unit: str, goal: float | None = None, note: str = "") -> None:
        super().__init__(what=what, value=value, unit=unit, goal=goal, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the items and queries")
    parser.add_argument("--only", choices=list(PARTS), nargs="+", default=list(PARTS), help="parts to run")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--memory-child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_child:
        print(json.dumps(memory_of_a_search(Path(options.memory_child[0]), int(options.memory_child[1]))))
        return
    rows = []
    for name in options.only:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += PARTS[name](options.scale)
    about = {
        "scale": options.scale,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gqe": gqe.__version__,
        "torch": torch.__version__,
        "faiss": faiss.__version__,
    }
    print_table(rows, about)
    if options.json:
        options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")


def exact_graph(scale: float) -> list[Row]:
    """The exact graph of 100,000 x 512, K = 50, beside faiss's flat index."""
    database = clustered(int(100_000 * scale), DIM)
    index = faiss.IndexFlatIP(DIM)
    index.add(database)
    gqe.knn(database[:2000], K)  # both libraries have started their threads
    index.search(database[:2000], K)
    theirs, (_, ids) = timed(lambda: index.search(database, K + 1))
    ours, graph = timed(lambda: gqe.knn(database, K))
    # faiss's list holds the item itself, and may swap items that round to one similarity.
    same = np.mean([len(set(a) & set(b)) / K for a, b in zip(graph.ids[:2000], ids[:2000], strict=True)])
    size = f"{len(database):,} x {DIM}, K = {K}"
    return [
        Row("exact graph: gqe.knn", ours, "s", note=size),
        Row("exact graph: faiss IndexFlatIP", theirs, "s", note=f"{same:.2%} of the neighbours are the same"),
        Row("exact graph: ratio", ours / theirs, "x", goal=1.1),
    ]


def expansion(scale: float) -> list[Row]:
    """αQE of 50,000 queries, K = 50, database 100,000 x 512, beside the search for their neighbours."""
    database = clustered(int(100_000 * scale), DIM)
    queries = clustered(int(50_000 * scale), DIM, seed=1)
    searching, neighbors = timed(lambda: gqe.knn(database, K, queries=queries))
    source = gqe.expander("alpha", k=K).fit(database).target.source
    table = torch.from_numpy(queries)
    expand(source, table[:100], neighbors.truncate(K))
    expanding, _ = timed(lambda: expand(source, table, neighbors))
    return [
        Row("αQE: search for the neighbours", searching, "s", note=f"{len(queries):,} queries"),
        Row("αQE: expansion", expanding, "s"),
        Row("αQE: expansion over search", expanding / searching, "x", goal=0.2),
    ]


def memory(scale: float) -> list[Row]:
    """Resident memory beyond the data of an exact search of 2,000 queries in 1,000,000 x 128 mapped items."""
    rows = []
    n, dim, queries = int(1_000_000 * scale), 128, 2000
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (np.float32, np.float16):
            path = Path(folder) / "vectors.npy"
            mapped = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(n, dim))
            for start in range(0, n, 100_000):
                part = mapped[start : start + 100_000]
                part[:] = clustered(len(part), dim, seed=start)
            mapped.flush()
            del mapped, part
            command = [sys.executable, __file__, "--memory-child", str(path), str(queries)]
            child = subprocess.run(command, check=True, capture_output=True, text=True)
            result = json.loads(child.stdout)
            note = f"{n:,} x {dim}, {result['data'] / 2**20:.0f} MiB of data, {result['seconds']:.1f} s"
            rows.append(Row(f"memory: {np.dtype(dtype)} on disk", result["beyond"] / 1e9, "GB", 1.0, note))
    return rows


def memory_of_a_search(path: Path, queries: int) -> dict[str, float]:
    """In a process of its own: the peak of resident memory during one search, without the mapped data."""
    database = np.load(path, mmap_mode="r")
    asked = np.array(database[:queries])
    gqe.knn(asked, K)  # libraries and threads are loaded
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = resident()
    seconds, _ = timed(lambda: gqe.knn(database, K, queries=asked))
    after = resident()
    beyond = after["VmHWM"] - before["VmRSS"] - (after["RssFile"] - before["RssFile"])
    return {"beyond": beyond, "data": database.nbytes, "seconds": seconds}


def resident() -> dict[str, int]:
    """Bytes: VmRSS now resident, VmHWM its peak, RssFile the part that is pages of files."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if line[-1] == "kB"}


def approximate(scale: float) -> list[Row]:
    """The graph of 100,000 x 512 with a recall of 0.95, beside faiss's HNSW at the same recall."""
    database = clustered(int(100_000 * scale), DIM)
    sample = np.random.default_rng(0).choice(len(database), 1000, replace=False)
    true_ids = gqe.knn(database, K, queries=database[sample], exclude=sample).ids

    def recall(ids: np.ndarray) -> float:
        return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(ids, true_ids, strict=True)]))

    exact, _ = timed(lambda: gqe.knn(database, K))
    ours, graph = timed(lambda: gqe.knn(database, K, recall=RECALL))
    kind = "exact, it is that small" if graph.recall is None else f"it measured {graph.recall:.3f}"

    index = faiss.IndexHNSWFlat(DIM, 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 80
    building, _ = timed(lambda: index.add(database))
    for breadth in (50, 64, 96, 128, 192, 256, 384, 512):
        index.hnsw.efSearch = breadth
        if (reached := recall(without(sample, index.search(database[sample], K + 1)[1]))) >= RECALL:
            break
    searching, _ = timed(lambda: index.search(database, K + 1))
    return [
        Row("approximate graph: the exact one", exact, "s", note=f"{len(database):,} x {DIM}, K = {K}"),
        Row(f"approximate graph: gqe.knn(recall={RECALL})", ours, "s", note=kind),
        Row("approximate graph: share it missed", 1 - recall(graph.ids[sample]), "", 1 - RECALL),
        Row("approximate graph: faiss HNSW", building + searching, "s", note=f"recall {reached:.3f}, M 32"),
    ]


def without(own: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The first K of each list (m, K+1) that are not the item itself."""
    return np.stack([row[row != i][:K] for i, row in zip(own, ids, strict=True)])


def print_table(rows: list[Row], about: dict[str, Any]) -> None:
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(f"{'':48} {'measured':>10} {'':2} {'at full size':>14}")
    for row in rows:
        goal = "" if row["goal"] is None else f"<= {row['goal']:g}"
        if goal and about["scale"] == 1:
            goal += " met" if row["value"] <= row["goal"] else " MISSED"
        print(f"{row['what']:48} {row['value']:>10.3f} {row['unit']:2} {goal:>14}  {row['note']}")


PARTS: dict[str, Callable[[float], list[Row]]] = {
    "exact": exact_graph,
    "expansion": expansion,
    "memory": memory,
    "approximate": approximate,
}

if __name__ == "__main__":
    main()
