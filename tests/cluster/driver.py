"""Joins a cluster, builds indexes and searches them by shards, as it is told by lines of JSON.

Run on a host by the tests of hosts. A build says each of its steps and waits for an empty line, so that the
test can do something meanwhile.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Any

import numpy as np

from gqe.cluster.building import build_index
from gqe.cluster.serving import ShardedServing
from gqe.cluster.session import connect
from gqe.cluster.storage import fetch_index
from index.worlds import stacks


def build(source: str, path: str, model: str | None = None, **how: Any) -> Any:
    def progress(done: int, total: int, what: str) -> None:
        print(json.dumps(["step", what, done]), flush=True)
        sys.stdin.readline()

    return build_index(source, model or stacks()["affinity"], path, progress=progress, **how)


def main(address: str) -> None:
    with ExitStack() as stack:
        stack.enter_context(connect(address))
        for line in sys.stdin:
            what, *arguments, how = json.loads(line)
            result = None
            if what == "build":
                result = build(*arguments, **how)
            elif what == "fetch":
                fetch_index(*arguments)
            elif what == "serve":
                serving = stack.enter_context(ShardedServing(*arguments, **how))
            else:
                found = serving.search(np.load(arguments[0]), **how)
                result = [found.ids.tolist(), found.scores.tolist()]
            print(json.dumps(["done", result]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
