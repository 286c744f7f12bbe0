"""Re-ranking the results of an index by its own neighbour lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.errors import InputError
from gqe.index.snapshot import Snapshot
from gqe.methods import parse_method
from gqe.neighbors import NeighborGraph, knn
from gqe.rerank import Reranking
from gqe.rerank.base import Ranking, dropped

Array = np.ndarray[Any, Any]


class Reordering:
    """A re-ranker bound to the items of one version; it numbers only those that are there.

    Args:
        snapshot: the version.
        table: (rows, d) what is searched: the embeddings, or the augmented ones.
        reranking: which re-ranker.
        augmented: whether the table is the augmented one, whose neighbours the index does not keep.
        device: where to compute.
    """

    def __init__(
        self, snapshot: Snapshot, table: Any, reranking: Reranking, augmented: bool, device: torch.device
    ) -> None:
        reranker = reranking.make()
        width = snapshot.manifest.width
        if not augmented and reranker.graph_k > width:
            raise InputError(
                f"rerank: {reranking} reads {reranker.graph_k} neighbours an item, the index keeps {width};"
                " choose smaller settings"
            )
        self.rows = np.flatnonzero(snapshot.alive)
        self.places = np.full(len(snapshot.alive) + 1, -1, dtype=np.int64)  # the last one serves id -1
        self.places[self.rows] = np.arange(len(self.rows))
        numbers = torch.from_numpy(self.rows).to(table.device)
        database = table.index_select(0, numbers).cpu().to(torch.float32)
        if augmented:
            graph = knn(database, max(1, reranker.graph_k), device=device)
        else:
            lists = snapshot.graph.take(self.rows)
            graph = NeighborGraph(self.places[lists.ids], lists.similarities)
        self.reranker = reranker.fit(database, graph, device=device)

    @property
    def num_candidates(self) -> int:
        """How many first results of a query are looked at."""
        return self.reranker.num_candidates

    def __call__(
        self, asked: Tensor, found: NeighborGraph, count: int, allowed: Array | None, omit: Tensor | None
    ) -> NeighborGraph:
        """The first `count` results (m, R) in the order of the re-ranker, as rows of the index.

        What may not be found stays out, though the re-ranker may have brought it in.
        """
        first = NeighborGraph(self.places[found.ids], found.similarities)
        ranking = self.reranker.rerank(asked.cpu().to(torch.float32), first)
        ids = np.where(ranking.ids >= 0, self.rows[ranking.ids.clip(min=0)], -1)
        wrong = ids < 0
        if allowed is not None:
            wrong |= ~allowed[ids.clip(min=0)]
        if omit is not None:
            wrong |= ids == omit.cpu().numpy()[:, None]
        scores, ids = dropped(Ranking(ranking.scores, ids), wrong, count)
        return NeighborGraph(ids, scores)


def named(text: str) -> Reranking:
    """A re-ranker as typed: its name and settings, without an expansion."""
    chosen = parse_method(text) if isinstance(text, str) else None
    if chosen is None or chosen.then is None or chosen.name != "none" or chosen.dba:
        raise InputError(f"rerank: expected a re-ranker such as 'reciprocal', got {text!r}")
    return chosen.then
