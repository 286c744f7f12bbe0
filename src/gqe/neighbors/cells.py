"""Approximate neighbour lists of all items at once, cell by cell.

k-means parts the items into cells. Each item is compared with the items of its nearest cells: all that look
into a cell by one matrix product. Then the items of each cell are compared with the neighbours of their
neighbours, again by one product (the idea of NN-descent: Dong, Charikar and Li, WWW 2011), until a sample has
the wanted recall. A processor multiplies matrices many times faster than it goes through an inverted file
query by query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import blocks, rows
from gqe.neighbors.candidates import Candidates, exact_candidates, inner_products, top
from gqe.neighbors.inverted_file import train_centroids
from gqe.progress import Report

log = logging.getLogger(__name__)

# With fewer rows an inverted file is as fast.
_SMALLEST = 100_000
_SAMPLE = 512
# Cells each item looks into at first; twice as many where refining stops short of the recall.
_PROBES = 4
# Neighbours of each neighbour that a round compares with.
_FURTHER = 8
# Rows that are refined together: few enough to share most of their candidates.
_GROUP = 32
# A round that finds less than this share of what is missing is the last.
_LEAST_GAIN = 0.3
# Where more than this share of all pairs was compared in vain, comparing all of them is as fast.
_MOST_PAIRS = 1 / 16
_SCORE_BYTES = 64 << 20
# Groups of rows that are computed from the same lists.
_AT_A_TIME = 64
_CPU = torch.device("cpu")


class ApproximateLists(NamedTuple):
    """Rows near each row: (n, count) ids, the row itself among them, -1 for none; and the recall reached."""

    ids: Tensor
    recall: float

    def candidates(self, part: slice, device: torch.device) -> Candidates:
        """Those of some rows, to be scored and ranked."""
        ids = self.ids[part].to(device, torch.int64)
        return Candidates(ids, torch.zeros(ids.shape, device=device))


def approximate_lists(
    table: Tensor, count: int, recall: float, seed: int = 0, progress: Report | None = None
) -> ApproximateLists | None:
    """At least a share of the `count` nearest rows of every row, itself included.

    Args:
        table: (n, d) unit vectors, or rows of an index; read in small blocks.
        count: length of the lists.
        recall: share of the true neighbours that must be found, measured on a sample.
        seed: for k-means and the sample.
        progress: called with groups of rows done, all groups, and what is being done.

    Returns:
        None where another search serves as well: few rows, a recall of 1, no faiss, or vectors
        without clusters.
    """
    if len(table) < _SMALLEST or recall >= 1 or count >= len(table) or find_spec("faiss") is None:
        return None
    sample = _Sample(table, count, seed)
    search = _CellSearch(table, count, train_centroids(table, seed), progress)
    probes = _PROBES
    while search.compare(probes):
        reached, gained = sample.recall(search.ids), 1.0
        log.info("each item in %d of %d cells: recall %.3f", probes, len(search.centroids), reached)
        while not sample.reaches(search.ids, recall) and gained >= _LEAST_GAIN and search.refine():
            missing, reached = 1 - reached, sample.recall(search.ids)
            gained = (missing - (1 - reached)) / missing
            log.info("neighbours of neighbours: recall %.3f", reached)
        if sample.reaches(search.ids, recall):
            return ApproximateLists(search.ids, reached)
        probes *= 2
    return None


class _Sample:
    """Some rows and their true neighbours, without themselves."""

    def __init__(self, table: Tensor, count: int, seed: int) -> None:
        chosen = np.random.default_rng(seed).choice(len(table), min(_SAMPLE, len(table)), replace=False)
        self.rows = torch.from_numpy(np.sort(chosen))
        truth = exact_candidates(rows(table, self.rows, _CPU), table, count)
        self._truth = truth.ids
        self._others = self._truth != self.rows[:, None]

    def _shares(self, ids: Tensor) -> Tensor:
        found = (self._truth[:, :, None] == ids[self.rows][:, None, :]).any(dim=2) & self._others
        return found.sum(dim=1) / self._others.sum(dim=1)

    def recall(self, ids: Tensor) -> float:
        """Mean share of the true neighbours in lists (n, count)."""
        return float(self._shares(ids).mean())

    def reaches(self, ids: Tensor, recall: float) -> bool:
        """Whether the mean is above a recall by its standard error."""
        shares = self._shares(ids)
        return float(shares.mean() - shares.std() / len(shares) ** 0.5) >= recall


class _CellSearch:
    """Lists (n, count) that become better.

    Args:
        table: (n, d).
        count: length of the lists.
        centroids: (cells, d).
        progress: see `approximate_lists`.
    """

    def __init__(self, table: Tensor, count: int, centroids: Tensor, progress: Report | None = None) -> None:
        self.table, self.centroids, self._progress = table, centroids, progress
        self.ids = torch.full((len(table), count), -1, dtype=torch.int32)
        self._pairs_left = int(_MOST_PAIRS * len(table) ** 2)
        self._groups: list[Tensor] = []

    def compare(self, probes: int) -> bool:
        """Begin with the best of the cells that each row looks into; False where that is too many pairs."""
        if probes > len(self.centroids):
            return False
        probed = self._nearest_cells(probes)
        cells = _members(probed[:, :1], len(self.centroids))
        visitors = _members(probed, len(self.centroids))
        if not self._spend(sum(len(a) * len(b) for a, b in zip(cells, visitors, strict=True))):
            return False
        self._groups = [group for members in cells for group in self._divide(members)]
        self.ids.fill_(-1)
        scores = torch.full(self.ids.shape, float("-inf"))
        pairs = list(zip(visitors, cells, strict=True))
        for results in self._in_threads(lambda pair: list(self._best(*pair)), pairs, "neighbours in cells"):
            for some, found in results:
                joined = torch.cat([scores[some], found.similarities], dim=1)
                names = torch.cat([self.ids[some], found.ids.to(torch.int32)], dim=1)
                best = torch.topk(joined, self.ids.shape[1], dim=1)
                scores[some], self.ids[some] = best.values, names.gather(1, best.indices)
        return True

    def refine(self) -> bool:
        """Replace the lists of each group by the best of the neighbours of all its rows, and of theirs."""
        for results in self._in_threads(self._refined, self._groups, "neighbours of neighbours"):
            for some, ids, compared in results:
                self.ids[some] = ids
                self._pairs_left -= compared
            if self._pairs_left < 0:
                return False
        return True

    def _refined(self, members: Tensor) -> list[tuple[Tensor, Tensor, int]]:
        """Rows of a group, their new lists, and how many pairs were compared."""
        near = torch.unique(self.ids[members]).to(torch.int64)
        near = near[near >= 0]
        further = self.ids[near, :_FURTHER].reshape(-1).to(torch.int64)
        candidates = torch.unique(torch.cat([near, further]))
        candidates = candidates[candidates >= 0]
        result = []
        for some, found in self._best(members, candidates):
            missing = max(0, self.ids.shape[1] - found.ids.shape[1])
            ids = torch.nn.functional.pad(found.ids.to(torch.int32), (0, missing), value=-1)
            result.append((some, ids, len(some) * len(candidates)))
        return result

    def _in_threads(
        self, work: Callable[[Any], list[Any]], items: Sequence[Any], what: str
    ) -> Iterator[list[Any]]:
        """The results of some items at a time, each computed by one thread: products are too small to share.

        How many are computed before the results are used does not depend on the number of threads, so neither
        do the lists.
        """
        threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                for start in range(0, len(items), _AT_A_TIME):
                    if self._progress is not None:
                        self._progress(start, len(items), what)
                    done = list(pool.map(work, items[start : start + _AT_A_TIME]))
                    yield [line for lines in done for line in lines]
        finally:
            torch.set_num_threads(threads)  # for threads that begin later

    def _divide(self, members: Tensor) -> list[Tensor]:
        """Groups of rows that are near each other: around some of them."""
        if not len(members):
            return []
        near = rows(self.table, members, _CPU)
        own = inner_products(near, near[::_GROUP]).argmax(dim=1)
        return [members[group] for group in _members(own[:, None], len(near[::_GROUP])) if len(group)]

    def _spend(self, pairs: int) -> bool:
        """Whether so many pairs may still be compared."""
        self._pairs_left -= pairs
        return self._pairs_left >= 0

    def _nearest_cells(self, probes: int) -> Tensor:
        """(n, probes) the cells nearest to each row, nearest first."""
        found = torch.empty((len(self.table), probes), dtype=torch.int32)
        for part in blocks(len(self.table), len(self.centroids) * 4, _SCORE_BYTES):
            scores = inner_products(self.table[part].to(torch.float32), self.centroids)
            found[part] = top(scores, probes).ids.to(torch.int32)
        return found

    def _best(self, queries: Tensor, candidates: Tensor) -> Iterator[tuple[Tensor, Candidates]]:
        """The best candidates of each query, both row numbers, a block of queries at a time."""
        if not len(candidates):
            return
        others = rows(self.table, candidates, _CPU)
        for part in blocks(len(queries), len(candidates) * 4, _SCORE_BYTES):
            scores = inner_products(rows(self.table, queries[part], _CPU), others)
            found = top(scores, self.ids.shape[1])
            yield queries[part], Candidates(candidates[found.ids], found.similarities)


def _members(probed: Tensor, cells: int) -> list[Tensor]:
    """Of each cell the rows that look into it, rising."""
    order = torch.argsort(probed.reshape(-1), stable=True) // probed.shape[1]
    counts = torch.bincount(probed.reshape(-1), minlength=cells)
    return [
        order[end - size : end] for size, end in zip(counts.tolist(), counts.cumsum(0).tolist(), strict=True)
    ]
