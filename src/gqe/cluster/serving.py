"""Searching an index whose shards lie in processes of a cluster, each of them several times.

A request is two searches with the expansion between them. Each search goes to one replica of every shard at
the same time and merges their results; the expansion reads the few rows it needs from the mapped levels.
Results are those of `Index.search`.

Plain actors, not Ray Serve: see docs/sharded-serving.md for what was measured.
"""

from __future__ import annotations

import itertools
import logging
import math
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
from gqe.cluster.session import Session, connect, first_line, ray_module
from gqe.cluster.shard import AUGMENTED, VECTORS, Shard, bounds_of
from gqe.errors import InputError
from gqe.index.index import Index
from gqe.index.manifest import read_manifest
from gqe.index.shards import merge_lists
from gqe.index.snapshot import Snapshot
from gqe.index.target import IndexTarget
from gqe.neighbors.candidates import Candidates
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
# Seconds between two attempts to start an actor that cannot open its shard.
_REPLACE = 3.0
# Seconds between two attempts when no replica of a shard answers.
_PAUSE = 0.1


class ShardUnavailable(InputError):
    """No replica of a shard answers; one may later."""


class ShardedServing(Searchable):
    """An index served by a cluster; use it in a `with` statement.

    All nodes must see the folder of the index under the same path. It serves the version that it opened,
    until `reopen`.

    Args:
        path: the folder of the index.
        cluster: see `gqe.cluster.session.connect`.
        replicas: actors of each shard. With two or more, a request outlives the death of any one.
        shards: into how many parts rows are cut; as the index was built if None.
        device: where actors compute, and the expansion here.
        threads: of each actor on a CPU.

    Attributes:
        index: the version that is served, searched by its shards.
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
        self.shards = None if shards is None else positive_int("shards", shards)
        self.cluster = cluster
        self.device = device
        self.index = self._open(path)
        bounds_of(self.index._snapshot, self.shards)
        self._stack = ExitStack()

    def _open(self, path: str | os.PathLike[str]) -> Index:
        return Index.open(path, device=self.device if torch.cuda.is_available() else "cpu")

    def __enter__(self) -> ShardedServing:
        snapshot = self.index._snapshot
        if read_manifest(snapshot.folder).state != snapshot.manifest.state:
            raise InputError(f"{snapshot.folder}: was changed since it was opened; open it again")
        self._session = self._stack.enter_context(connect(self.cluster))
        try:
            self._serve(self.index)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *problem: Any) -> None:
        self.target.replicas.kill()
        self._stack.close()

    def reopen(self) -> None:
        """Serve the newest version, as soon as all of its shards are open.

        Searches that have begun end in the version before; then its actors end, too.
        """
        index = self._open(self.index.path)
        self._serve(index)
        self.index = index

    def _serve(self, index: Index) -> None:
        snapshot = index._snapshot
        replicas = Replicas(self.ray, self._session, snapshot, self)
        index._target = ShardedTarget(snapshot, index.device, replicas)

    @property
    def target(self) -> ShardedTarget:
        """The index, as a search sees it. Searches are safe from several threads."""
        target = self.index.target
        if not isinstance(target, ShardedTarget):
            raise InputError("ShardedServing: no shards are served yet; use it in a `with` statement")
        return target

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """First row and end of each shard."""
        return self.target.replicas.bounds

    def processes(self) -> list[list[int]]:
        """The processes of the actors of each shard."""
        return self.target.replicas.processes()


class Replicas:
    """The actors of one version. They end when nobody refers to this any longer.

    Args:
        ray: the module.
        session: the cluster.
        snapshot: the version.
        how: number and place of the actors.
    """

    def __init__(self, ray: Any, session: Session, snapshot: Snapshot, how: ShardedServing) -> None:
        self.ray = ray
        self.folder = snapshot.folder.absolute()
        self.bounds = bounds_of(snapshot, how.shards)
        self.count = how.replicas
        self._turn = itertools.count()
        self._avoided: dict[tuple[int, int], float] = {}  # shard and replica, and until when
        self._replaced: dict[tuple[int, int], float] = {}  # and when
        gpu = session.gpus > 0 and how.device != "cpu"
        device = ("cuda" if how.device == "auto" else how.device) if gpu else "cpu"
        self._kind = "GPU" if gpu else "CPU"
        # No CPUs are held: actors that hold all of them would starve every other job of the cluster.
        self._options = {
            "num_cpus": 0,
            "num_gpus": gpu_share(len(self.bounds) * self.count, session.gpus) if gpu else 0,
            "max_restarts": -1,
            "max_task_retries": 0,  # another replica answers sooner than a new one starts
        }
        self._settings = (str(self.folder), snapshot.manifest.state, device, how.threads)
        places = self._places()
        self._actors = [
            [self._start(shard, places[(shard + replica) % len(places)]) for replica in range(self.count)]
            for shard in range(len(self.bounds))
        ]
        try:
            self.processes()  # waits until every actor has opened its shard
        except ray.exceptions.RayError as error:
            self.kill()
            raise _explain(error, self.folder) from error
        except BaseException:
            self.kill()
            raise

    def _start(self, shard: int, place: Any) -> Any:
        folder, version, device, threads = self._settings
        start, stop = self.bounds[shard]
        options = self._options | {"scheduling_strategy": place}
        actor = self.ray.remote(Shard).options(**options)
        return actor.remote(folder, version, start, stop, device, threads)

    def _replace(self, shard: int, replica: int, now: float) -> None:
        """Start an actor anew that could not open its shard, elsewhere; Ray has given it up."""
        if now > self._replaced.get((shard, replica), 0.0) + _REPLACE:
            self._replaced[shard, replica] = now
            places = self._places()
            self._actors[shard][replica] = self._start(shard, places[next(self._turn) % len(places)])

    def _places(self) -> list[Any]:
        """The nodes, for replicas of one shard to be on different ones; where one dies Ray finds another."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        alive = [node for node in self.ray.nodes() if node["Alive"]]
        fit = [node for node in alive if node["Resources"].get(self._kind, 0) > 0] or alive
        return [On(node["NodeID"], soft=True) for node in fit]

    def processes(self) -> list[list[int]]:
        """The processes of the actors of each shard."""
        pending = [[actor.process.remote() for actor in replicas] for replicas in self._actors]
        return [self.ray.get(replicas) for replicas in pending]

    def kill(self) -> None:
        """End the actors, whatever they are doing."""
        for actor in itertools.chain(*self._actors):
            try:
                self.ray.kill(actor)
            except self.ray.exceptions.RayError as error:  # it is gone already
                log.info("%s", error)

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
            return tried.count(replica), avoided, (replica - turn) % self.count

        return min(range(self.count), key=order)

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
                    if len(tried[shard]) < self.count:
                        request(shard)
            for reference in ready:
                shard, replica = pending.pop(reference)
                try:
                    results.setdefault(shard, self.ray.get(reference))
                    self._avoided.pop((shard, replica), None)
                except self.ray.exceptions.RayTaskError as error:
                    raise _explain(error, self.folder) from error
                except self.ray.exceptions.RayActorError as error:
                    log.warning("shard %d: a replica does not answer (%s)", shard, type(error).__name__)
                    now = time.monotonic()
                    self._avoided[shard, replica] = now + _PAUSE
                    failing = failing or now
                    if now > failing + _RETRY:
                        raise ShardUnavailable(
                            f"shard {shard}: none of its {self.count} replicas answers; serve it with"
                            " more replicas, or add nodes to the cluster"
                        ) from error
                    if error.actor_init_failed:
                        self._replace(shard, replica, now)
                    if len(tried[shard]) % self.count == 0:
                        time.sleep(_PAUSE)
                    request(shard)
        return [results[shard] for shard in shards]


def gpu_share(actors: int, gpus: int) -> float:
    """How much of a GPU an actor holds, so that those of a newer version find room beside all of them."""
    return 0.5 / math.ceil(actors / gpus)


class ShardedTarget(IndexTarget):
    """An index whose neighbours are found by shards; the levels are read here."""

    def __init__(self, snapshot: Snapshot, device: torch.device, replicas: Replicas) -> None:
        super().__init__(snapshot, device)
        self.replicas = replicas

    def neighbors(
        self, queries: Tensor, k: int, exclude: Array | None, exact: bool | None, *, lists: bool = False
    ) -> tuple[LevelSource, Candidates]:
        """See `SearchTarget`."""
        found = self.replicas.nearest(VECTORS, queries, k, exclude, None, bool(exact))
        return self.levels.query, Candidates(*(part.to(queries.device) for part in found))

    def nearest(
        self, queries: Tensor, k: int, exclude: Array | None, allowed: Any, exact: bool | None, dba: bool
    ) -> SearchResult:
        """See `SearchTarget`."""
        table = AUGMENTED if dba else VECTORS
        found = self.replicas.nearest(table, queries, k, exclude, allowed, bool(exact))
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
