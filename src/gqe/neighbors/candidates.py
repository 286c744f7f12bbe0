"""Exact candidates: the best rows of a table by inner product, in blocks of bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import blocks

# Rows that are not plain contiguous float32 are copied this many bytes at a time.
_CPU_BLOCK = 128 << 20
# Scores of one block of queries against one block of rows.
_GPU_SCORES = 2 << 30


class Candidates(NamedTuple):
    """Rows of a table for each query: ids (m, c) int64 (-1 missing) and similarities (m, c) float32."""

    ids: Tensor
    similarities: Tensor


# Gives the best `count` rows for a block of queries (m, d).
Engine: TypeAlias = Callable[[Tensor, int], Candidates]


def exact_engine(table: Tensor, device: torch.device) -> Engine:
    """The fastest exact engine on this device: faiss on a CPU where it is installed, else torch."""
    on_cpu_with_faiss = device.type == "cpu" and find_spec("faiss") is not None
    search = _faiss_candidates if on_cpu_with_faiss else _torch_candidates
    return lambda queries, count: search(queries, table, count)


def _faiss_candidates(queries: Tensor, table: Tensor, count: int) -> Candidates:
    import faiss

    asked = np.ascontiguousarray(queries.numpy())
    plain = table.dtype == torch.float32 and table.is_contiguous()
    parts = [slice(0, len(table))] if plain else list(blocks(len(table), table.shape[1] * 4, _CPU_BLOCK))
    best: Candidates | None = None
    for part in parts:
        block = table[part].to(torch.float32).contiguous().numpy()
        scores, ids = faiss.knn(asked, block, min(count, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
        here = Candidates(torch.from_numpy(ids) + part.start, torch.from_numpy(scores))
        best = here if best is None else _merged(best, here, count)
    assert best is not None
    return best


def _torch_candidates(queries: Tensor, table: Tensor, count: int) -> Candidates:
    best: Candidates | None = None
    for part in blocks(len(table), max(1, len(queries)) * 4, _GPU_SCORES):
        block = table[part].to(queries.device, torch.float32)
        top = torch.topk(queries @ block.T, min(count, len(block)), dim=1)
        here = Candidates(top.indices + part.start, top.values)
        best = here if best is None else _merged(best, here, count)
    assert best is not None
    return best


def _merged(first: Candidates, second: Candidates, count: int) -> Candidates:
    similarities = torch.cat([first.similarities, second.similarities], dim=1)
    top = torch.topk(similarities, min(count, similarities.shape[1]), dim=1)
    return Candidates(torch.cat([first.ids, second.ids], dim=1).gather(1, top.indices), top.values)
