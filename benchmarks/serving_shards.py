"""Sharded serving: plain Ray actors beside Ray Serve, for the same shards of one index.

    python benchmarks/serving_shards.py                 # Ray Serve is left out if it is not installed
    python benchmarks/serving_shards.py --items 2000    # to see that it runs

Both ask every shard for its nearest rows of one query, at the same time, and wait for all answers, as one
search of `gqe.cluster.serving` does. "empty call" asks for nothing: what the engine itself costs. They take
turns, call by call, so that other work on the machine disturbs both alike. "one request" is an expanded
search.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import clustered

from gqe.cluster.serving import ShardedServing
from gqe.cluster.session import connect
from gqe.cluster.shard import VECTORS, Shard
from gqe.index import Index

DIM, FOUND = 128, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    vectors = clustered(options.items, DIM)
    queries = clustered(options.items, DIM, seed=1)[: options.calls]
    with tempfile.TemporaryDirectory() as folder, connect("local", workers=2):
        index = Index.build(vectors, "universal", Path(folder) / "index", device="cpu")
        with ShardedServing(index.path, shards=options.shards, device="cpu") as serving:
            ray, actors = serving.ray, [group[0] for group in serving._actors]
            works: dict[str, Callable[[Any], Any]] = {
                "one request: shards": lambda q: serving.search(q, FOUND),
                "one request: index in this process": lambda q: index.search(q, FOUND),
            }
            works |= both("plain actors", lambda m, *g: ray.get([call(a, m, *g) for a in actors]))
            with handles(index, serving.bounds) as served:
                if served:
                    works |= both(
                        "Ray Serve", lambda m, *g: [r.result() for r in [call(h, m, *g) for h in served]]
                    )
                times: dict[str, list[float]] = {name: [] for name in works}
                for query in queries:
                    for name, work in works.items():
                        times[name].append(timed(work, query))
    rows = {name: statistics.median(found[len(found) // 10 :]) for name, found in times.items()}
    for what, seconds in rows.items():
        print(f"{what:40} {1000 * seconds:8.2f} ms")
    if options.json:
        options.json.write_text(
            json.dumps({"about": vars(options) | {"json": None}, "seconds": rows}, indent=2)
        )


def call(actor: Any, method: str, *given: Any) -> Any:
    return getattr(actor, method).remote(*given)


def both(name: str, ask: Callable[..., Any]) -> dict[str, Callable[[Any], Any]]:
    """Asking all shards for nothing, and for their nearest rows."""
    return {
        f"{name}: empty call": lambda q: ask("process"),
        f"{name}: search of all shards": lambda q: ask("nearest", VECTORS, q[None], FOUND, None, None, True),
    }


@contextmanager
def handles(index: Index, bounds: list[tuple[int, int]]) -> Iterator[list[Any]]:
    """The same shards as deployments of Ray Serve; none if it is not installed."""
    try:
        from ray import serve
    except ImportError:
        print("Ray Serve is left out: pip install 'ray[serve]'")
        yield []
        return
    deployment = serve.deployment(Shard, ray_actor_options={"num_cpus": 0})
    try:
        yield [
            serve.run(
                deployment.options(name=f"shard-{start}").bind(
                    str(index.path), index.version, start, stop, "cpu", 1
                ),
                name=f"shard-{start}",
                route_prefix=None,
            )
            for start, stop in bounds
        ]
    finally:
        serve.shutdown()


def timed(work: Callable[[Any], Any], given: Any) -> float:
    begun = time.perf_counter()
    work(given)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
