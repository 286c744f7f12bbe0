"""The journal of a build: what is finished, and how far the table in work has come.

Three threads share the work, so that a GPU never waits for a file: one computes, one writes what has been
computed, and one brings what has been written onto the disk and notes it in the journal.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np

from gqe.errors import InputError
from gqe.formats.atomic import atomic_path, flush, flush_folder
from gqe.formats.names import plain_names
from gqe.index.drafts import building_names, flush_and_record, is_temporary
from gqe.index.files import ArrayWriter, FileRecord, create, record_of, write_array
from gqe.index.manifest import BUILDING, RESERVED
from gqe.model_files import FILES
from gqe.progress import Report

log = logging.getLogger(__name__)

# Seconds of work that an interruption may cost.
_CHECKPOINT = 2.0
_BLOCK = 4096
# Blocks that may be computed, or on their way from a GPU, while an earlier one is written.
_AHEAD = 2


class Journal:
    """Writes the files of a build; all that it notes as finished is safely on the disk.

    To be used in a `with` statement, which ends when nothing is on its way to the disk any more.

    Args:
        folder: where the index is being built.
        fingerprint: of everything the index depends on. What another build left is dropped.
        progress: called with rows done, rows in all, and what is being done.
        names: of all files that may be written, those in folders left out.

    Attributes:
        done: the files that are written, on the disk or on their way to it.
        notes: small values that a later run needs again.
    """

    def __init__(
        self, folder: Path, fingerprint: str, progress: Report | None, names: Iterable[str] = ()
    ) -> None:
        self.folder = folder
        self.fingerprint = fingerprint
        self.progress = progress
        self.names = sorted(names)
        self.done: dict[str, FileRecord] = {}
        self.notes: dict[str, Any] = {}
        self._partial: dict[str, tuple[int, str]] = {}
        self._take_over()
        self._remove_others()
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

    def wait_for_disk(self) -> None:
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
            create(self.folder / name)
            write(self.folder / name)
            self.notes.update(notes or {})
            self._finish({name: flush_and_record(self.folder / name)}, notes or {})

    def note(self, name: str, value: Any) -> None:
        """Remember a small value; a later run finds it where anything written after it is noted."""
        self.notes[name] = value
        self._later(self._note_finished, {}, {name: value})

    def link(self, name: str, source: Path, record: FileRecord) -> None:
        """Take over a file of another index, which never changes; copied where it cannot be linked."""
        if name in self.done:
            return
        try:
            (self.folder / name).hardlink_to(source)
        except OSError:
            shutil.copyfile(source, self.folder / name)
            flush(self.folder / name)
        self._finish({name: record})

    def part(self, name: str, write: Callable[[Path], None]) -> Future[None]:
        """Write a folder of files that are flushed one by one, while the caller goes on.

        Returns:
            What to wait for before the records of these files are needed.
        """

        def work() -> None:
            for path in (self.folder / name).glob(".*"):
                if is_temporary(path.name):
                    path.unlink()
            write(self.folder / name)
            records = {f"{name}/{file}": record_of(self.folder / name / file) for file in FILES}
            self.done |= records
            self._note_finished(records, {})

        if all(f"{name}/{file}" in self.done for file in FILES):
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
        writer = self._writer(name, dtype, shape)
        begun = noted = time.monotonic()
        written = 0.0

        def write(at: int, block: Any) -> None:
            nonlocal written
            if at != writer.done:
                return  # a block before this one failed, and the other thread raises the error
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

    def _writer(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> ArrayWriter:
        """Goes on behind the rows that are noted, if they are still what was written."""
        rows, checksum = self._partial.get(name, (0, ""))
        path = self.folder / name
        if path.is_file() and 0 < rows <= shape[0]:
            writer = ArrayWriter(path, dtype, shape, rows)
            if writer.checksum() == checksum:
                return writer
            writer.abandon()
            log.warning("%s: damaged since the build was interrupted; it is written anew", path)
        if name in self._partial:
            path.unlink(missing_ok=True)
        return ArrayWriter(path, dtype, shape)

    def _later(self, work: Callable[..., None], *arguments: Any) -> Future[None]:
        """Leave something to the thread of the disk, which does one thing after another."""
        future = self._disk.submit(work, *arguments)
        self._flushing.append(future)
        return future

    def _note_soon(self, name: str, writer: ArrayWriter) -> None:
        self._later(self._note_partial, name, writer, (writer.done, writer.checksum()))

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
            done = {name: FileRecord(*record) for name, record in journal["done"].items()}
            partial = {name: (int(rows), str(check)) for name, (rows, check) in journal["partial"].items()}
            notes = dict(journal["notes"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        plain_names([*done, *partial], self.folder / BUILDING, RESERVED)
        self._partial, self.notes = partial, notes
        for name, record in done.items():
            try:
                intact = record_of(self.folder / name) == record
            except FileNotFoundError:
                intact = False
            if intact:
                self.done[name] = record
            else:
                log.warning("%s: damaged since the build was interrupted; it is written anew", name)
        log.info("going on with an interrupted build: %d files are finished", len(self.done))

    def _remove_others(self) -> None:
        """Remove what an interrupted build left and this one has no use for; refuse files without a note."""
        needed, folder = {*self.done, *self._partial}, self.folder
        earlier = building_names(folder) or frozenset()
        beside = [path for path in folder.glob(".*") if is_temporary(path.name)]
        for path in [*beside, *(folder / name for name in earlier - needed)]:
            path.unlink(missing_ok=True)
        for name in {*self.names} - needed:
            if (folder / name).exists() or (folder / name).is_symlink():
                raise InputError(f"{folder / name}: is not of this build; move it to another folder")

    def _finish(self, records: dict[str, FileRecord], notes: dict[str, Any] | None = None) -> None:
        self.done |= records
        self._later(self._note_finished, records, notes or {})

    def _note_partial(self, name: str, writer: ArrayWriter, state: tuple[int, str]) -> None:
        """Bring a table onto the disk and note that its first rows are there; more may have been written."""
        writer.flush()
        self._noted["partial"][name] = state
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
        journal = {"fingerprint": self.fingerprint, "names": self.names} | self._noted | {"done": done}
        flush_folder(self.folder)
        with atomic_path(self.folder / BUILDING, follow=False) as beside:
            beside.write_text(json.dumps(journal) + "\n")
