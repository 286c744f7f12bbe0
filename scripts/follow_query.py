"""Follow one query of each kind to an aggregator, and print the files on its way.

    python scripts/follow_query.py [--sharded]

The way is the call stack at the moment when the query's neighbourhood reaches the first aggregator: what
calls what, from the object that the user holds down to the weights. All kinds share the same core files, no
file is entered twice, and at most eight files come before the aggregator; the script fails where that does
not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn.modules.module import register_module_forward_pre_hook

import gqe
from gqe.aggregators import Aggregator

PACKAGE = Path(gqe.__file__).parent
CORE = ["retrieval.py", "expansion.py"]
MOST = 8


@contextmanager
def recorded() -> Iterator[list[str]]:
    """The files on the way to the last aggregator that was called."""
    way: list[str] = []

    def look(module: Any, _: Any) -> None:
        if isinstance(module, Aggregator):
            way[:] = files_on(traceback.extract_stack()[:-1])

    hook = register_module_forward_pre_hook(look)
    try:
        yield way
    finally:
        hook.remove()


def files_on(stack: traceback.StackSummary | list[traceback.FrameSummary]) -> list[str]:
    """Files of the package on a call stack, one entry for each time that one is entered."""
    way: list[str] = []
    for frame in stack:
        path = Path(frame.filename)
        if path.is_relative_to(PACKAGE):
            name = path.relative_to(PACKAGE).as_posix()
            if not way or way[-1] != name:
                way.append(name)
    return way


def followed(search: Callable[[np.ndarray], Any], query: np.ndarray) -> list[str]:
    """The way of a query; what is computed only once is computed before."""
    search(query)
    with recorded() as way:
        search(query)
    return way


def ways(folder: Path, *, sharded: bool = False) -> dict[str, list[str]]:
    """The way of a query of each kind."""
    database = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    query = database[7] + 0.1
    expander = gqe.expander("universal").fit(database)
    index = gqe.Index.build(database, "universal", folder / "index")
    found = {
        "Expander": followed(lambda q: expander.search(q, 5), query),
        "Index": followed(lambda q: index.search(q, 5), query),
    }
    with gqe.connect(f"index:{folder / 'index'}") as store:
        found["store"] = followed(lambda q: store.search(q, 5), query)
    found["HTTP"] = _through_http(folder / "index", query)
    if sharded:
        from gqe.cluster.serving import ShardedServing

        with ShardedServing(folder / "index", cluster="local", shards=2, device="cpu") as serving:
            found["sharded"] = followed(lambda q: serving.search(q, 5), query)
    return found


def _through_http(index: Path, query: np.ndarray) -> list[str]:
    from gqe.server import create_app
    from gqe.server.runner import bind_socket, create_server

    app = create_app(gqe.Index.open(index, device="cpu"))
    server, listening = create_server(app), bind_socket("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()

    def search(q: np.ndarray) -> None:
        body = json.dumps({"vectors": [q.tolist()], "k": 5}).encode()
        request = urllib.request.Request(f"{address}/v1/search", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=60).close()

    try:
        while not server.started:
            time.sleep(0.02)
        return followed(search, query)
    finally:
        server.should_exit = True
        thread.join()


def problems(way: list[str]) -> list[str]:
    """What is wrong with a way."""
    wrong = [f"{name} is entered twice" for name in sorted(set(way)) if way.count(name) > 1]
    before = [name for name in way if not name.startswith("aggregators/")]
    if len(before) > MOST:
        wrong.append(f"{len(before)} files come before the aggregator, at most {MOST} may")
    core = [name for name in way if name in CORE]
    if core != CORE:
        wrong.append(f"its core files are {core}, not {CORE}")
    return wrong


def main() -> int:
    """Print the ways; 1 if one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sharded", action="store_true", help="also a query of a cluster (starts Ray)")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for kind, way in ways(Path(folder), sharded=options.sharded).items():
            print(f"{kind:9} {' -> '.join(way)} -> aggregator")
            for wrong in problems(way):
                failed = True
                print(f"          {wrong}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
