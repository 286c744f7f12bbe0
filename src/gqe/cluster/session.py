"""Joining a Ray cluster, or starting a small one on this machine, and running tasks on it.

Ray runs a task again whose worker or node has died, and computes objects again that were lost with them. What
is left to do here is to submit no more than it can hold, and to say in one line what failed for good.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeAlias

import torch

from gqe.errors import InputError
from gqe.neighbors.search import resolve_device
from gqe.parsing import whole_number

# Seconds that a cluster has to answer, and without any result after which the workers are counted.
_CONNECT_SECONDS, _IDLE_SECONDS = 5.0, 30.0
# How often a task is tried again after its worker or node has died.
RETRIES = 8
_KEPT = "what is finished is kept, run it again to go on"
# Environment variables that silence Ray; values that are set already stay.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TQDM": "0",
    "RAY_enable_metrics_collection": "0",
}


class Session(NamedTuple):
    """A cluster that was joined.

    Attributes:
        address: host:port of its head.
        workers: how many tasks of one CPU it runs at a time.
        gpus: how many GPUs it has.
        nodes: how many nodes.
        own: whether it was started here, and ends with the session.
    """

    address: str
    workers: int
    gpus: int
    nodes: int
    own: bool


@contextmanager
def connect(address: str = "auto", *, workers: int | None = None) -> Iterator[Session]:
    """Join a cluster for the length of a `with` statement.

    A process that has joined one already stays in it: "auto" takes that one, and leaves it as it is.

    Args:
        address: "auto" for the cluster of this machine or of RAY_ADDRESS, and for a local one where there is
            none; "local" for a new one of worker processes on this machine; "host:port" of a head node.
        workers: worker processes of a local cluster; as many as there are cores (at least 2) if None.

    Raises:
        InputError: Ray is not installed, or nobody answers at the address.
    """
    ray = ray_module()
    kind = _check_address(address)
    if ray.is_initialized():
        if kind == "local" or (":" in kind and not _same(kind, ray.get_runtime_context().gcs_address)):
            raise InputError(f"cluster: this process has joined another cluster; leave it to use {address!r}")
        yield _describe(ray, own=False)
        return
    with _silence(ray):
        own = _join(ray, kind, workers)
        try:
            yield _describe(ray, own)
        finally:
            ray.shutdown()


@contextmanager
def _silence(ray: Any) -> Iterator[None]:
    """Keep Ray from writing to stdout, whatever `log_to_driver` says, that a node has died."""
    worker = ray._private.worker
    before, worker._worker_logs_enabled = getattr(worker, "_worker_logs_enabled", True), False
    try:
        yield
    finally:
        worker._worker_logs_enabled = before


def ray_module() -> Any:
    """Ray, or one line that says how to install it."""
    for name, value in _QUIET.items():  # some are read when it is imported
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise InputError("--cluster needs Ray: pip install 'gqe[cluster]'") from error
    return ray


def _check_address(address: object) -> str:
    if not isinstance(address, str) or not address.strip():
        raise InputError(f"cluster: expected auto, local or host:port, got {address!r}")
    address = address.strip()
    if address in ("auto", "local"):
        return address
    host, colon, port = address.rpartition(":")
    if not colon or not host or "//" in host or not 0 < (whole_number(port) or 0) < 65536:
        raise InputError(
            f"cluster: {address!r} is no address; use auto, local or host:port of a head node"
            " (as `ray start --head` prints it)"
        )
    return address


def _join(ray: Any, kind: str, workers: int | None) -> bool:
    """Join or start a cluster; whether it was started."""
    if kind == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
        kind = _check_address(address) if address not in ("", "auto") else _local_cluster() or "local"
    settings: dict[str, Any] = {"address": kind, "log_to_driver": False, "logging_level": logging.ERROR}
    logging.getLogger("ray").setLevel(logging.ERROR)
    joins = ":" in kind
    if joins:
        _check_reachable(kind)
        problem = f"{kind} cannot be joined (if it asks for a token, set RAY_AUTH_MODE=token)"
    else:
        count = max(2, os.cpu_count() or 2) if workers is None else workers
        settings |= {"num_cpus": count, "include_dashboard": False}
        problem = "no local Ray could be started"
    try:
        ray.init(**settings)
    except Exception as error:
        raise InputError(f"cluster: {problem}: {first_line(error)}") from error
    return not joins


def _local_cluster() -> str | None:
    """The cluster that `ray start` has started on this machine, if it still answers.

    Ray's own address="auto" would also take a cluster that another process has started for itself.
    """
    try:
        from ray._private.services import find_bootstrap_address

        address = _check_address(find_bootstrap_address(None) or "")
        _check_reachable(address)
    except (ImportError, InputError):
        return None
    return address


def _check_reachable(address: str) -> None:
    """Refuse an address where nobody answers; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cluster: nobody answers at {address} ({reason}); start a head node with `ray start --head`,"
            " or use --cluster local"
        ) from error


