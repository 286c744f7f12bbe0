"""A cluster of several Ray node processes on this machine."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gqe.cluster.session import ray_module


@contextmanager
def cluster_of(nodes: int, cpus: int = 1) -> Iterator[Any]:
    """A cluster whose head runs no task, so that every other node may be killed."""
    ray_module()  # sets what keeps Ray silent
    from ray.cluster_utils import Cluster

    settings = {"include_dashboard": False, "object_store_memory": 100 << 20}
    # In a folder of its own, or it would be the cluster of this machine for everybody; the names of sockets
    # in it have to be short.
    with (
        tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("RAY_TMPDIR", folder)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **settings})
        try:
            for _ in range(nodes):
                cluster.add_node(num_cpus=cpus, object_store_memory=100 << 20)
            cluster.wait_for_nodes()
            yield cluster
        finally:
            cluster.shutdown()


def workers_of(node: Any) -> list[int]:
    """The processes of a node that run tasks now."""
    raylet = node.all_processes["raylet"][0].process.pid
    children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    found = []
    for child in children:
        try:
            title = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::") and not title.startswith((b"ray::IDLE", b"ray::Dash", b"ray::Runtime")):
            found.append(int(child))
    return found


def kill(process: int) -> None:
    """As the system does when memory runs out."""
    os.kill(process, signal.SIGKILL)
