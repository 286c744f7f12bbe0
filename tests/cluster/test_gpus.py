"""Tasks and actors hold GPUs, and only on nodes that have them. Ray takes our word for how many there are."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cluster import worlds
from cluster.nodes import cluster_of
from gqe.cluster.building import build_index
from gqe.cluster.serving import ShardedServing, gpu_share
from gqe.cluster.session import Session, TaskRunner, connect, ray_module
from gqe.errors import InputError
from gqe.index import Index
from index.worlds import stacks

GPUS = 2


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with cluster_of(nodes=1) as made:
        made.add_node(num_cpus=1, num_gpus=GPUS, object_store_memory=100 << 20)
        made.wait_for_nodes()
        with connect(made.address) as joined:
            yield joined


def visible(runner: TaskRunner, count: int) -> list[str]:
    """What each of some tasks sees of GPUs."""
    task, seen = runner.task(os.getenv), list[str]()

    def chain() -> Any:
        seen.append((yield task.remote("CUDA_VISIBLE_DEVICES", "none")))

    runner.run(chain() for _ in range(count))
    return seen


def test_a_task_holds_one_gpu(session: Session) -> None:
    ray = ray_module()
    assert session.gpus == GPUS
    runner = TaskRunner(ray, session, "cuda", "here")
    assert runner.workers == GPUS
    assert {*visible(runner, 12)} <= {"0", "1"}
    assert {*visible(TaskRunner(ray, session, "cpu", "here"), 4)} <= {"none", ""}


@pytest.mark.parametrize("actors", [1, 3])
def test_the_actors_of_two_versions_find_room(session: Session, actors: int) -> None:
    ray = ray_module()
    share = gpu_share(actors, GPUS)
    made = [ray.remote(Counter).options(num_cpus=0, num_gpus=share).remote("abc") for _ in range(2 * actors)]
    assert ray.get([each.total.remote() for each in made], timeout=60) == [3] * 2 * actors


@pytest.mark.slow(reason="a task that fails is tried again by new processes, one after another")
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use a GPU here")
def test_a_gpu_that_torch_cannot_use_is_named(session: Session, tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", worlds.table())
    how: dict[str, Any] = {"shards": 2, "cluster": "auto"}
    said = "device: Ray counts a GPU on node .* that torch cannot use there; .* use --device cpu"
    with pytest.raises(InputError, match=said):
        build_index(tmp_path / "vectors.npy", stacks()["affinity"], tmp_path / "index", **how)
    taken = build_index(
        tmp_path / "vectors.npy", stacks()["affinity"], tmp_path / "index", device="cpu", **how
    )
    assert (taken["device"], taken["files_taken_over"] > 0) == ("cpu", True)
    with pytest.raises(InputError, match=said), ShardedServing(tmp_path / "index"):
        pass
    # On a node without GPUs, too, and each of them a share of the processor only.
    with ShardedServing(tmp_path / "index", device="cpu", replicas=2) as serving:
        found = serving.search(worlds.queries(), 5)
    expected = Index.open(tmp_path / "index", device="cpu").search(worlds.queries(), 5)
    np.testing.assert_array_equal(found.ids, expected.ids)
