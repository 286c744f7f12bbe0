"""Measures cells: each benchmark is read once, each cell computed once and kept."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import torch

from gqe.datasets.base import Benchmark
from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench, Outcome
from gqe.evaluation.tuning import Side
from gqe.methods import METHODS, Method, model_folder
from gqe.model_files import with_side
from gqe.reproduce.cells import Cell, Store
from gqe.reproduce.memory import peak_memory, start_measuring_memory
from gqe.reproduce.streaming import StreamedBench
from gqe.reproduce.suite import Place, Suite, checksum

# A database is streamed if it would take more than this as float32.
STREAMED_BYTES = 2 << 30
Progress = Callable[[int, int, str], None]


class Stage(NamedTuple):
    """What one measurement cost."""

    place: str
    method: str
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class StreamingOptions:
    """How to measure where a database is streamed, and what to leave out.

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

    def leaves_out(self, row: str) -> bool:
        """Whether a row of this title is left out."""
        return any(fnmatch(row.lower(), pattern.lower()) for pattern in self.leave_out)

    @property
    def notes(self) -> list[str]:
        """What a reader must know of it."""
        told = []
        if self.graph_recall is not None:
            told.append(
                "Among distractors the neighbour lists of database items are approximate: at least"
                f" {self.graph_recall:g} of the true neighbours, on a sample. Those of queries are exact."
            )
        if self.bfloat16:
            told.append(
                "Among distractors the encoders of the paper's kind augment the database in bfloat16;"
                " tokens are weighted and summed in float32."
            )
        return told

    def __str__(self) -> str:
        return " ".join(
            ([f"recall={self.graph_recall:g}"] if self.graph_recall is not None else [])
            + (["bfloat16"] if self.bfloat16 else [])
        )


class Unmeasured(Exception):
    """A cell that is not there and is not to be had now; the message says why."""


class Measurer:
    """Runs methods on the benchmarks of a suite.

    Args:
        suite: the benchmarks.
        store: where cells are kept.
        scratch: folder for the files of streamed databases.
        device: "auto", "cpu", "cuda"...
        manner: how to measure, and what to leave out.
        progress: told what is being measured; the counts are those of `start_row`.
    """

    def __init__(
        self,
        suite: Suite,
        store: Store,
        scratch: Path,
        *,
        device: str | torch.device = "auto",
        manner: StreamingOptions | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.manner = manner or StreamingOptions()
        self.suite, self.store, self.scratch, self.device = suite, store, scratch, device
        self.computed = 0
        self.stages: list[Stage] = []
        self.rows = 0
        self._progress, self._rows_done, self._row = progress, 0, ""
        self._loaded: dict[str, tuple[Benchmark, str]] = {}
        self._benches: dict[str, Bench | StreamedBench] = {}

    def start_row(self, name: str) -> None:
        """Count one more row of a table as begun."""
        self._row = name
        self._tell("")
        self._rows_done += 1

    def measure(
        self, place: Place, method: Method, *, quality: bool = False, side: Side | None = None
    ) -> Cell:
        """The cell of a method on a benchmark, measured if it is not there.

        Raises:
            Unmeasured: its row is left out.
        """
        key = self.key(place, method, quality=quality, side=side)
        kept = self.store.get(key)
        if kept is None:
            if self.manner.leaves_out(self._row):
                raise Unmeasured("left out")
            self._tell(f"{place.name}: {_short(method)}")
            start_measuring_memory()
            started = time.perf_counter()
            outcome = self._run(place, method, quality, side)
            self.computed += 1
            stream = self.stream(place)
            earlier = 0.0 if stream is None else stream.earlier_seconds
            kept = _cell(outcome, time.perf_counter() - started + earlier)
            self.store.put(key, kept)
        shown = _short(method) if side is None else f"{_short(method)} {side}"
        self.stages.append(Stage(place.name, shown, kept.seconds, kept.peak_bytes))
        return kept

    def key(self, place: Place, method: Method, *, quality: bool = False, side: Side | None = None) -> str:
        """What a cell depends on: data, method with all settings, model, database side."""
        parts = [f"{place.name} {self._data(place)[1]}", _unnamed(method)]
        if method.name not in METHODS:
            parts.append(f"model {model_checksum(method.name)}")
        if side is not None:
            parts.append(str(side))
        if quality:
            parts.append("quality")
        if self.streamed(place) and str(self.manner):
            parts.append(str(self.manner))
        return " | ".join(parts)

    def streamed(self, place: Place) -> bool:
        """Whether a benchmark is searched block by block: it is said to be large, or would be as float32."""
        rows, width = self._data(place)[0].database.shape
        return place.large or int(rows) * int(width) * 4 > STREAMED_BYTES

    def opened(self, place: Place) -> tuple[Benchmark, Bench]:
        """A small benchmark, made ready to be asked directly."""
        bench = self._bench(place)
        assert isinstance(bench, Bench)
        return self._data(place)[0], bench

    def stream(self, place: Place) -> StreamedBench | None:
        """A benchmark that is searched block by block; None if it is small."""
        bench = self._bench(place)
        return bench if isinstance(bench, StreamedBench) else None

    def _run(self, place: Place, method: Method, quality: bool, side: Side | None) -> Outcome:
        stack = None if side is None else with_side(method.stack(), *side)
        bench = self._bench(place)
        if isinstance(bench, StreamedBench):
            return bench.run(method, database_stack=stack)
        return bench.run(method, quality=quality, database_stack=stack)

    def _bench(self, place: Place) -> Bench | StreamedBench:
        if place.name not in self._benches:
            benchmark, data = self._data(place)
            self._benches[place.name] = (
                StreamedBench(
                    benchmark,
                    data,
                    self.scratch,
                    device=self.device,
                    recall=self.manner.graph_recall,
                    bfloat16=self.manner.bfloat16,
                    progress=self._filing,
                )
                if self.streamed(place)
                else Bench(benchmark, device=self.device)
            )
        return self._benches[place.name]

    def _data(self, place: Place) -> tuple[Benchmark, str]:
        if place.name not in self._loaded:
            self._tell(f"reading {place.name}")
            benchmark = place.load()
            self._loaded[place.name] = (benchmark, checksum(benchmark))
        return self._loaded[place.name]

    def _tell(self, now: str) -> None:
        if self._progress is not None:
            self._progress(self._rows_done, max(self.rows, self._rows_done), f"{self._row} {now}".strip())

    def _filing(self, done: int, total: int, name: str) -> None:
        self._tell(f"{name} {done / max(total, 1):.0%}")


def model_checksum(name: str) -> str:
    """Of all that decides a model's results; not of what was written about its training."""
    folder = model_folder(name)
    assert folder is not None
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    side, contrast = config.get("about", {}).get("dba"), config.get("contrast", 0.0)
    told = [config["checksum"], config["levels"], side, contrast]
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=8).hexdigest()


def _cell(outcome: Outcome, seconds: float) -> Cell:
    scores = outcome.evaluation.map
    quality = outcome.quality
    defined = quality is not None and quality.queries > 0
    return Cell(
        scores=dict(scores) if isinstance(scores, dict) else {"map": scores},
        agreement=quality.mean_agreement if quality is not None and defined else None,
        diversity=quality.mean_diversity if quality is not None and defined else None,
        seconds=round(seconds, 3),
        peak_bytes=peak_memory(),
    )


def _unnamed(method: Method) -> str:
    """The method without the path of its model, which may be moved."""
    return str(method) if method.name in METHODS else str(method).replace(method.name, "model", 1)


def _short(method: Method) -> str:
    return str(method) if method.name in METHODS else str(method).replace(method.name, Path(method.name).name)
