"""Building an index on a Ray cluster beside building it in one process, and what goes over the network.

    python benchmarks/cluster.py                      # 200,000 x 128: about 12 minutes on two quiet cores
    python benchmarks/cluster.py --scale 0.05         # a twentieth of the items, to see that it runs
    python benchmarks/cluster.py --method universal   # a model that reads similarities

Every build runs in a process of its own, and every worker with one thread: so one worker stands beside a
plain build with one thread, and two workers beside one worker on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import clustered

ITEMS, DIM, K = 200_000, 128, 32
GOAL = 1.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the items")
    parser.add_argument("--method", default="aqe-g", choices=["aqe-g", "universal"])
    parser.add_argument("--dba", action="store_true", help="store the augmented database, too")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(*options.child)))
        return
    results = run(int(ITEMS * options.scale), options.method, options.dba)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def run(items: int, method: str, dba: bool) -> dict[str, Any]:
    """All builds, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "vectors.npy", clustered(items, DIM))
        print(f"{items:,} x {DIM}, {method}, {os.cpu_count()} cores")
        plain = child(folder, method, dba, "plain", 1)
        show("plain build, one thread", plain["build"])
        show("plain build, two threads", child(folder, method, dba, "plain", 2, keep=False)["build"])
        one = child(folder, method, dba, "cluster", 1)
        show("cluster, one worker", one["build"], f"and {one['start']:.1f} s to start Ray")
        show("  over the plain build", one["build"] / plain["build"], f"goal: at most {GOAL}", "x")
        show("  CPU of tasks over plain", one["cpu"] / plain["cpu"], "says something on busy cores, too", "x")
        show("  with the start of Ray", (one["build"] + one["start"]) / plain["build"], "", "x")
        two = child(folder, method, dba, "cluster", 2)
        show("cluster, two workers", two["build"], f"and {two['start']:.1f} s to start Ray")
        show("  efficiency on two cores", one["build"] / (2 * two["build"]), "1 is perfect", " ")
        same = {name: same_index(folder, name) for name in ("cluster-1", "cluster-2")}
        for name, about in same.items():
            print(
                f"{name}: lists identical: {about['lists']}, levels differ by at most {about['levels']:.1e}"
            )
    print("network, bytes an item from other shards (two workers):")
    network = beside_the_plan(two["summary"], method)
    for row in network:
        planned = "no planner" if row["planned"] is None else f"{row['planned']:>10,.0f} planned"
        print(f"  {row['stage']:12} {row['counted']:>10,.0f} counted  {planned}")
    return {"items": items, "method": method, "plain": plain, "one": one, "two": two, "network": network}


def show(what: str, value: float, note: str = "", unit: str = "s") -> None:
    print(f"{what:28} {value:>9.2f} {unit:2} {note}", flush=True)


def child(folder: str, method: str, dba: bool, kind: str, count: int, keep: bool = True) -> dict[str, Any]:
    """One build in a process of its own."""
    threads = count if kind == "plain" else 1
    name = f"{kind}-{count}" if keep else f"{kind}-{count}-other"
    command = [sys.executable, __file__, "--child", folder, method, str(int(dba)), kind, str(count), name]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(ran.stderr[-3000:])
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def measured(folder: str, method: str, dba: str, kind: str, count: str, name: str) -> dict[str, Any]:
    """Seconds of one build, in this process."""
    import torch

    import gqe

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    expander = gqe.expander(method, k=K) if method != "universal" else gqe.expander(method)
    file, target = Path(folder) / "vectors.npy", Path(folder) / name
    if kind == "plain":
        begun, busy = time.perf_counter(), time.process_time()
        gqe.Index.build(np.load(file, mmap_mode="r"), expander, target, dba=dba == "1", device="cpu")
        return {"build": time.perf_counter() - begun, "cpu": time.process_time() - busy}
    from gqe.cluster.building import build_index
    from gqe.cluster.session import connect

    begun = time.perf_counter()
    with connect("local", workers=int(count)):
        started = time.perf_counter()
        summary = build_index(file, expander, target, dba=dba == "1", device="cpu")
        ended = time.perf_counter()
    cpu = sum(stage["cpu_seconds"] for stage in summary["stages"].values())
    return {"start": started - begun, "build": ended - started, "cpu": cpu, "summary": summary}


def same_index(folder: str, name: str) -> dict[str, Any]:
    """How an index of shards differs from the plain one."""
    import gqe

    one, other = (gqe.Index.open(Path(folder) / part, device="cpu")._snapshot for part in ("plain-1", name))
    lists = [snapshot.graph.block(0, snapshot.manifest.rows) for snapshot in (one, other)]
    equal = all(np.array_equal(first, second) for first, second in zip(*lists, strict=True))
    gaps = [float((one.levels[level][:] - other.levels[level][:]).abs().max()) for level in one.levels]
    return {"lists": equal, "levels": max(gaps, default=0.0)}


def beside_the_plan(summary: dict[str, Any], method: str) -> list[dict[str, Any]]:
    """Bytes an item that tasks got from other shards, and what the planner expects."""
    rows = []
    for stage, counts in summary["stages"].items():
        if counts["read"] or counts["sent"]:
            counted = counts["read_per_item"] + counts["sent_per_item"]
            rows.append({"stage": stage, "counted": counted, "planned": planned(stage, summary, method)})
    return rows


def planned(stage: str, summary: dict[str, Any], method: str) -> float | None:
    """What the planner says of a stage; None without one."""
    try:
        from gqe.planning.costs import graph_network, level_network
        from gqe.planning.job import Job
    except ImportError:
        return None
    name = "universal" if method == "universal" else "aqe"
    job = Job(summary["items"], DIM, levels=2, k=K, method=name, dtype="float32")
    if stage == "graph":
        return graph_network(job, summary["shards"])
    return level_network(job, summary["shards"], int(stage.rpartition("-")[2]))


if __name__ == "__main__":
    main()
