"""Joining a Ray cluster, or starting a small one on this machine."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from gqe.errors import InputError
from gqe.parsing import whole_number

# Seconds that a cluster has to answer.
_PATIENCE = 5.0
# What Ray asks of its environment to be silent; whoever has set one of these is obeyed.
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
    kind = _checked(address)
    if ray.is_initialized():
        if kind == "local" or (":" in kind and not _same(kind, ray.get_runtime_context().gcs_address)):
            raise InputError(f"cluster: this process has joined another cluster; leave it to use {address!r}")
        yield _about(ray, own=False)
        return
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    own = _join(ray, kind, workers)
    try:
        yield _about(ray, own)
    finally:
        ray.shutdown()


def ray_module() -> Any:
    """Ray, or one line that says how to install it."""
    for name, value in _QUIET.items():  # some are read when it is imported
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise InputError("--cluster needs Ray: pip install 'gqe[cluster]'") from error
    return ray


def _checked(address: object) -> str:
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
        given = os.environ.get("RAY_ADDRESS", "")
        kind = _checked(given) if given not in ("", "auto") else _started_here() or "local"
    silent = {"log_to_driver": False, "logging_level": logging.ERROR}
    logging.getLogger("ray").setLevel(logging.ERROR)
    if ":" in kind:
        _knock(kind)
        trouble = f"{kind} cannot be joined (if it asks for a token, set RAY_AUTH_MODE=token)"
        _init(ray, trouble, address=kind, **silent)
        return False
    count = max(2, os.cpu_count() or 2) if workers is None else workers
    start = {"num_cpus": count, "include_dashboard": False, **silent}
    _init(ray, "no local Ray could be started", address="local", **start)
    return True


def _started_here() -> str | None:
    """The cluster that `ray start` has made on this machine, if it still answers.

    Ray's own address="auto" would also take a cluster that another process has started for itself.
    """
    try:
        from ray._private.services import find_bootstrap_address

        address = _checked(find_bootstrap_address(None) or "")
        _knock(address)
    except (ImportError, InputError):
        return None
    return address


def _init(ray: Any, trouble: str, **settings: Any) -> None:
    try:
        ray.init(**settings)
    except Exception as error:
        raise InputError(f"cluster: {trouble}: {_first_line(error)}") from error


def _knock(address: str) -> None:
    """Refuse an address where nobody answers; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cluster: nobody answers at {address} ({reason}); start a head node with `ray start --head`,"
            " or use --cluster local"
        ) from error


def _about(ray: Any, own: bool) -> Session:
    has = ray.cluster_resources()
    nodes = sum(1 for node in ray.nodes() if node["Alive"])
    address = ray.get_runtime_context().gcs_address
    return Session(address, max(1, int(has.get("CPU", 1))), int(has.get("GPU", 0)), nodes, own)


def _same(first: str, second: str) -> bool:
    """Whether two addresses are one, whatever names their hosts have."""
    (host, _, port), (other, _, other_port) = first.rpartition(":"), second.rpartition(":")
    if port != other_port:
        return False
    try:
        return host == other or socket.gethostbyname(host) in (socket.gethostbyname(other), "127.0.0.1")
    except OSError:
        return False


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
