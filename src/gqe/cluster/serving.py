"""Searching an index whose shards lie in processes of a cluster, each of them several times.

A request is two searches with the expansion between them. Each search asks one replica of every shard at the
same time and merges what they found; the expansion reads the few rows it needs from the mapped levels.
Answers are those of `Index.search`.

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

from gqe import retrieval
from gqe.aggregators.base import positive_int
from gqe.cluster.session import connect, ray_module
from gqe.cluster.shard import AUGMENTED, VECTORS, Shard, bounds_of
from gqe.errors import InputError
from gqe.index.index import Index
from gqe.index.manifest import read_manifest
from gqe.index.metadata import Filter
from gqe.index.sharded import merged_lists
from gqe.index.snapshot import Snapshot
from gqe.index.target import IndexTarget
from gqe.neighbors.candidates import Candidates
from gqe.neighbors.search import resolve_device
from gqe.retrieval import Explanation, SearchResult
from gqe.source import LevelSource

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
Send: TypeAlias = Callable[[int, list[int]], tuple[Any, int]]

# Seconds after which another replica is asked beside one that says nothing, and for which a shard without any
# replica is asked again and again. Ray takes longer than that to notice that a node has died.
_SLOW, _PATIENCE = 2.0, 60.0
# Seconds for which others are preferred to a replica that said nothing.
_AVOIDED = 30.0
# Seconds between two attempts when no replica of a shard is there.
_PAUSE = 0.1


class ShardedServing:
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
        self._avoided: dict[tuple[int, int], float] = {}  # replicas, and until when

    def __enter__(self) -> ShardedServing:
        if read_manifest(self._snapshot.folder).state != self._snapshot.manifest.state:
            raise InputError(f"{self._snapshot.folder}: was changed since it was opened; open it again")
        session = self._stack.enter_context(connect(self.cluster))
        gpu = session.gpus > 0 and self.device != "cpu"
        device = ("cuda" if self.device == "auto" else self.device) if gpu else "cpu"
        # No CPUs are held: actors that hold all of them would starve every other job of the cluster.
        share = min(1.0, session.gpus / (len(self.bounds) * self.replicas)) if gpu else 0
        folder, version = str(self._snapshot.folder.absolute()), self._snapshot.manifest.state
        places = self._places("GPU" if gpu else "CPU")
        actor = self.ray.remote(Shard)
        self._actors = [
            [
                actor.options(
                    num_cpus=0,
                    num_gpus=share,
                    max_restarts=-1,
                    max_task_retries=0,  # another replica answers sooner than a new one starts
                    scheduling_strategy=places[(shard + replica) % len(places)],
                ).remote(folder, version, *bounds, device, self.threads)
                for replica in range(self.replicas)
            ]
            for shard, bounds in enumerate(self.bounds)
        ]
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        self._target = ShardedTarget(
            self, resolve_device("cpu" if not torch.cuda.is_available() else self.device)
        )
        return self

    def _places(self, kind: str) -> list[Any]:
        """The nodes, for replicas of one shard to lie on different ones; where one dies Ray finds another."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        alive = [node for node in self.ray.nodes() if node["Alive"]]
        fit = [node for node in alive if node["Resources"].get(kind, 0) > 0] or alive
        return [On(node["NodeID"], soft=True) for node in fit]

    def _open(self) -> None:
        """Wait until every actor has opened its shard."""
        try:
            self.ray.get([each.process.remote() for group in self._actors for each in group])
        except self.ray.exceptions.RayError as error:
            raise _explained(error, self._snapshot.folder) from error

    def __exit__(self, *problem: Any) -> None:
        for actor in (each for group in self._actors for each in group):
            try:
                self.ray.kill(actor)
            except self.ray.exceptions.RayError as error:  # it is gone already
                log.info("%s", error)
        self._actors = []
        self._stack.close()

    def search(
        self,
        queries: Any,
        k: int,
        *,
        expand: bool = True,
        exclude: Any = None,
        filter: Filter | None = None,
        exact: bool | None = None,
        rounds: int | None = None,
        rerank: str | None = None,
        dba: bool | None = None,
    ) -> SearchResult:
        """See `Index.search`. Safe to call from several threads."""
        return retrieval.search(
            self._target,
            queries,
            k,
            expand=expand,
            exclude=exclude,
            filter=filter,
            exact=exact,
            rounds=rounds,
            rerank=rerank,
            dba=dba,
        )

    def expand(
        self, queries: Any, *, exclude: Any = None, exact: bool | None = None, rounds: int | None = None
    ) -> Any:
        """Expanded queries; see `Index.expand`."""
        return retrieval.expand_batch(self._target, queries, exclude=exclude, exact=exact, rounds=rounds)

    def explain(
        self,
        queries: Any,
        *,
        top: int = 10,
        exclude: Any = None,
        exact: bool | None = None,
        rounds: int | None = None,
    ) -> Explanation:
        """See `Index.explain`."""
        return retrieval.explain(self._target, queries, top=top, exclude=exclude, exact=exact, rounds=rounds)

    def processes(self) -> list[list[int]]:
        """The processes of the actors of each shard."""
        return [self.ray.get([each.process.remote() for each in group]) for group in self._actors]

    def nearest(
        self, table: str, asked: Tensor, k: int, omit: Array | None, allowed: Array | None, exact: bool
    ) -> Candidates:
        """The k nearest rows of all shards: each is asked at one of its replicas, at another if that dies.

        Args:
            table: "vectors" or "augmented".
            asked: (m, d) checked queries.
            k: how many.
            omit: (m,) a row that each query must not find, -1 for none.
            allowed: (n,) bool, rows that may be found; None for all that are not removed.
            exact: see `Shard.nearest`.
        """
        queries = self.ray.put(asked.cpu().numpy())
        turn = next(self._turn)

        def send(shard: int, asked_before: list[int]) -> tuple[Any, int]:
            start, stop = self.bounds[shard]
            mask = None if allowed is None else allowed[start:stop]
            replica = self._chosen(shard, turn, asked_before)
            actor = self._actors[shard][replica]
            return actor.nearest.remote(table, queries, k, omit, mask, exact), replica

        found = self._gathered(send)
        lists = [Candidates(*(torch.from_numpy(np.array(part)) for part in each)) for each in found]
        best = lists[0]
        for more in lists[1:]:
            best = merged_lists(best, more, k)
        return best

    def _chosen(self, shard: int, turn: int, asked_before: list[int]) -> int:
        """The replica to ask: the least asked for this request, then those that answer, then by turns."""
        now = time.monotonic()

        def order(replica: int) -> tuple[int, bool, int]:
            silent = self._avoided.get((shard, replica), 0.0) > now
            return asked_before.count(replica), silent, (replica - turn) % self.replicas

        return min(range(self.replicas), key=order)

    def _gathered(self, send: Send) -> list[tuple[Array, Array]]:
        """The answers of all shards, in their order."""
        asking = _Asking(send, len(self.bounds))
        failing: float | None = None
        while len(asking.answers) < len(self.bounds):
            ready, _ = self.ray.wait(list(asking.pending), num_returns=1, timeout=_SLOW)
            if not ready:
                until = time.monotonic() + _AVOIDED
                self._avoided.update((silent, until) for silent in asking.pending.values())
                asking.again_elsewhere(self.replicas)
            for reference in ready:
                shard, replica = asking.pending.pop(reference)
                try:
                    asking.answers.setdefault(shard, self.ray.get(reference))
                    self._avoided.pop((shard, replica), None)
                except self.ray.exceptions.RayTaskError as error:
                    raise _explained(error, self._snapshot.folder) from error
                except self.ray.exceptions.RayActorError as error:
                    log.warning("shard %d: a replica does not answer (%s)", shard, type(error).__name__)
                    self._avoided[shard, replica] = time.monotonic() + _PAUSE
                    failing = failing or time.monotonic()
                    self._check_patience(shard, failing)
                    if len(asking.asked[shard]) % self.replicas == 0:
                        time.sleep(_PAUSE)
                    asking.ask(shard)
        return [asking.answers[shard] for shard in range(len(self.bounds))]

    def _check_patience(self, shard: int, failing: float) -> None:
        if time.monotonic() > failing + _PATIENCE:
            raise InputError(
                f"shard {shard}: none of its {self.replicas} replicas answers; serve it with more replicas,"
                " or add nodes to the cluster"
            )


