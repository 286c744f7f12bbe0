"""What a level of expansion costs a query on a CPU: our encoder of similarities beside the paper's.

    python benchmarks/expand.py

Both run as in `Hierarchy.expand`, at the paper's size: 2048 dimensions, K = 44, two levels; neighbours and
the database's levels are known. Weights are untrained: they do not change the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch

from gqe.aggregators import Affinity, Aggregator, Attention
from gqe.embeddings import as_table
from gqe.hierarchy import Hierarchy
from gqe.neighbors import knn

DIM, K, ITEMS = 2048, 44, 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    labels = rng.integers(20, size=ITEMS + options.queries)
    vectors = rng.normal(size=(20, DIM))[labels] + 1.5 * rng.normal(size=(len(labels), DIM))
    table, queries = as_table(vectors[:ITEMS]), as_table(vectors[ITEMS:])
    torch.manual_seed(0)
    stacks: dict[str, list[Aggregator]] = {
        "affinity": [Affinity(K), Affinity(K, base=True)],
        "paper": [Attention(DIM, K), Attention(DIM, K)],
    }
    graph, asked = knn(table, K), knn(table, K, queries=queries)
    times = {
        name: measured(stack, table, graph, queries, asked, options.repeats) for name, stack in stacks.items()
    }
    result = {
        "milliseconds_a_query": {name: round(1000 * t / options.queries, 3) for name, t in times.items()},
        "ratio": round(times["paper"] / times["affinity"], 1),
        "goal": ">= 30",
    }
    print(json.dumps(result, indent=2))


def measured(stack, table, graph, queries, asked, repeats: int) -> float:  # type: ignore[no-untyped-def]
    """Median seconds of expanding all queries; the database's level is computed before."""
    hierarchy = Hierarchy(stack, table, graph, device=torch.device("cpu"))
    hierarchy.expand(queries, asked)
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        hierarchy.expand(queries, asked)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
