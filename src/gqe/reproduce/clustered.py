"""An approximate neighbour graph of a huge table: items are dealt into lists, near lists are compared.

An inverted file as `gqe.neighbors` has one reads its lists anew for each query and needs all vectors in
memory as float32. Where every item is a query this is wasteful: items of one list look at the same lists.
So each list is compared as a whole with the lists nearest to it, one matrix product each. Rows are read from
the mapped file; beside it only numbers of lists are held.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import blocks
from gqe.formats.atomic import replacing
from gqe.neighbors import NeighborGraph
from gqe.neighbors.candidates import Candidates, exact_candidates, rough_products, top
from gqe.neighbors.rescoring import Rescorer

log = logging.getLogger(__name__)

Ids = np.ndarray[Any, np.dtype[np.int64]]
# With fewer items the exact graph is made as soon.
SMALLEST = 20_000
_SAMPLE, _ROUNDS, _POINTS_A_LIST = 256, 8, 32
_BLOCK_BYTES = 128 << 20
# Rows that are read at a time: they stay in a cache until they are converted.
_READ = 512
# Candidates beyond k: what rough products rank a little too low is among them.
_SPARE = 16


def lists_for(n: int) -> int:
    """Into how many lists n items are dealt."""
    return max(1, int(2 * np.sqrt(n)))


class Clustered:
    """Items of a table in lists around centres.

    Args:
        table: (n, d) checked embeddings, also memory-mapped.
        list_of: (n,) the list of each item.
        near: (lists, lists) for each list all of them, nearest first, beginning with itself.
        breadth: with how many of them it is compared.
    """

    def __init__(self, table: Tensor, list_of: Ids, near: Ids, breadth: int = 1) -> None:
        self.table, self.list_of, self.near, self.breadth = table, list_of, near, breadth
        self._order = np.argsort(list_of, kind="stable")
        self._ends = np.cumsum(np.bincount(list_of, minlength=len(near)))
        # Written over again and again: to touch new memory for each block takes longer than to fill it.
        self._read = torch.empty((0, table.shape[1]))

    @classmethod
    def made(cls, table: Tensor, k: int, recall: float, *, seed: int = 0) -> Clustered:
        """Deal the items into lists, and find how many of these the recall of k neighbours needs."""
        count = lists_for(len(table))
        rng = np.random.default_rng(seed)
        chosen = np.sort(rng.choice(len(table), min(len(table), count * _POINTS_A_LIST), replace=False))
        centres = _k_means(_rows(table, chosen), rng.permutation(len(chosen))[:count])
        lists = torch.cat([_nearest(table[part].float(), centres) for part in _parts(table)])
        similar = centres @ centres.T
        similar.fill_diagonal_(torch.inf)  # a list is the nearest to itself
        near = torch.sort(similar, dim=1, descending=True, stable=True).indices
        result = cls(table, lists.numpy(), near.numpy())
        result.widen(k, recall, rng)
        return result

    @classmethod
    def in_order(cls, table: Tensor, size: int) -> Clustered:
        """Lists of `size` items as they stand, each compared with all: for timing."""
        list_of = np.arange(len(table)) // size
        count = int(list_of[-1]) + 1
        return cls(table, list_of, np.tile(np.arange(count), (count, 1)), count)

    @classmethod
    def kept(cls, path: Path, table: Tensor, k: int, recall: float) -> Clustered:
        """Those of a file, so that a stopped run goes on with the same lists; made if it is not there."""
        if not path.is_file():
            made = cls.made(table, k, recall)
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as beside, beside.open("wb") as file:
                np.savez(file, list_of=made.list_of, near=made.near, breadth=made.breadth)
            return made
        with np.load(path) as there:
            return cls(table, there["list_of"], there["near"], int(there["breadth"]))

    def __len__(self) -> int:
        return len(self.near)

    def parts(self, size: int) -> list[Ids]:
        """All items, list after list, in parts of whole lists with about `size` items each."""
        result, lists = [], []
        for number in range(len(self)):
            lists.append(self.members(number))
            if sum(map(len, lists)) >= size or number == len(self) - 1:
                result.append(np.concatenate(lists))
                lists = []
        return [part for part in result if len(part)]

    def members(self, number: int) -> Ids:
        """The items of a list, in rising order."""
        start = int(self._ends[number - 1]) if number else 0
        return np.asarray(self._order[start : self._ends[number]])

    def neighbors(self, part: Ids, k: int) -> NeighborGraph:
        """The k neighbours of the items of a part, in its order."""
        rescorer = Rescorer(self.table, k, exact=False)
        found = []
        for number in dict.fromkeys(self.list_of[part].tolist()):
            own = self.members(number)
            asked = _rows(self.table, own)
            candidates = self._candidates(asked, number, k + _SPARE + 1)
            found.append(rescorer.rank(asked, candidates, torch.from_numpy(own)))
        ids, similarities = (torch.cat(each).numpy() for each in zip(*found, strict=True))
        return NeighborGraph(ids, similarities)

    def widen(self, k: int, recall: float, rng: np.random.Generator) -> float:
        """Compare with as many lists as the recall needs on a sample of items; what it reached."""
        chosen = np.sort(rng.choice(len(self.table), min(_SAMPLE, len(self.table)), replace=False))
        truth = exact_candidates(_rows(self.table, chosen), self.table, k + 1).ids.numpy()
        while True:
            shares = []
            for item, true in zip(chosen, truth, strict=True):
                near = self.near[self.list_of[item], : self.breadth]
                shares.append(float(np.isin(self.list_of[true[true != item][:k]], near).mean()))
            reached, error = float(np.mean(shares)), float(np.std(shares)) / len(shares) ** 0.5
            if reached - error >= recall or self.breadth >= len(self):
                log.info("%d lists, each compared with %d: recall %.3f", len(self), self.breadth, reached)
                return reached
            self.breadth = min(len(self), self.breadth + max(1, self.breadth // 8))

    def _candidates(self, asked: Tensor, number: int, count: int) -> Candidates:
        others = np.concatenate([self.members(int(near)) for near in self.near[number, : self.breadth]])
        found: list[Candidates] = []
        for part in blocks(len(others), max(len(asked), self.table.shape[1]) * 4, _BLOCK_BYTES):
            here = others[part]
            if len(self._read) < len(here):
                self._read = torch.empty((len(here), self.table.shape[1]))
            best = top(rough_products(asked, _rows(self.table, here, self._read)), count)
            found.append(Candidates(torch.from_numpy(here)[best.ids], best.similarities))
        ids = torch.cat([each.ids for each in found], dim=1)
        similarities = torch.cat([each.similarities for each in found], dim=1)
        kept = torch.topk(similarities, min(count, similarities.shape[1]), dim=1)
        return Candidates(ids.gather(1, kept.indices), kept.values)


def _k_means(points: Tensor, first: Ids) -> Tensor:
    """(lists, d) unit centres of points (m, d), from the points of the given numbers on."""
    centres = points[torch.from_numpy(first)].clone()
    for _ in range(_ROUNDS):
        nearest = torch.cat([_nearest(points[part], centres) for part in _parts(points)])
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        lengths = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
        # A centre that nobody is near to stays where it is.
        centres = torch.where(lengths > 0, sums / lengths.clamp(min=1e-12), centres)
    return centres


def _nearest(rows: Tensor, centres: Tensor) -> Tensor:
    return (rows @ centres.T).argmax(dim=1)


def _rows(table: Tensor, ids: Ids, room: Tensor | None = None) -> Tensor:
    """(m, d) float32 rows, in the first rows of `room` if it is given."""
    result = torch.empty((len(ids), table.shape[1])) if room is None else room[: len(ids)]
    for start in range(0, len(ids), _READ):
        wanted = torch.from_numpy(ids[start : start + _READ])
        result[start : start + _READ] = table.index_select(0, wanted)
    return result


def _parts(table: Tensor) -> Iterator[slice]:
    return blocks(len(table), table.shape[1] * 4, _BLOCK_BYTES)
