"""What every re-ranker costs, and how the cost grows with the number of items.

    python benchmarks/rerank.py                            # all sizes
    python benchmarks/rerank.py --sizes 10000 100000       # without the million
    python benchmarks/rerank.py --methods egt reciprocal   # some methods

Each method is measured at each size in a process of its own and written down at once in the scratch folder: a
run that was killed goes on from there, and `--again` measures anew. What is measured, and why it is measured
so, stands in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from common import clustered, timed

import gqe
from gqe.embeddings import as_table
from gqe.neighbors import NeighborGraph, knn
from gqe.rerank import RERANKERS, Reranker
from gqe.rerank.csa import Csa, CsaEncoder

DIM, QUERIES, RESULTS = 128, 64, 1000
SIZES = [10_000, 100_000, 1_000_000]
MILLION = SIZES[-1]
# At a million items a graph is approximate, and wide enough for offline diffusion, which needs it there.
NEIGHBORS, WIDE, RECALL = 50, 199, 0.95
# A table of all pairs in float32 takes 4 n^2 bytes; from here on that is far more than any method may take.
TELLING = 100_000


class Case:
    """A method with some settings, and the largest size at which it is measured."""

    def __init__(self, method: str, largest: int = 100_000, **settings: Any) -> None:
        self.method, self.largest, self.settings = method, largest, settings
        self.name = method + "".join(f":{key}={value}" for key, value in settings.items())

    def make(self) -> Reranker:
        """A new re-ranker, not yet bound to a database."""
        if self.method == "csa":  # the cost does not depend on the weights
            return Csa.of(CsaEncoder().eval())
        return RERANKERS[self.method](**self.settings)


CASES = [
    Case("diffusion"),
    Case("offline-diffusion"),
    Case("offline-diffusion", MILLION, truncation=200),
    Case("spectral"),
    Case("spectral", MILLION, rank=100),
    Case("hybrid-diffusion"),
    Case("egt", MILLION),
    Case("gss"),
    Case("reciprocal", MILLION),
    Case("superglobal"),
    Case("csa"),
]
# What a table shows: key of a measurement, heading, divisor, digits.
COLUMNS = [
    ("fit_s", "fit s", 1, 2),
    ("fit_cpu_s", "CPU s of fit", 1, 2),
    ("batch_ms", "ms a query, 64 at once", 1, 2),
    ("single_ms", "ms a query, alone", 1, 2),
    ("kept", "kept MB", 1e6, 1),
    ("fit_peak", "peak of fit MB", 1e6, 0),
    ("rerank_peak", "peak of 64 queries MB", 1e6, 0),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--methods", nargs="+", choices=sorted(RERANKERS), default=sorted(RERANKERS))
    usual = Path(tempfile.gettempdir()) / "gqe-rerank-benchmark"
    parser.add_argument("--scratch", type=Path, default=usual, help=f"data and measurements ({usual})")
    parser.add_argument("--again", action="store_true", help="measure anew what was measured before")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--device", default="cpu", help="where dense work is done: cpu or cuda")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.child:
        name, size = options.child
        case = next(case for case in CASES if case.name == name)
        print(json.dumps(measured(case, options.scratch / size, device)))
        return
    rows = []
    cases = [case for case in CASES if case.method in options.methods]
    for size in sorted(options.sizes):
        for case in cases:
            if size <= case.largest:
                prepare(size, options.scratch / str(size))
                rows.append(once(case, size, options.scratch, options.again, device))
    growth = exponents(rows)
    print("\n".join(table(rows, growth)))
    if options.json:
        whole = {"about": about(), "rows": rows, "exponents": growth}
        options.json.write_text(json.dumps(whole, indent=2) + "\n")
    if too_large := [row for row in rows if row["items"] >= TELLING and row["share_of_all_pairs"] > 0.1]:
        raise SystemExit(f"too much memory: {', '.join(row['method'] for row in too_large)}")


def about() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "gqe": gqe.__version__,
        "torch": torch.__version__,
        "scipy": scipy.__version__,
    }


def prepare(size: int, folder: Path) -> None:
    """Vectors, queries, their first results and the neighbour graph of one size, worked out once."""
    folder.mkdir(parents=True, exist_ok=True)

    def stored(name: str, make: Callable[[], dict[str, np.ndarray]]) -> None:
        if (folder / f"{name}.json").exists():
            return
        print(f"{size:,} items: {name} ...", file=sys.stderr, flush=True)
        seconds, arrays = timed(make)
        for key, array in arrays.items():
            np.save(folder / f"{key}.npy", array)
        write(folder / f"{name}.json", {"seconds": seconds})  # the last, so it says that all are complete

    def vectors() -> dict[str, np.ndarray]:
        return {"database": clustered(size, DIM), "queries": clustered(size, DIM, seed=1)[:QUERIES]}

    def neighbors(graph: NeighborGraph, name: str) -> dict[str, np.ndarray]:
        return {f"{name}-ids": graph.ids, f"{name}-similarities": graph.similarities}

    def search() -> dict[str, np.ndarray]:
        return neighbors(knn(load(folder, "database"), RESULTS, queries=load(folder, "queries")), "first")

    def graph() -> dict[str, np.ndarray]:
        large = size >= MILLION
        found = knn(load(folder, "database"), WIDE if large else NEIGHBORS, recall=RECALL if large else None)
        return neighbors(found, "graph")

    stored("vectors", vectors)
    stored("search", search)
    stored("neighbors", graph)


def once(case: Case, size: int, scratch: Path, again: bool, device: torch.device) -> dict[str, Any]:
    """The measurement of one method at one size: an earlier one, or one by a new process."""
    path = scratch / f"measured-{device}" / f"{case.name.replace(':', '-')}-{size}.json"
    if again or not path.exists():
        print(f"{size:,} items: {case.name} ...", file=sys.stderr, flush=True)
        command = [sys.executable, __file__, "--scratch", str(scratch), "--device", str(device)]
        command += ["--child", case.name, str(size)]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        path.parent.mkdir(exist_ok=True)
        write(path, json.loads(result) | {"threads": torch.get_num_threads()})
    return dict(json.loads(path.read_text()))


def measured(case: Case, folder: Path, device: torch.device) -> dict[str, Any]:
    """In a process of its own: time and memory of `fit`, then of queries."""
    logging.getLogger("gqe").setLevel(
        logging.ERROR
    )  # that the paper's 20 iterations do not converge is known
    database, queries = as_table(load(folder, "database")), as_table(load(folder, "queries"))
    method = case.make()
    graph, first = stored_graph(folder, "graph"), stored_graph(folder, "first")
    if "truncation" not in case.settings:
        graph = NeighborGraph(
            *(np.ascontiguousarray(a[:, :NEIGHBORS]) for a in (graph.ids, graph.similarities))
        )
    warm_up(case, device)
    before = from_here()
    begun = time.process_time()
    fit_s, _ = timed(lambda: method.fit(database, graph, device=device))
    fit_cpu_s = time.process_time() - begun
    fit_peak = max(0, resident()["VmHWM"] - before)
    one = NeighborGraph(first.ids[:1], first.similarities[:1])
    before = from_here()
    method.rerank(queries, first)
    rerank_peak = max(0, resident()["VmHWM"] - before)
    return {
        "method": case.name,
        "settings": {key: value for key, value in method.settings().items() if key != "model"},
        "items": len(database),
        "fit_s": fit_s,
        "fit_cpu_s": fit_cpu_s,
        "batch_ms": 1000 * usual_time(lambda: method.rerank(queries, first)) / len(queries),
        "single_ms": 1000 * usual_time(lambda: method.rerank(queries[:1], one)),
        "kept": method.size(),
        "fit_peak": fit_peak,
        "rerank_peak": rerank_peak,
        "share_of_all_pairs": max(fit_peak, rerank_peak) / (4 * len(database) ** 2),
    }


def warm_up(case: Case, device: torch.device) -> None:
    """A tiny database, so that libraries and threads are loaded before anything is measured."""
    tiny = as_table(clustered(600, DIM))
    method = case.make().fit(tiny, knn(tiny, NEIGHBORS), device=device)
    method.rerank(tiny[:2], knn(tiny, 100, queries=tiny[:2]))


def usual_time(work: Callable[[], Any]) -> float:
    """The median seconds of some runs: 7, or as many as there is patience for."""
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < 7 and (not times or time.perf_counter() - begun < 20):
        times.append(timed(work)[0])
    return statistics.median(times)


def from_here() -> int:
    """Let the peak of resident memory count from now on, and say how much is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident()["VmRSS"]


