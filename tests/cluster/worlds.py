"""What the tests of clusters compare: an index built by many with the same built by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gqe.index import Index, verify
from gqe.index.manifest import BUILDING
from index.worlds import stacks, wide_vectors

N, DIM = 700, 6


def table() -> np.ndarray:
    """(N, DIM) vectors with copies within a shard and across shards."""
    made = wide_vectors(N, dim=DIM)
    made[[80, 81, 600]] = made[5]
    return made


def queries() -> np.ndarray:
    """(8, DIM)."""
    return wide_vectors(8, seed=1, dim=DIM)


def build_whole(path: Path) -> Index:
    """The index of `table`, built by this process."""
    return Index.build(table(), stacks()["affinity"], path, dba=True, device="cpu")


def assert_same(path: Path, whole: Index) -> None:
    """Lists bit for bit, levels and answers to rounding, and nothing left of the work."""
    assert verify(path) == []
    parts = Index.open(path, device="cpu")
    expected, found = (index._snapshot.graph.block(0, N) for index in (whole, parts))
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.similarities, expected.similarities)
    assert set(parts._snapshot.levels) == set(whole._snapshot.levels) == {"level-1", "level-2"}
    for name, level in whole._snapshot.levels.items():
        assert float((parts._snapshot.levels[name][:] - level[:]).abs().max()) <= 1e-5
    assert torch.equal(parts._snapshot.vectors[:], whole._snapshot.vectors[:])
    np.testing.assert_array_equal(parts.search(queries(), 6).ids, whole.search(queries(), 6).ids)
    left = [item.name for item in path.iterdir() if item.name.startswith((BUILDING, "."))]
    assert left == []
