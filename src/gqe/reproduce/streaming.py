"""A benchmark whose database does not fit into memory as float32: searched block by block.

For query expansion only the items within L hops of the queries are computed (`gqe.reproduce.nearby`). For
database-side augmentation the graph and every level go chunk by chunk into files beside the results, so that
a stopped run goes on where it was; they are removed when the number is measured.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators import Aggregator, Attention
from gqe.contrast import read_of_query
from gqe.datasets.base import Benchmark
from gqe.embeddings import as_tensor
from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench, Outcome, all_scores
from gqe.evaluation.protocol import evaluate
from gqe.hierarchy import Hierarchy
from gqe.methods import Method
from gqe.neighbors import NeighborGraph
from gqe.neighbors.search import nearest
from gqe.reproduce import clustered, nearby
from gqe.reproduce.clustered import Clustered
from gqe.reproduce.filed import CHUNK, filled, finished, removed, spent

log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
_LARGE_FILE = 2 << 30
# At least so many neighbours, so that one graph serves nearly every row of a table.
GRAPH_K = 48


class StreamedBench:
    """What `Bench` is for a small benchmark.

    Args:
        benchmark: its database may be a memory-mapped float16 table.
        data: checksum of the benchmark, which tells files of one from those of another.
        scratch: folder for graph and levels.
        device: "auto", "cpu", "cuda"...
        recall: neighbour lists of database items may be approximate, with at least this recall; on a CPU
            only, a GPU has exact ones sooner.
        bfloat16: augment with encoders in bfloat16.
        progress: told how many rows of a file are done.

    Attributes:
        searched: the table where it is searched: in a GPU's memory if it fits there.
        earlier_seconds: what stopped runs had spent on the files of the last method.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        data: str,
        scratch: Path,
        *,
        device: str | torch.device = "auto",
        recall: float | None = None,
        bfloat16: bool = False,
        progress: Progress | None = None,
    ) -> None:
        checked = Bench(benchmark, device=device)
        self.name, self.truth, self.device = checked.name, checked.truth, checked.device
        self.table, self.queries = checked.database, checked.queries
        self._data, self._scratch, self._progress = data, scratch, progress
        self.recall, self._bfloat16 = recall, bfloat16
        self._neighbors: NeighborGraph | None = None
        self.earlier_seconds = 0.0
        # Moved once: a search would move it for every chunk, and a level would gather in the host's memory.
        self.searched = _moved(self.table, self.device)

    def run(self, method: Method, *, database_stack: Sequence[Aggregator] | None = None) -> Outcome:
        """Expand, search and judge with one method."""
        if method.then is not None:
            raise InputError(f"{method}: re-ranking a streamed database is not supported; leave it out")
        if method.rounds > 1:
            raise InputError(f"{method}: a streamed database is expanded in one round; leave rounds out")
        started, self.earlier_seconds = time.perf_counter(), 0.0
        stack, contrast = method.stack(), method.contrast
        graph_k = max(aggregator.graph_k for aggregator in stack)
        wide = read_of_query(graph_k, contrast)
        if self._neighbors is None or self._neighbors.k < wide:
            self._neighbors = self._nearest(self.queries, wide)
        queries = nearby.expanded(
            stack,
            self.table,
            self.queries,
            self._neighbors,
            self._lists_of(graph_k),
            device=self.device,
            contrast=contrast,
        )
        if method.dba:
            levels = list(database_stack or method.database_stack(stack))
            scores = self._augmented_scores(queries, levels, str(method))
        else:
            scores = all_scores(queries, self.table, self.device)
        judged = evaluate(scores, self.truth)
        log.info("%s: %s mAP %.2f", self.name, method, judged.main)
        return Outcome(method, judged, None, time.perf_counter() - started)

    def _augmented_scores(self, queries: Tensor, stack: list[Aggregator], label: str) -> np.ndarray[Any, Any]:
        graph = self._graph(max(aggregator.graph_k for aggregator in stack))
        stack = self.encoding(stack)
        hierarchy = _Filed(stack, self.searched, graph, device=self.device)
        parameters = _stack_checksum(stack)
        hierarchy.path = self._scratch / f"levels-{self._data}-{parameters}"
        hierarchy.progress = self._progress
        log.info("%s: levels of %s in %s", self.name, label, hierarchy.path.parent)
        levels = [hierarchy.level_path(level) for level in range(1, len(stack) + 1)]
        self.earlier_seconds += sum(map(spent, levels))
        scores = all_scores(queries, hierarchy.augment(), self.device)
        for path in levels:
            removed(path)
        return scores

    def encoding(self, stack: Sequence[Aggregator]) -> list[Aggregator]:
        """The stack that augments: encoders of the paper's kind in bfloat16 if that is wanted.

        They encode in the type of their weights; cosines, weights and sums stay float32 all the same.
        """
        if not self._bfloat16:
            return list(stack)
        return [
            deepcopy(level).to(torch.bfloat16) if isinstance(level, Attention) else level for level in stack
        ]

    @property
    def approximate(self) -> bool:
        """Whether lists of database items are; a GPU, and a small table, has exact ones sooner."""
        wanted = self.recall is not None and self.recall < 1
        return wanted and self.device.type == "cpu" and len(self.table) >= clustered.SMALLEST

    def graph_file(self, k: int) -> tuple[Path, int]:
        """Where the neighbours of all items are or will be, and how many of each; a larger K serves, too."""
        kind = f"-recall{self.recall:g}" if self.approximate else ""
        k = min(max(k, GRAPH_K), len(self.table) - 1)
        there = [
            int(p.name.split("-")[-2]) for p in self._scratch.glob(f"graph-{self._data}{kind}-k-*-done.json")
        ]
        k = min((each for each in there if each >= k), default=k)
        return self._scratch / f"graph-{self._data}{kind}-k-{k}", k

    def _graph(self, k: int) -> NeighborGraph:
        """The neighbours of all items, from files."""
        path, k = self.graph_file(k)
        shape = (len(self.table), k)
        shapes: dict[str, Any] = {"ids": (shape, np.int32), "similarities": (shape, np.float32)}
        lists = None
        missing = not finished(path, len(self.table))
        if missing:
            self.earlier_seconds += spent(path)
        if self.approximate and missing:
            if self._progress is not None:
                self._progress(0, len(self.table), "lists")
            lists = Clustered.kept(Path(f"{path}-lists.npz"), self.table, k, self.recall or 1.0)

        def rows(part: Any) -> dict[str, np.ndarray[Any, Any]]:
            if lists is None:
                found = self._nearest(self.table[part], k, torch.arange(part.start, part.stop))
            else:
                found = lists.neighbors(part, k)
            return {"ids": found.ids, "similarities": found.similarities}

        files = filled(path, shapes, rows, self._progress, None if lists is None else lists.parts(CHUNK))
        return NeighborGraph(files["ids"], files["similarities"])

    def _lists_of(self, k: int) -> nearby.Finder:
        """Neighbours of single items: from the graph where it is approximate or there already."""
        path, _ = self.graph_file(k)
        if self.approximate or finished(path, len(self.table)):

            def listed(items: nearby.Ids) -> NeighborGraph:
                graph = self._graph(k)
                return NeighborGraph(graph.ids[items], graph.similarities[items])

            return listed
        return lambda items: self._nearest(
            self.table.index_select(0, torch.from_numpy(items).to(self.table.device)),
            k,
            torch.from_numpy(items),
        )

    def _nearest(self, asked: Tensor, k: int, excluded: Tensor | None = None) -> NeighborGraph:
        return nearest(self.searched, asked, k, excluded, device=self.device)


