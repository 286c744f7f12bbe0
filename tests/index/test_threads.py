"""Several threads search an index whose levels are out of date."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from gqe.index import Index, levels
from gqe.index.tables import Piece, Rows
from gqe.row_cache import RowCache
from index.worlds import stacks, vectors


@pytest.mark.parametrize("cache_bytes", [256 << 20, 40 * 6 * 4])
def test_outdated_rows_are_right_whoever_computes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_bytes: int
) -> None:
    monkeypatch.setattr(levels, "_CACHE_BYTES", cache_bytes)
    append = RowCache._append

    def append_slowly(cache: RowCache, rows: tuple[torch.Tensor, ...]) -> None:
        append(cache, rows)
        time.sleep(0.001)  # another thread takes its turn before this one notes where its rows are

    monkeypatch.setattr(RowCache, "_append", append_slowly)
    index = Index.build(vectors(400), stacks()["affinity"], tmp_path / "index", device="cpu")
    index.add(vectors(150, seed=3))
    source = Index.open(index.path, device="cpu")._target.levels.query
    expected = source.rows(1, torch.arange(len(source)))
    shared = Index.open(index.path, device="cpu")._target.levels.query
    rng = np.random.default_rng(0)
    wanted = [torch.from_numpy(rng.integers(len(source), size=60)) for _ in range(60)]
    with ThreadPoolExecutor(8) as threads:
        for ids, rows in zip(wanted, threads.map(lambda ids: shared.rows(1, ids), wanted), strict=True):
            torch.testing.assert_close(rows, expected[ids], rtol=0, atol=1e-6)


def test_blocks_across_files_are_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread replaces the block that was joined last between any two looks at it."""
    content = np.arange(80, dtype=np.uint8).reshape(40, 2)
    rows = Rows(40, 2, [Piece(content[:20], 0), Piece(content[20:], 20)])
    blocks = itertools.cycle(((start, start + 10), content[start : start + 10]) for start in (15, 16))
    monkeypatch.setattr(Rows, "_last_block", property(lambda _: next(blocks), lambda *_: None), raising=False)
    for _ in range(4):
        np.testing.assert_array_equal(rows.block(15, 25), content[15:25])