def _describe(ray: Any, own: bool) -> Session:
    resources = ray.cluster_resources()
    nodes = sum(1 for node in ray.nodes() if node["Alive"])
    address = ray.get_runtime_context().gcs_address
    return Session(address, max(1, int(resources.get("CPU", 1))), int(resources.get("GPU", 0)), nodes, own)


def _same(first: str, second: str) -> bool:
    """Whether two addresses are one, whatever names their hosts have."""
    (host, _, port), (other, _, other_port) = first.rpartition(":"), second.rpartition(":")
    if port != other_port:
        return False
    try:
        return host == other or socket.gethostbyname(host) in (socket.gethostbyname(other), "127.0.0.1")
    except OSError:
        return False


def worker_device(name: str) -> torch.device:
    """The device of a task or an actor, which Ray gives a GPU if it is "cuda"."""
    try:
        return resolve_device(name)
    except InputError:
        raise InputError(
            f"device: Ray counts a GPU on node {socket.gethostname()} that torch cannot use there; install a"
            " torch that can, or use --device cpu"
        ) from None


def first_line(error: BaseException) -> str:
    """What to quote of an error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


# Gives the object of one task after the other; it is sent the result of each of them.
Chain: TypeAlias = Generator[Any, Any, None]


class TaskRunner:
    """Runs chains of tasks on the workers of a cluster, a bounded number of them at a time.

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

        def advance(chain: Chain, result: Any) -> None:
            with suppress(StopIteration):
                running[chain.send(result)] = chain

        try:
            while True:
                while len(running) <= self.workers and (chain := next(waiting, None)) is not None:
                    advance(chain, None)
                if not running:
                    return
                ready, _ = self.ray.wait(list(running), num_returns=1, timeout=_IDLE_SECONDS)
                if not ready:
                    self._check_alive()
                for reference in ready:
                    advance(running.pop(reference), self._result(reference))
        except BaseException:
            for reference in running:
                with suppress(Exception):  # the cluster itself may be gone
                    self.ray.cancel(reference)
            raise

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run one task and wait for it."""
        return self._result(self.task(function).remote(*arguments))

    def run_on_all_nodes(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a small task once on every node; nodes that have left meanwhile do not matter."""
        pinned = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        task = self.ray.remote(function)
        references = [
            task.options(
                num_cpus=0, scheduling_strategy=pinned(node_id=node["NodeID"], soft=False), max_retries=0
            ).remote(*arguments)
            for node in self.ray.nodes()
            if node["Alive"]
        ]
        self.ray.wait(references, num_returns=len(references), timeout=_IDLE_SECONDS)

    def _result(self, reference: Any) -> Any:
        exceptions = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except exceptions.RayError as error:
            cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
            if isinstance(cause, InputError):
                raise InputError(str(cause)) from None
            if isinstance(cause, OSError):
                reason = cause.strerror or str(cause)
                raise InputError(f"{cause.filename or self.place}: {reason}; {_KEPT}") from error
            if isinstance(cause, exceptions.RayError):
                problem = f"a task was lost for good ({first_line(cause)})"
                raise InputError(f"{self.place}: {problem}; {_KEPT}") from error
            raise

    def _check_alive(self) -> None:
        kind = "GPU" if self.device == "cuda" else "CPU"
        if self.ray.cluster_resources().get(kind, 0) < 1:
            raise InputError(f"{self.place}: no worker is left in the cluster; {_KEPT}")
