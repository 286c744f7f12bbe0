"""Measures cells: each benchmark is read once, each cell computed once and stored."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import torch

from gqe.datasets.base import Benchmark
from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench, MethodResult
from gqe.evaluation.tuning import Side
from gqe.methods import METHODS, Method, model_folder
from gqe.model_files import with_side
from gqe.query_options import QueryOptions
from gqe.reproduce.cells import Cell, CellStore
from gqe.reproduce.streaming import StreamedBench
from gqe.reproduce.suite import BenchmarkEntry, Suite, checksum

# A database is streamed if it would take more than this as float32.
STREAMED_BYTES = 2 << 30
Progress = Callable[[int, int, str], None]


class Measurement(NamedTuple):
    """What one cell cost: seconds, in stopped runs, too, and the most memory meanwhile."""

    place: str
    method: str
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class StreamingOptions:
    """How to measure a streamed database, and what to leave out.

    Attributes:
        graph_recall: neighbour lists of database items may be approximate, with at least this recall; None
            for exact ones. Those of queries are always exact.
        bfloat16: augment the database with encoders in bfloat16.
        leave_out: rows that are shown only if they were measured before; * stands for any letters.
    """

    graph_recall: float | None = None
    bfloat16: bool = False
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.graph_recall is not None and not 0 < self.graph_recall <= 1:
            raise InputError(
                f"--graph-recall: expected a number above 0 and at most 1, got {self.graph_recall:g}"
            )

    def is_left_out(self, row: str) -> bool:
        """Whether a row of this title is left out."""
        return any(fnmatch(row.lower(), pattern.lower()) for pattern in self.leave_out)

    @property
    def notes(self) -> list[str]:
        """What a reader must know of it."""
        notes = []
        if self.graph_recall is not None:
            notes.append(
                "Among distractors the neighbour lists of database items are approximate: at least"
                f" {self.graph_recall:g} of the true neighbours, on a sample. Those of queries are exact."
            )
        if self.bfloat16:
            notes.append(
                "Among distractors the encoders of the paper's kind augment the database in bfloat16;"
                " tokens are weighted and summed in float32."
            )
        return notes

    def __str__(self) -> str:
        return " ".join(
            ([f"recall={self.graph_recall:g}"] if self.graph_recall is not None else [])
            + (["bfloat16"] if self.bfloat16 else [])
        )


class NotMeasured(Exception):
    """A cell that is not there and is not measured now; the message says why."""


class Measurer:
    """Runs methods on the benchmarks of a suite.

    Args:
        suite: the benchmarks.
        store: holds the cells.
        scratch: folder for the files of streamed databases.
        device: "auto", "cpu", "cuda"...
        options: how to measure, and what to leave out.
        progress: called with rows begun, all rows, and what is being measured.

    Attributes:
        computed: how many cells were measured.
        measurements: the cost of every cell that was needed.
        rows: how many rows will be begun.
    """

    def __init__(
        self,
        suite: Suite,
        store: CellStore,
        scratch: Path,
        *,
        device: str | torch.device = "auto",
        options: StreamingOptions | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.options = options or StreamingOptions()
        self.suite, self.store, self.scratch, self.device = suite, store, scratch, device
        self.computed = 0
        self.measurements: list[Measurement] = []
        self.rows = 0
        self._progress, self._rows_done, self._row = progress, 0, ""
        self._loaded: dict[str, tuple[Benchmark, str]] = {}
        self._benches: dict[str, Bench | StreamedBench] = {}

    def start_row(self, name: str) -> None:
        """Count one more row of a table as begun."""
        self._row = name
        self._report("")
        self._rows_done += 1

    def measure(
        self, entry: BenchmarkEntry, method: Method, *, quality: bool = False, side: Side | None = None
    ) -> Cell:
        """The cell of a method on a benchmark, measured if it is not there.

        Raises:
            NotMeasured: its row is left out.
        """
        key = self.key(entry, method, quality=quality, side=side)
        title = _without_path(method, Path(method.name).name)
        cell = self.store.get(key)
        if cell is None:
            if self.options.is_left_out(self._row):
                raise NotMeasured("left out")
            self._report(f"{entry.name}: {title}")
            stack = None if side is None else with_side(method.stack(), *side)
            reset_peak_memory()
            started = time.perf_counter()
            bench = self.bench(entry)
            if isinstance(bench, StreamedBench):
                outcome = bench.run(method, database_stack=stack)
                started -= bench.earlier_seconds
            else:
                outcome = bench.run(method, quality=quality, database_stack=stack)
            cell = _cell(outcome, time.perf_counter() - started)
            self.computed += 1
            self.store.put(key, cell)
        title = title if side is None else f"{title} {side}"
        self.measurements.append(Measurement(entry.name, title, cell.seconds, cell.peak_bytes))
        return cell

    def key(
        self, entry: BenchmarkEntry, method: Method, *, quality: bool = False, side: Side | None = None
    ) -> str:
        """What a cell depends on: data, method with all settings, model, database side."""
        parts = [f"{entry.name} {self._data(entry)[1]}", _without_path(method, "model")]
        if method.name not in METHODS:
            parts.append(f"model {model_checksum(method.name)}")
        if side is not None:
            parts.append(str(side))
        if quality:
            parts.append("quality")
        if self.is_streamed(entry) and str(self.options):
            parts.append(str(self.options))
        return " | ".join(parts)

    def is_streamed(self, entry: BenchmarkEntry) -> bool:
        """Whether a benchmark is searched block by block: it is said to be large, or would be as float32."""
        rows, width = self.data(entry).database.shape
        return entry.large or int(rows) * int(width) * 4 > STREAMED_BYTES

    def bench(self, entry: BenchmarkEntry) -> Bench | StreamedBench:
        """A benchmark that methods can run on, streamed if it is large."""
        if entry.name not in self._benches:
            benchmark, data = self._data(entry)
            self._benches[entry.name] = (
                StreamedBench(
                    benchmark,
                    data,
                    self.scratch,
                    device=self.device,
                    recall=self.options.graph_recall,
                    bfloat16=self.options.bfloat16,
                    progress=lambda done, total, name: self._report(f"{name} {done / max(total, 1):.0%}"),
                )
                if self.is_streamed(entry)
                else Bench(benchmark, device=self.device)
            )
        return self._benches[entry.name]

    def data(self, entry: BenchmarkEntry) -> Benchmark:
        """A benchmark's vectors and ground truth, read once."""
        return self._data(entry)[0]

    def _data(self, entry: BenchmarkEntry) -> tuple[Benchmark, str]:
        """A benchmark and its checksum."""
        if entry.name not in self._loaded:
            self._report(f"reading {entry.name}")
            benchmark = entry.load()
            self._loaded[entry.name] = (benchmark, checksum(benchmark))
        return self._loaded[entry.name]

    def _report(self, now: str) -> None:
        if self._progress is not None:
            self._progress(self._rows_done, max(self.rows, self._rows_done), f"{self._row} {now}".strip())


def model_checksum(name: str) -> str:
    """Of all that decides a model's results; not of what was written about its training."""
    folder = model_folder(name)
    assert folder is not None
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    side = config.get("about", {}).get("dba")
    parts = [config["checksum"], config["levels"], side, QueryOptions.from_config(config).to_config()]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


def _cell(outcome: MethodResult, seconds: float) -> Cell:
    scores, quality = outcome.evaluation.map, outcome.quality
    if quality is not None and not quality.queries:
        quality = None
    return Cell(
        scores=dict(scores) if isinstance(scores, dict) else {"map": scores},
        agreement=None if quality is None else quality.mean_agreement,
        diversity=None if quality is None else quality.mean_diversity,
        seconds=round(seconds, 3),
        peak_bytes=peak_memory(),
    )


def _without_path(method: Method, model: str) -> str:
    """The method with another name in the place of its model's path, which may be moved."""
    return str(method) if method.name in METHODS else str(method).replace(method.name, model, 1)


def reset_peak_memory() -> None:
    """Forget the peak so far, where the system allows it (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Bytes resident at the peak, mapped files included; since the process began where it cannot be reset."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # no such thing on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