class _Asking:
    """One search of all shards that is under way.

    Args:
        send: asks a shard, told which of its replicas were asked before; gives the one it asked, too.
        shards: how many there are.

    Attributes:
        pending: the shard and the replica that each answer will come from.
        asked: the replicas of each shard that were asked.
        answers: by shard.
    """

    def __init__(self, send: Send, shards: int) -> None:
        self._send = send
        self.pending: dict[Any, tuple[int, int]] = {}
        self.asked: list[list[int]] = [[] for _ in range(shards)]
        self.answers: dict[int, tuple[Array, Array]] = {}
        for shard in range(shards):
            self.ask(shard)

    def ask(self, shard: int) -> None:
        """Ask a shard, at the next of its replicas, unless it has answered."""
        if shard not in self.answers:
            reference, replica = self._send(shard, self.asked[shard])
            self.pending[reference] = (shard, replica)
            self.asked[shard].append(replica)

    def again_elsewhere(self, replicas: int) -> None:
        """Ask those that are silent at a replica that was not asked yet; the first answer counts."""
        for shard, asked in enumerate(self.asked):
            if len(asked) < replicas:
                self.ask(shard)


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


def _explained(error: BaseException, folder: Path) -> Exception:
    """What a shard says of a user's mistake, in one line."""
    cause = getattr(error, "cause", None)
    text = str(cause if isinstance(cause, InputError) else error)
    for line in reversed(text.strip().splitlines()):
        found = re.search(r"(Input|Storage|Damaged)Error: (.*)", line)
        if found:
            return InputError(found[2])
    if isinstance(cause, InputError):
        return InputError(str(cause))
    first = next(iter(text.strip().splitlines()), type(error).__name__)[:200]
    return InputError(f"{folder}: a shard cannot be served: {first}")
