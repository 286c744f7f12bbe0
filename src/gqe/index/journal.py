"""The journal of a build: what is finished, and how far the table in work has come."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gqe.formats.atomic import flush_folder, replacing
from gqe.index.drafts import flushed_record
from gqe.index.files import ArrayWriter, FileRecord, record_of, sweep, write_array
from gqe.index.manifest import BUILDING

log = logging.getLogger(__name__)

# Seconds of work that an interruption may cost.
_CHECKPOINT = 2.0
_BLOCK = 4096

Progress = Callable[[int, int, str], None] | None


class Journal:
    """Writes the files of a build; all that it says is finished is safely on the disk.

    Args:
        folder: where the index is being built.
        fingerprint: of everything the index depends on. What another build left is dropped.
        progress: called with rows done, rows in all, and what is being done.

    Attributes:
        done: the finished files.
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
        self._write()

    def array(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Write a small array as a whole."""
        if name not in self.done:
            self._finish(name, write_array(self.folder / name, array))

    def other(self, name: str, write: Callable[[Path], None], notes: dict[str, Any] | None = None) -> None:
        """Write a file of another kind, and remember notes with it."""
        if name not in self.done:
            write(self.folder / name)
            self.notes.update(notes or {})
            self._finish(name, flushed_record(self.folder / name))

    def part(self, name: str, write: Callable[[Path], None]) -> None:
        """Write a folder of files that are flushed one by one."""
        if not any(file.startswith(f"{name}/") for file in self.done):
            write(self.folder / name)
            for path in sorted((self.folder / name).iterdir()):
                self.done[f"{name}/{path.name}"] = record_of(path)
            self._write()

    def table(
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        work: Callable[[int, int], np.ndarray[Any, Any]],
        what: str,
    ) -> None:
        """Write a table of this shape block by block.

        Args:
            name: of the file.
            dtype: of its numbers.
            shape: rows first.
            work: gives the rows from one number to another.
            what: what to say about the progress.
        """
        if name in self.done:
            return
        rows = shape[0]
        start = self._partial.get(name, 0) if (self.folder / name).is_file() else 0
        writer = ArrayWriter(self.folder / name, dtype, shape, min(start, rows))
        try:
            noted = time.monotonic()
            for at in range(writer.done, rows, _BLOCK):
                stop = min(at + _BLOCK, rows)
                writer.append(work(at, stop))
                if self.progress is not None:
                    self.progress(stop, rows, what)
                if time.monotonic() - noted >= _CHECKPOINT:
                    writer.flush()
                    self._partial[name] = writer.done
                    self._write()
                    noted = time.monotonic()
            self._finish(name, writer.close())
        finally:
            writer.abandon()

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

    def _finish(self, name: str, record: FileRecord) -> None:
        self.done[name] = record
        self._partial.pop(name, None)
        self._write()

    def _write(self) -> None:
        journal = {
            "fingerprint": self.fingerprint,
            "done": {name: list(record) for name, record in self.done.items()},
            "partial": self._partial,
            "notes": self.notes,
        }
        flush_folder(self.folder)
        with replacing(self.folder / BUILDING) as beside:
            beside.write_text(json.dumps(journal) + "\n")
