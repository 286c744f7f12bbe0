"""Searching an index whose shards lie in processes of a cluster, each of them several times.

A request is two searches with the expansion between them. Each search goes to one replica of every shard at
the same time and merges their results; the expansion reads the few rows it needs from the mapped levels.
Results are those of `Index.search`.

Plain actors, not Ray Serve: see docs/sharded-serving.md for what was measured.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators.base import positive_int
from gqe.cluster.session import connect, first_line, ray_module
from gqe.cluster.shard import AUGMENTED, VECTORS, Shard, bounds_of
from gqe.errors import InputError
from gqe.index.index import Index
from gqe.index.manifest import read_manifest
from gqe.index.shards import merge_lists
from gqe.index.snapshot import Snapshot
from gqe.index.target import IndexTarget
from gqe.neighbors.candidates import Candidates
from gqe.neighbors.search import resolve_device
from gqe.results import SearchResult
from gqe.retrieval import Searchable
from gqe.source import LevelSource

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
Send: TypeAlias = Callable[[int, list[int]], tuple[Any, int]]

# Seconds after which a request is sent to a second replica, too, and for which it is retried where no replica
# of a shard answers. Ray takes longer than that to notice that a node has died.
_SLOW, _RETRY = 2.0, 60.0
# Seconds for which others are preferred to a replica that did not answer.
_AVOIDED = 30.0
# Seconds between two attempts when no replica of a shard answers.
_PAUSE = 0.1


class ShardedServing(Searchable):
    """An index served by a cluster; use it in a `with` statement.

    All nodes must see the folder of the index under the same path. It serves the version that it opened;
    after a change it has to be started again.

    Args:
        path: the folder of the index.
        cluster: see `gqe.cluster.session.connect`.
        replicas: actors of each shard. With two or more, a request outlives the death of any one.
        shards: into how many parts rows are cut; as the index was built if None.
        device: where actors compute, and the expansion here.
        threads: of each actor on a CPU.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        cluster: str = "auto",
        replicas: int = 1,
        shards: int | None = None,
        device: str = "auto",
        threads: int = 1,
    ) -> None:
        self.ray = ray_module()
        self.replicas = positive_int("replicas", replicas)
        self.threads = positive_int("threads", threads)
        self.cluster = cluster
        self.device = device
        index = Index.open(path, device="cpu")
        self._snapshot: Snapshot = index._snapshot
        self.bounds = bounds_of(self._snapshot, None if shards is None else positive_int("shards", shards))
        self._stack = ExitStack()
        self._actors: list[list[Any]] = []
        self._turn = itertools.count()
        self._avoided: dict[tuple[int, int], float] = {}  # shard and replica, and until when

    def __enter__(self) -> ShardedServing:
        if read_manifest(self._snapshot.folder).state != self._snapshot.manifest.state:
            raise InputError(f"{self._snapshot.folder}: was changed since it was opened; open it again")
        session = self._stack.enter_context(connect(self.cluster))
        gpu = session.gpus > 0 and self.device != "cpu"
        device = ("cuda" if self.device == "auto" else self.device) if gpu else "cpu"
        # No CPUs are held: actors that hold all of them would starve every other job of the cluster.
        share = min(1.0, session.gpus / (len(self.bounds) * self.replicas)) if gpu else 0
        folder, version = str(self._snapshot.folder.absolute()), self._snapshot.manifest.state
        nodes = self._nodes("GPU" if gpu else "CPU")
        actor = self.ray.remote(Shard)
        self._actors = [
            [
                actor.options(
                    num_cpus=0,
                    num_gpus=share,
                    max_restarts=-1,
                    max_task_retries=0,  # another replica answers sooner than a new one starts
                    scheduling_strategy=nodes[(shard + replica) % len(nodes)],
                ).remote(folder, version, *bounds, device, self.threads)
                for replica in range(self.replicas)
            ]
            for shard, bounds in enumerate(self.bounds)
        ]
        try:
            self.processes()  # waits until every actor has opened its shard
        except self.ray.exceptions.RayError as error:
            self.__exit__()
            raise _explain(error, self._snapshot.folder) from error
        except BaseException:
            self.__exit__()
            raise
        self._target = ShardedTarget(
            self, resolve_device("cpu" if not torch.cuda.is_available() else self.device)
        )
        return self

    def _nodes(self, kind: str) -> list[Any]:
        """The nodes, for replicas of one shard to be on different ones; where one dies Ray finds another."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        alive = [node for node in self.ray.nodes() if node["Alive"]]
        fit = [node for node in alive if node["Resources"].get(kind, 0) > 0] or alive
        return [On(node["NodeID"], soft=True) for node in fit]

    def __exit__(self, *problem: Any) -> None:
        for actor in (each for group in self._actors for each in group):
            try:
                self.ray.kill(actor)
            except self.ray.exceptions.RayError as error:  # it is gone already
                log.info("%s", error)
        self._actors = []
        self._stack.close()

    @property
    def target(self) -> ShardedTarget:
        """The index, as a search sees it. Searches are safe from several threads."""
        return self._target

    def processes(self) -> list[list[int]]:
        """The processes of the actors of each shard."""
        pending = [[actor.process.remote() for actor in replicas] for replicas in self._actors]
        return [self.ray.get(replicas) for replicas in pending]

    def nearest(
        self, table: str, queries: Tensor, k: int, omit: Array | None, allowed: Array | None, exact: bool
    ) -> Candidates:
        """The k nearest rows of all shards: each searched by one of its replicas, by another if that dies.

        Args:
            table: "vectors" or "augmented".
            queries: (m, d), checked.
            k: how many.
            omit: (m,) a row that each query must not find, -1 for none.
            allowed: (n,) bool, rows that may be found; None for all that are not removed.
            exact: see `Shard.nearest`.
        """
        shared = self.ray.put(queries.cpu().numpy())
        turn = next(self._turn)

        def send(shard: int, tried: list[int]) -> tuple[Any, int]:
            start, stop = self.bounds[shard]
            mask = None if allowed is None else allowed[start:stop]
            replica = self._choose_replica(shard, turn, tried)
            actor = self._actors[shard][replica]
            return actor.nearest.remote(table, shared, k, omit, mask, exact), replica

        results = self._gather(send)
        lists = [Candidates(*(torch.from_numpy(np.array(part)) for part in each)) for each in results]
        best = lists[0]
        for more in lists[1:]:
            best = merge_lists(best, more, k)
        return best

    def _choose_replica(self, shard: int, turn: int, tried: list[int]) -> int:
        """The replica least tried for this request, then one that is not avoided, then by turns."""
        now = time.monotonic()

        def order(replica: int) -> tuple[int, bool, int]:
            avoided = self._avoided.get((shard, replica), 0.0) > now
            return tried.count(replica), avoided, (replica - turn) % self.replicas

        return min(range(self.replicas), key=order)

    def _gather(self, send: Send) -> list[tuple[Array, Array]]:
        """The results of all shards, in their order.

        Args:
            send: sends the request to a shard, given the replicas that it was sent to before; gives the
                reference of the result, and the replica.
        """
        shards = range(len(self.bounds))
        results: dict[int, tuple[Array, Array]] = {}
        pending: dict[Any, tuple[int, int]] = {}  # shard and replica of each result
        tried: list[list[int]] = [[] for _ in shards]

        def request(shard: int) -> None:
            if shard not in results:
                reference, replica = send(shard, tried[shard])
                pending[reference] = shard, replica
                tried[shard].append(replica)

        for shard in shards:
            request(shard)
        failing: float | None = None
        while len(results) < len(shards):
            ready, _ = self.ray.wait(list(pending), num_returns=1, timeout=_SLOW)
            if not ready:
                until = time.monotonic() + _AVOIDED
                self._avoided.update((silent, until) for silent in pending.values())
                for shard in shards:  # the first result counts
                    if len(tried[shard]) < self.replicas:
                        request(shard)
            for reference in ready:
                shard, replica = pending.pop(reference)
                try:
                    results.setdefault(shard, self.ray.get(reference))
                    self._avoided.pop((shard, replica), None)
                except self.ray.exceptions.RayTaskError as error:
                    raise _explain(error, self._snapshot.folder) from error
                except self.ray.exceptions.RayActorError as error:
                    log.warning("shard %d: a replica does not answer (%s)", shard, type(error).__name__)
                    now = time.monotonic()
                    self._avoided[shard, replica] = now + _PAUSE
                    failing = failing or now
                    if now > failing + _RETRY:
                        raise InputError(
                            f"shard {shard}: none of its {self.replicas} replicas answers; serve it with"
                            " more replicas, or add nodes to the cluster"
                        ) from error
                    if len(tried[shard]) % self.replicas == 0:
                        time.sleep(_PAUSE)
                    request(shard)
        return [results[shard] for shard in shards]


class ShardedTarget(IndexTarget):
    """An index whose neighbours are found by shards; the levels are read here."""

    def __init__(self, serving: ShardedServing, device: torch.device) -> None:
        super().__init__(serving._snapshot, device)
        self._serving = serving

    def neighbors(
        self, queries: Tensor, k: int, exclude: Array | None, exact: bool | None, *, lists: bool = False
    ) -> tuple[LevelSource, Candidates]:
        """See `SearchTarget`."""
        found = self._serving.nearest(VECTORS, queries, k, exclude, None, bool(exact))
        return self.levels.query, Candidates(*(part.to(queries.device) for part in found))

    def nearest(
        self, queries: Tensor, k: int, exclude: Array | None, allowed: Any, exact: bool | None, dba: bool
    ) -> SearchResult:
        """See `SearchTarget`."""
        table = AUGMENTED if dba else VECTORS
        found = self._serving.nearest(table, queries, k, exclude, allowed, bool(exact))
        return SearchResult(found.similarities.numpy(), found.ids.numpy())


def _explain(error: BaseException, folder: Path) -> InputError:
    """The error of a shard in one line."""
    cause = getattr(error, "cause", None)
    text = str(cause if isinstance(cause, InputError) else error)
    for line in reversed(text.strip().splitlines()):
        match = re.search(r"(Input|Storage|Damaged)Error: (.*)", line)
        if match:
            return InputError(match[2])
    if isinstance(cause, InputError):
        return InputError(text)
    return InputError(f"{folder}: a shard cannot be served: {first_line(error)}")
