"""A benchmark whose database does not fit into memory as float32: it is measured with indexes on disk.

One index holds the vectors, memory-mapped, and the neighbour lists. Each method that reads lists of database
items is an index of its own over the same files (`Index.with_expander`), which is removed when the number is
measured. Building an index continues where a stopped run was.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gqe.aggregators import Aggregator, Attention, Mean
from gqe.datasets.base import Benchmark
from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench, MethodResult
from gqe.evaluation.ground_truth import LabelGroundTruth
from gqe.evaluation.protocol import evaluate
from gqe.formats.atomic import atomic_path
from gqe.index import Index
from gqe.index.manifest import MANIFEST
from gqe.methods import Method
from gqe.models import Expander

log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
# At least so many neighbours, so that one graph serves nearly every row of a table.
GRAPH_K = 48
# A database that takes more than this as float32 is stored in float16.
_LARGE_BYTES = 2 << 30
# Seconds between two notes of the time a method took so far.
_NOTE_EVERY = 2.0


class StreamedBench:
    """What `Bench` is for a small benchmark.

    Args:
        benchmark: its database may be a memory-mapped float16 table.
        data: checksum of the benchmark, part of the names of its files.
        scratch: folder for the indexes.
        device: "auto", "cpu", "cuda"...
        recall: neighbour lists of database items may be approximate, with at least this recall; on a CPU
            only, a GPU computes exact ones sooner.
        bfloat16: augment with encoders in bfloat16.
        progress: called with rows done, rows in all, and what is computed.

    Attributes:
        table: (n, d) the database.
        earlier_seconds: what stopped runs had spent on the last method.
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
        self._bench = Bench(benchmark, device=device)
        self.table, self.device = self._bench.database, self._bench.device
        self.recall = recall if self.device.type == "cpu" else None
        self.earlier_seconds = 0.0
        self._data, self._scratch, self._progress, self._bfloat16 = data, scratch, progress, bfloat16

    def run(self, method: Method, *, database_stack: Sequence[Aggregator] | None = None) -> MethodResult:
        """Expand, search and evaluate with one method."""
        if method.reranking is not None:
            raise InputError(f"{method}: re-ranking a streamed database is not supported; leave it out")
        self.earlier_seconds = 0.0
        stack = method.stack()
        reads_graph = len(stack) > 1 or any(aggregator.needs_context for aggregator in stack)
        if not method.dba and not reads_graph:
            return self._bench.run(method)
        started = time.perf_counter()
        levels = self.encoding(database_stack or method.database_stack(stack)) if method.dba else stack
        expander = Expander(stack, method.name, database_stack=levels, query_options=method.query_options)
        evaluation = evaluate(self._scores(expander, method.dba), self._bench.truth)
        log.info("%s: %s mAP %.2f", self._bench.name, method, evaluation.main)
        return MethodResult(method, evaluation, None, time.perf_counter() - started)

    def _scores(self, expander: Expander, dba: bool) -> np.ndarray[Any, Any]:
        """(m, n) inner products of the expanded queries with the database, augmented or not."""
        folder = self._scratch / f"method-{self._data}-{_checksum(expander, dba)}"
        clock = _Stopwatch(folder.with_suffix(".seconds"), self._progress)
        self.earlier_seconds = clock.earlier
        stacks = [*expander.stack, *expander.database_stack]
        graph = self._graph(max(aggregator.graph_k for aggregator in stacks), clock)
        if is_complete(folder):
            index = Index.open(folder, device=self.device)
        else:
            index = graph.with_expander(expander, folder, dba=dba, lazy=True, progress=clock)
        truth = self._bench.truth
        own = truth.exclude if isinstance(truth, LabelGroundTruth) else None
        queries = index.expand(self._bench.queries, exclude=own, exact=True).to(self.device, torch.float32)
        blocks = (block.to(self.device, torch.float32) for block in index.blocks())
        scores = np.concatenate([(queries @ block.T).cpu().numpy() for block in blocks], axis=1)
        del index
        shutil.rmtree(folder, ignore_errors=True)
        clock.path.unlink(missing_ok=True)
        return scores

    def _graph(self, k: int, progress: Progress) -> Index:
        """The index of the vectors and their neighbours; it has no levels."""
        folder, k = self.graph_folder(k)
        if is_complete(folder):
            return Index.open(folder, device=self.device)
        self._scratch.mkdir(parents=True, exist_ok=True)
        large = self.table.dtype == torch.float16 or self.table.numel() * 4 > _LARGE_BYTES
        return Index.build(
            self.table,
            Expander([Mean(k)]),
            folder,
            storage="float16" if large else "float32",
            recall=self.recall,
            device=self.device,
            progress=progress,
        )

    def graph_folder(self, k: int) -> tuple[Path, int]:
        """Where k neighbours of each item are or will be, and how many there are; a larger K serves, too."""
        kind = "" if self.recall is None else f"-recall{self.recall:g}"
        prefix = f"graph-{self._data}{kind}-k-"
        complete = filter(is_complete, self._scratch.glob(f"{prefix}*"))
        known = [int(folder.name.removeprefix(prefix)) for folder in complete]
        k = max(k, GRAPH_K)
        k = min((each for each in known if each >= k), default=k)
        return self._scratch / f"{prefix}{k}", k

    def encoding(self, stack: Sequence[Aggregator]) -> list[Aggregator]:
        """The stack that augments: encoders of the paper's kind in bfloat16 if that is wanted.

        They encode in the type of their weights; cosines, weights and sums stay float32 all the same.
        """
        if not self._bfloat16:
            return list(stack)
        return [
            deepcopy(level).to(torch.bfloat16) if isinstance(level, Attention) else level for level in stack
        ]


class _Stopwatch:
    """Keeps the time that a method has taken over all runs in a file; to be called as progress.

    Args:
        path: the file, in a folder that need not be there yet.
        progress: called with the same arguments.

    Attributes:
        earlier: seconds of stopped runs.
    """

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self.path, self.earlier = path, 0.0
        with suppress(OSError, ValueError):
            self.earlier = float(path.read_text())
        self._progress = progress
        self._started = self._noted = time.perf_counter()

    def __call__(self, done: int, total: int, name: str) -> None:
        now = time.perf_counter()
        if now - self._noted >= _NOTE_EVERY:
            self._noted = now
            with atomic_path(self.path) as beside:
                beside.write_text(repr(self.earlier + now - self._started))
        if self._progress is not None:
            self._progress(done, total, name)


def is_complete(folder: Path) -> bool:
    """Whether a folder holds an index that is built to the end."""
    return (folder / MANIFEST).is_file()


def _checksum(expander: Expander, dba: bool) -> str:
    """Of all that an index of this expander depends on, beside the data."""
    digest = hashlib.blake2b(repr((dba, expander.query_options)).encode(), digest_size=8)
    for stack in (expander.stack, expander.database_stack):
        digest.update(repr(stack).encode())
        for level in stack:
            for name, value in level.state_dict().items():
                digest.update(f"{name} {value.dtype}".encode())
                digest.update(value.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()