def resident() -> dict[str, int]:
    """Bytes: VmRSS now resident, VmHWM its peak."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if line[-1] == "kB"}


def exponents(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The e of cost ~ items^e, by method and column, where every size has a cost worth the name."""
    least = {"fit_s": 0.01, "fit_cpu_s": 0.01, "fit_peak": 1e6, "rerank_peak": 1e6}
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        for key, *_ in COLUMNS:
            costs = [row[key] for row in own]
            if len(own) > 1 and min(costs) > least.get(key, 0):
                slope = np.polyfit(np.log([row["items"] for row in own]), np.log(costs), 1)[0]
                found.setdefault(name, {})[key] = float(slope)
    return found


def table(rows: list[dict[str, Any]], growth: dict[str, dict[str, float]]) -> Iterable[str]:
    """All measurements in Markdown, and what they say about memory."""
    yield "| method | items | " + " | ".join(heading for _, heading, *_ in COLUMNS) + " |"
    yield "| --- | --- |" + " --- |" * len(COLUMNS)
    for name in dict.fromkeys(row["method"] for row in rows):
        for row in (row for row in rows if row["method"] == name):
            cells = [f"{row[key] / unit:,.{digits}f}" for key, _, unit, digits in COLUMNS]
            yield f"| `{name}` | {row['items']:,} | {' | '.join(cells)} |"
        if name in growth:
            cells = [f"{growth[name][key]:.2f}" if key in growth[name] else "" for key, *_ in COLUMNS]
            yield f"| | exponent | {' | '.join(cells)} |"
    yield ""
    for size in sorted({row["items"] for row in rows if row["items"] >= TELLING}):
        worst = max((row for row in rows if row["items"] == size), key=lambda row: row["share_of_all_pairs"])
        most, pairs = max(worst["fit_peak"], worst["rerank_peak"]), 4 * size**2
        yield (
            f"At {size:,} items the most memory was taken by `{worst['method']}`: {most / 1e9:.2f} GB,"
            f" {most / pairs:.1%} of the {pairs / 1e9:,.0f} GB of a table of all pairs."
        )


def load(folder: Path, name: str) -> np.ndarray:
    return np.load(folder / f"{name}.npy")


def stored_graph(folder: Path, name: str) -> NeighborGraph:
    return NeighborGraph(load(folder, f"{name}-ids"), load(folder, f"{name}-similarities"))


def write(path: Path, value: dict[str, Any]) -> None:
    """Write beside and rename, so that a file is complete or not there."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(value) + "\n")
    beside.replace(path)


if __name__ == "__main__":
    main()
