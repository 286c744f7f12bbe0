"""All tests here need Ray, which is an extra of the package."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes beside the head, joined."""
    from cluster.nodes import cluster_of
    from gqe.cluster.session import connect

    with cluster_of(nodes=2) as made, connect(made.address):
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what needs Ray where it is not installed."""
    if find_spec("ray") is not None:
        return
    skip = pytest.mark.skip(reason="Ray is not installed: pip install 'gqe[cluster]'")
    for item in items:
        if "cluster" in item.path.parts and "without_ray" not in item.name:
            item.add_marker(skip)