class _Filed(Hierarchy):
    """A hierarchy whose levels are files, of the database's own type or in half precision if they are large.

    Attributes:
        path: beginning of their names.
        progress: told how many rows are done.
    """

    path: Path
    progress: Progress | None = None

    def level_path(self, i: int) -> Path:
        return self.path.with_name(f"{self.path.name}-{i}")

    def level(self, i: int) -> Tensor:
        """(n, d) embeddings of the database after the first i aggregators."""
        while len(self._levels) <= i:
            made, below = len(self._levels), self._levels[-1]
            dtype = np.float16 if _halved(self.database) else np.float32

            def rows(part: slice, made: int = made, below: Tensor = below) -> dict[str, Any]:
                graph = NeighborGraph(self.graph.ids[part], self.graph.similarities[part])
                parts = self._aggregate(made - 1, below[part], self.database[part], graph)
                return {"rows": torch.cat([each.embeddings for each in parts]).cpu().numpy()}

            shape = {"rows": (tuple(self.database.shape), dtype)}
            made_rows = filled(self.level_path(made), shape, rows, self.progress)["rows"]
            self._levels.append(_moved(as_tensor(made_rows), self.device))
        return self._levels[i]


def _moved(table: Tensor, device: torch.device) -> Tensor:
    """The table in the memory of a GPU if it takes at most half of what is free there, or as it is."""
    fits = device.type == "cuda" and table.nbytes < torch.cuda.mem_get_info(device)[0] // 2
    return table.to(device) if fits else table


def _halved(database: Tensor) -> bool:
    """Whether levels are stored as float16: what is lost is far below what separates two items."""
    return database.dtype == torch.float16 or database.numel() * 4 > _LARGE_FILE


def _stack_checksum(stack: Sequence[Aggregator]) -> str:
    digest = hashlib.blake2b(repr([level.settings() for level in stack]).encode(), digest_size=8)
    for level in stack:
        digest.update(f"{type(level).__name__} {[p.dtype for p in level.parameters()][:1]}".encode())
        for name, value in level.state_dict().items():
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(value.detach().cpu().float().numpy()).data)
    return digest.hexdigest()
