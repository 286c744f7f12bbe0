"""Approximate candidates: faiss's inverted file, probed as widely as the wanted recall needs.

It adds no dependency and makes a graph of 100,000 items with a recall of 0.95 in less time than faiss's HNSW
(benchmarks/knn.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import blocks
from gqe.errors import InputError
from gqe.neighbors.candidates import Candidates, Engine

log = logging.getLogger(__name__)

# With fewer items or fewer queries than these an exact search is as fast: building the index costs about as
# much as searching exactly for this many queries, whatever the size of the database.
SMALLEST = 20_000
FEWEST_QUERIES = 10_000
# Lists probed in the first trial of `find_breadth`.
FIRST_PROBES = 4
_SAMPLE = 256
_TRAINING_POINTS_PER_LIST = 50


def inverted_file_engine(
    table: Tensor, queries: Tensor, count: int, recall: float, exact: Engine, seed: int
) -> tuple[Engine, float] | None:
    """An engine that reaches the recall on a sample of the queries, and the recall it reached.

    Returns None where the exact search serves better: few items or queries, no faiss, a GPU, or recall 1.
    """
    if len(table) < SMALLEST or len(queries) < FEWEST_QUERIES:
        return None
    if find_spec("faiss") is None or recall >= 1 or table.device.type != "cpu":
        return None
    index = build_inverted_file(table, "Flat", seed)
    sample = torch.from_numpy(
        np.random.default_rng(seed).choice(len(queries), min(_SAMPLE, len(queries)), replace=False)
    )
    sample_queries = queries[sample].to(torch.float32)
    truth = exact(sample_queries, count).ids.numpy()

    def engine(block: Tensor, wanted: int) -> Candidates:
        scores, ids = index.search(np.ascontiguousarray(block.cpu().numpy()), wanted)
        return Candidates(torch.from_numpy(ids).to(block.device), torch.from_numpy(scores).to(block.device))

    def search(probes: int) -> np.ndarray[Any, Any]:
        index.nprobe = probes
        return engine(sample_queries, count).ids.numpy()

    index.nprobe, reached = find_breadth(search, list(truth), recall, FIRST_PROBES, index.nlist)
    log.info("inverted file: %d lists, %d probed, recall %.3f", index.nlist, index.nprobe, reached)
    return engine, reached


def build_inverted_file(table: Any, codes: str, seed: int) -> Any:
    """A faiss inverted file over all rows of a table.

    Args:
        table: (n, d) tensor, or rows of an index.
        codes: how faiss stores vectors, as in its index factory: "Flat", "SQfp16", "PQ16".
        seed: for k-means.
    """
    index = _train(table, codes, seed)
    add_rows(index, table)
    return index


def train_centroids(table: Any, seed: int) -> Tensor:
    """(cells, d) the centroids that an inverted file over all rows of a table would have."""
    index = _train(table, "Flat", seed)
    return torch.from_numpy(index.quantizer.reconstruct_n(0, index.nlist))


def _train(table: Any, codes: str, seed: int) -> Any:
    """An empty inverted file whose centroids are those of the rows of a table."""
    faiss = load_faiss()
    n, d = table.shape
    lists = int(2 ** np.round(np.log2(3.2 * np.sqrt(n))))
    index = faiss.index_factory(d, f"IVF{lists},{codes}", faiss.METRIC_INNER_PRODUCT)
    if codes == "SQfp16":
        index.by_residual = False
    index.cp.seed, index.cp.niter = seed % (1 << 30) + 1, 10
    index.cp.max_points_per_centroid = _TRAINING_POINTS_PER_LIST
    chosen = np.random.default_rng(seed).choice(n, min(n, lists * _TRAINING_POINTS_PER_LIST), replace=False)
    index.train(table[torch.from_numpy(np.sort(chosen))].to(torch.float32).numpy())
    return index


def add_rows(index: Any, table: Any) -> None:
    """Add all rows of a table to a faiss index, a block at a time."""
    for part in blocks(len(table), table.shape[1] * 4, 64 << 20):
        index.add(np.ascontiguousarray(table[part].to(torch.float32).numpy()))


def find_breadth(
    search: Callable[[int], np.ndarray[Any, Any]],
    truth: Sequence[np.ndarray[Any, Any]],
    recall: float,
    first: int,
    most: int,
) -> tuple[int, float]:
    """The smallest breadth that reaches a recall on a sample, and the recall it reached there.

    The breadth grows in small steps, since each one saves as much in every later search, until the mean
    recall is above the wanted one by its standard error.

    Args:
        search: gives the ids (m, k) that a search of some breadth (lists probed, efSearch) finds.
        truth: of each of the m queries, the ids of its true neighbours.
        recall: wanted share of the true neighbours.
        first: the breadth to begin with.
        most: the largest breadth.
    """
    breadth = first
    while True:
        shares = [np.isin(true, found).mean() for true, found in zip(truth, search(breadth), strict=True)]
        reached, error = float(np.mean(shares)), float(np.std(shares)) / len(shares) ** 0.5
        if reached - error >= recall or breadth >= most:
            return breadth, reached
        breadth = min(most, breadth + max(2, breadth // 8))


def load_faiss() -> Any:
    """The module, imported when first needed: the core install works without it."""
    try:
        return import_module("faiss")
    except ImportError as error:
        raise InputError("approximate search needs faiss: pip install faiss-cpu") from error
