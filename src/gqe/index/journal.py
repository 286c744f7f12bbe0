"""The journal of a build: what is finished, and how far the table in work has come.

Three threads share the work, so that a GPU never waits for a file: one computes, one writes what has been
computed, and one brings what has been written onto the disk and notes it in the journal.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np

from gqe.formats.atomic import flush_folder, replacing
from gqe.index.drafts import flushed_record
from gqe.index.files import ArrayWriter, FileRecord, record_of, sweep, write_array
from gqe.index.manifest import BUILDING

log = logging.getLogger(__name__)

# Seconds of work that an interruption may cost.
_CHECKPOINT = 2.0
_BLOCK = 4096
# Blocks that may be computed, or on their way from a GPU, while an earlier one is written.
_AHEAD = 2

Progress = Callable[[int, int, str], None] | None


class Journal:
    """Writes the files of a build; all that it notes as finished is safely on the disk.

    To be used in a `with` statement, which ends when nothing is on its way to the disk any more.

    Args:
        folder: where the index is being built.
        fingerprint: of everything the index depends on. What another build left is dropped.
        progress: called with rows done, rows in all, and what is being done.

    Attributes:
        done: the files that are written, on the disk or on their way to it.
        notes: small values that a later run needs again.
    """

    def __init__(self, folder: Path, fingerprint: str, progress: Progress) -> None:
        self.folder = folder
        self.fingerprint = fingerprint
        self.progress = progress
        self.done: dict[str, FileRecord] = {}
        self.notes: dict[str, Any] = {}
        self._partial: dict[str, int] = {}
        self._take_over()
        sweep(folder, {BUILDING, *self.done, *self._partial})
        # What the journal says, which is touched by the thread of the disk alone from here on.
        self._noted: dict[str, dict[str, Any]] = {
            "done": dict(self.done),
            "partial": dict(self._partial),
            "notes": dict(self.notes),
        }
        self._write()
        self._disk = ThreadPoolExecutor(1)
        self._flushing: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.shutdown()

    def settle(self) -> None:
        """Wait until everything is on the disk; whatever went wrong there is raised here."""
        while self._flushing:
            self._flushing.popleft().result()

    def array(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Write a small array as a whole."""
        if name not in self.done:
            self._finish({name: write_array(self.folder / name, array)})

    def other(self, name: str, write: Callable[[Path], None], notes: dict[str, Any] | None = None) -> None:
        """Write a file of another kind, and remember notes with it."""
        if name not in self.done:
            write(self.folder / name)
            self.notes.update(notes or {})
            self._finish({name: flushed_record(self.folder / name)}, notes or {})

    def part(self, name: str, write: Callable[[Path], None]) -> Future[None]:
        """Write a folder of files that are flushed one by one, while the caller goes on.

        Returns:
            What to wait for before the records of these files are needed.
        """

        def work() -> None:
            write(self.folder / name)
            records = {
                f"{name}/{path.name}": record_of(path) for path in sorted((self.folder / name).iterdir())
            }
            self.done |= records
            self._note_finished(records, {})

        if any(file.startswith(f"{name}/") for file in list(self.done)):
            return self._later(lambda: None)
        return self._later(work)

    def table(
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        work: Callable[[int, int], Any],
        what: str,
        encode: Callable[[Any], np.ndarray[Any, Any]] = np.asarray,
    ) -> None:
        """Write a table of this shape block by block, each while the next ones are computed.

        Args:
            name: of the file.
            dtype: of its numbers.
            shape: rows first.
            work: gives the rows from one number to another.
            what: what to say about the progress.
            encode: makes of them what is stored; called by the thread that writes, so it may wait for a GPU.
        """
        if name in self.done:
            return
        rows = shape[0]
        start = self._partial.get(name, 0) if (self.folder / name).is_file() else 0
        writer = ArrayWriter(self.folder / name, dtype, shape, min(start, rows))
        begun = noted = time.monotonic()
        written = 0.0

        def write(at: int, block: Any) -> None:
            nonlocal written
            if at != writer.done:
                return  # a block before this one failed, and the other thread will hear of it
            content = encode(block)
            before = time.monotonic()
            writer.append(content)
            written += time.monotonic() - before

        try:
            with ThreadPoolExecutor(1) as other_thread:
                ahead: deque[Future[None]] = deque()
                for at in range(writer.done, rows, _BLOCK):
                    stop = min(at + _BLOCK, rows)
                    ahead.append(other_thread.submit(write, at, work(at, stop)))
                    if len(ahead) > _AHEAD:
                        ahead.popleft().result()
                    if self.progress is not None:
                        self.progress(stop, rows, what)
                    if time.monotonic() - noted >= _CHECKPOINT:
                        other_thread.submit(self._note_soon, name, writer)
                        noted = time.monotonic()
                        self._raise_failures()
                for block in ahead:
                    block.result()
            self.done[name] = writer.record()
        except BaseException:
            self._later(writer.abandon)  # behind what is being noted of it
            raise
        log.info("%s: %.2f s, %.2f s of them writing", what, time.monotonic() - begun, written)
        self._later(self._note_table, name, writer)

    def _later(self, work: Callable[..., None], *given: Any) -> Future[None]:
        """Leave something to the thread of the disk, which does one thing after another."""
        future = self._disk.submit(work, *given)
        self._flushing.append(future)
        return future

    def _note_soon(self, name: str, writer: ArrayWriter) -> None:
        self._later(self._note_partial, name, writer, writer.done)

    def _raise_failures(self) -> None:
        """Raise what has gone wrong on the disk so far."""
        while self._flushing and self._flushing[0].done():
            self._flushing.popleft().result()

    def _take_over(self) -> None:
        """What an earlier run with the same input finished."""
        try:
            journal = json.loads((self.folder / BUILDING).read_bytes())
            if journal["fingerprint"] != self.fingerprint:
                return
            for name, record in journal["done"].items():
                if (self.folder / name).stat().st_size == record[0]:
                    self.done[name] = FileRecord(*record)
            self._partial, self.notes = journal["partial"], journal["notes"]
        except (OSError, ValueError, KeyError, TypeError):
            return
        log.info("going on with an interrupted build: %d files are finished", len(self.done))

    def _finish(self, records: dict[str, FileRecord], notes: dict[str, Any] | None = None) -> None:
        self.done |= records
        self._later(self._note_finished, records, notes or {})

    def _note_partial(self, name: str, writer: ArrayWriter, rows: int) -> None:
        """Bring a table onto the disk and note that its first rows are there; more may have been written."""
        writer.flush()
        self._noted["partial"][name] = rows
        self._write()

    def _note_table(self, name: str, writer: ArrayWriter) -> None:
        writer.close()
        self._note_finished({name: self.done[name]}, {})

    def _note_finished(self, records: dict[str, FileRecord], notes: dict[str, Any]) -> None:
        self._noted["done"] |= records
        self._noted["notes"] |= notes
        for name in records:
            self._noted["partial"].pop(name, None)
        self._write()

    def _write(self) -> None:
        done = {name: list(record) for name, record in self._noted["done"].items()}
        journal = {"fingerprint": self.fingerprint} | self._noted | {"done": done}
        flush_folder(self.folder)
        with replacing(self.folder / BUILDING) as beside:
            beside.write_text(json.dumps(journal) + "\n")
