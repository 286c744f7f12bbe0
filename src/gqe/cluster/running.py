"""StoredLevels of Ray tasks, a bounded number of them at a time.

Ray runs a task again whose worker or node has died, and makes objects again that were lost with them. What is
left to do here is to hand it no more than it can hold, and to say in one line what went wrong for good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any, TypeAlias

from gqe.cluster.session import Session
from gqe.errors import InputError

log = logging.getLogger(__name__)

# How often a task is tried again after its worker or node has died.
RETRIES = 8
# Seconds without any news after which it is checked that workers are left.
_SILENCE = 30.0
_KEPT = "what is finished is kept, run it again to go on"

# Gives the object of one task after the other; it is sent what each of them became.
Chain: TypeAlias = Generator[Any, Any, None]


class TaskRunner:
    """The workers of a cluster.

    Args:
        ray: the module.
        session: the cluster.
        device: "cpu" or "cuda": a task holds one CPU, or one GPU.
        place: what to name in an error.
    """

    def __init__(self, ray: Any, session: Session, device: str, place: str) -> None:
        self.ray = ray
        self.place = place
        self.device = device
        self.workers = session.gpus if device == "cuda" else session.workers

    def task(self, function: Callable[..., Any], returns: int = 1, *, spread: bool = False) -> Any:
        """A function as a Ray task, to be called with `remote`.

        Args:
            function: of an importable module.
            returns: how many objects it gives.
            spread: over the nodes, rather than where its arguments are.
        """
        gpu = self.device == "cuda"
        return self.ray.remote(function).options(
            num_cpus=0 if gpu else 1,
            num_gpus=1 if gpu else 0,
            num_returns=returns,
            max_retries=RETRIES,
            retry_exceptions=[OSError],
            scheduling_strategy="SPREAD" if spread else "DEFAULT",
        )

    def run(self, chains: Iterable[Chain]) -> None:
        """Run chains, some at a time, until all have ended.

        One chain more than there are workers: its next task is on its way when a worker becomes free.
        """
        waiting, running = iter(chains), dict[Any, Chain]()
        try:
            while True:
                while len(running) <= self.workers:
                    chain = next(waiting, None)
                    if chain is None:
                        break
                    _advance(running, chain, None)
                if not running:
                    return
                ready, _ = self.ray.wait(list(running), num_returns=1, timeout=_SILENCE)
                if not ready:
                    self._check_alive()
                for finished in ready:
                    chain = running.pop(finished)
                    _advance(running, chain, self._result(finished))
        except BaseException:
            for rest in running:
                with suppress(Exception):  # the cluster itself may be gone
                    self.ray.cancel(rest)
            raise

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """Run one task and wait for it."""
        return self._result(self.task(function).remote(*given))

    def everywhere(self, function: Callable[..., Any], *given: Any) -> None:
        """Run a small task once on every node; nodes that have gone meanwhile do not matter."""
        pinned = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        task = self.ray.remote(function)
        started = [
            task.options(
                num_cpus=0, scheduling_strategy=pinned(node_id=node["NodeID"], soft=False), max_retries=0
            ).remote(*given)
            for node in self.ray.nodes()
            if node["Alive"]
        ]
        self.ray.wait(started, num_returns=len(started), timeout=_SILENCE)

    def _result(self, finished: Any) -> Any:
        exceptions = self.ray.exceptions
        try:
            return self.ray.get(finished)
        except exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, InputError):
                raise InputError(str(cause)) from None
            if isinstance(cause, OSError):
                reason = cause.strerror or str(cause)
                raise InputError(f"{cause.filename or self.place}: {reason}; {_KEPT}") from error
            if isinstance(cause, exceptions.RayError):
                raise self._lost(cause) from error
            raise
        except exceptions.RayError as error:
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> InputError:
        reason = next(iter(str(error).strip().splitlines()), "")[:200] or type(error).__name__
        return InputError(f"{self.place}: a task was lost for good ({reason}); {_KEPT}")

    def _check_alive(self) -> None:
        kind = "GPU" if self.device == "cuda" else "CPU"
        if self.ray.cluster_resources().get(kind, 0) < 1:
            raise InputError(f"{self.place}: no worker is left in the cluster; {_KEPT}")


def _advance(running: dict[Any, Chain], chain: Chain, result: Any) -> None:
    """Tell a chain what its last task became, and take its next one."""
    with suppress(StopIteration):
        running[chain.send(result)] = chain
