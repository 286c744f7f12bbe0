"""What a level of expansion costs a query on a CPU: our encoder of similarities beside the paper's.

    python benchmarks/expand.py

Both run as in `Hierarchy.expand`, at the paper's size: 2048 dimensions, K = 44, two levels; neighbours and
the database's levels are known. Weights are untrained: they do not change the time.

They take turns, and the ratio is the median over the rounds, because the speed of a machine changes while it
is measured. It is measured with all threads and with one: where other programs want the same cores, the many
short steps of the small model wait for each other's threads, and one thread tells better what it costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import torch

from gqe.aggregators import Affinity, Aggregator, Attention
from gqe.embeddings import as_table
from gqe.expansion import expand
from gqe.neighbors import knn
from gqe.source import MemorySource

DIM, K, ITEMS = 2048, 44, 500
# Runs of the small model for each of the large one: they are short.
TURNS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    labels = rng.integers(20, size=ITEMS + options.queries)
    vectors = rng.normal(size=(20, DIM))[labels] + 1.5 * rng.normal(size=(len(labels), DIM))
    table, queries = as_table(vectors[:ITEMS]), as_table(vectors[ITEMS:])
    graph, asked = knn(table, K), knn(table, K, queries=queries)
    torch.manual_seed(0)
    stacks: dict[str, list[Aggregator]] = {
        "affinity": [Affinity(K), Affinity(K, base=True)],
        "paper": [Attention(DIM, K), Attention(DIM, K)],
    }
    models = {
        name: MemorySource(stack, table, graph, device=torch.device("cpu")) for name, stack in stacks.items()
    }
    for source in models.values():
        expand(source, queries, asked)  # computes the database's level, too

    def seconds(name: str) -> float:
        started = time.perf_counter()
        expand(models[name], queries, asked)
        return (time.perf_counter() - started) / options.queries

    def measured() -> dict[str, Any]:
        rounds = [
            {
                "affinity": statistics.median(seconds("affinity") for _ in range(TURNS)),
                "paper": seconds("paper"),
            }
            for _ in range(options.repeats)
        ]
        typical = {name: statistics.median(times[name] for times in rounds) for name in models}
        return {
            "milliseconds_a_query": {name: round(1000 * t, 3) for name, t in typical.items()},
            "ratio": round(statistics.median(times["paper"] / times["affinity"] for times in rounds), 1),
        }

    result: dict[str, Any] = {"threads": torch.get_num_threads(), **measured()}
    torch.set_num_threads(1)
    result["one_thread"] = measured()
    print(json.dumps({**result, "goal": ">= 30"}, indent=2))


if __name__ == "__main__":
    main()
