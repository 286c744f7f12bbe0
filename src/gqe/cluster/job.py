"""The record of a job on a cluster: what is finished, and how much went over the network for it.

The driver notes every finished file with its checksum. A driver that was killed goes on from there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gqe.cluster.storage import Storage
from gqe.errors import InputError
from gqe.formats.names import plain_names
from gqe.index.drafts import is_temporary
from gqe.index.files import FileRecord
from gqe.index.manifest import BUILDING, RESERVED
from gqe.index.shards import table_of

log = logging.getLogger(__name__)

SUMMARY = "cluster.json"
"""Beside the finished index: what the job took, by stage."""

Bounds = list[tuple[int, int]]
# What a task counts, see `gqe.cluster.tasks`.
COUNTED = ("read", "sent", "written", "tasks", "seconds", "cpu_seconds")


class JobState:
    """The files of one job.

    Args:
        storage: where they are.
        fingerprint: of everything they depend on. What another job left is not taken over.
        bounds: rows of the shards; those of an earlier run stay, unless `fixed`.
        fixed: whether the user chose the shards.
        names: gives, for a number of shards, all files that may be written, those in folders left out.

    Attributes:
        done: finished files.
        counts: what was counted while they were written.
        bounds: rows of the shards.
        resumed: how many files an earlier run had finished.
    """

    def __init__(
        self,
        storage: Storage,
        fingerprint: str,
        bounds: Bounds,
        *,
        fixed: bool = False,
        names: Callable[[int], Iterable[str]] = lambda _: (),
    ) -> None:
        self.storage = storage
        self.fingerprint = fingerprint
        self.done: dict[str, FileRecord] = {}
        self.counts: dict[str, dict[str, Any]] = {}
        self.bounds = bounds
        earlier = self._resume(fixed)
        self.resumed = len(self.done)
        self.names = sorted(names(len(self.bounds)))
        self._remove_others(earlier)
        self._write()

    def put(self, name: str, make: Callable[[Path], FileRecord]) -> None:
        """Make a file here, unless it is finished."""
        if name not in self.done:
            self.finish(name, self.storage.put(name, make), {})

    def finish(self, name: str, record: FileRecord, counts: dict[str, Any]) -> None:
        """Give a finished file its name, and note it."""
        self.storage.commit(name, record)
        self.done[name] = record
        self.counts[name] = counts
        self._write()

    def summary(self, items: int, about: dict[str, Any]) -> dict[str, Any]:
        """What was counted, by stage.

        Args:
            items: how many items the index has.
            about: what else to say.
        """
        stages: dict[str, dict[str, Any]] = {}
        for name, counts in self.counts.items():
            if counts:
                stage = stages.setdefault(table_of(name), dict.fromkeys(COUNTED, 0))
                for key in COUNTED:
                    stage[key] += counts[key]
        for stage in stages.values():
            for key in ("seconds", "cpu_seconds"):
                stage[key] = round(stage[key], 3)
            for key in ("read", "sent"):
                stage[f"{key}_per_item"] = round(stage[key] / max(1, items), 2)
        return about | {
            "items": items,
            "shards": len(self.bounds),
            "files_taken_over": self.resumed,
            "files": len(self.done),
            "stages": stages,
        }

    def _resume(self, fixed: bool) -> list[str]:
        """Go on with what an earlier run of the same job finished; all files that any run has noted."""
        names: list[str] = []
        try:
            earlier = json.loads(self.storage.read(BUILDING) or b"")
            where = f"{self.storage.place}/{BUILDING}"
            names = plain_names({*earlier.get("names", ()), *earlier["done"]}, where, RESERVED)
            bounds = [(int(start), int(stop)) for start, stop in earlier["bounds"]]
            if earlier["fingerprint"] != self.fingerprint or (fixed and bounds != self.bounds):
                return names
            done = {name: FileRecord(*record) for name, record in earlier["done"].items()}
            counts = dict(earlier["counts"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            return names
        self.bounds = bounds
        self.done = {name: record for name, record in done.items() if self.storage.contains(name, record)}
        self.counts = {name: counts.get(name, {}) for name in self.done}
        log.info("going on with an interrupted job: %d files are finished", len(self.done))
        return names

    def _remove_others(self, earlier: list[str]) -> None:
        """Remove what another job left and this one has no use for; refuse what nobody has noted."""
        there = {*self.storage.names()}
        for name in sorted(there - self.done.keys()):
            if is_temporary(name) or name in earlier:
                self.storage.remove(name)
            elif name in self.names:
                raise InputError(f"{self.storage.place}/{name}: is not of this job; move it elsewhere")

    def _write(self) -> None:
        content = {
            "fingerprint": self.fingerprint,
            "names": self.names,
            "bounds": self.bounds,
            "done": {name: list(record) for name, record in self.done.items()},
            "counts": self.counts,
            # What a build on one machine looks for; it starts anew.
            "partial": {},
            "notes": {},
        }
        self.storage.write(BUILDING, (json.dumps(content) + "\n").encode())


def sum_counts(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sum of what several tasks counted."""
    return {key: sum(part[key] for part in counts) for key in COUNTED}
