"""What a run of soak.py has seen."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CALM, FULL, IDLE = "no fault", "full disk", "idle connections"
# What a 503 says that may come without a fault.
_BUSY = (
    "another process is changing",
    "others are being prepared",
    "no answer in time",
    "too many",
    "ending",
)


class Notes:
    """Counts of what was done, answered and refused, and the fault that there is.

    Args:
        log: file for a line about each problem, among those of the service; None for none.
    """

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self.lock = threading.Lock()
        self.fault, self.calm_since = CALM, 0.0
        self.acknowledged: Counter[str] = Counter()
        self.not_acknowledged: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()  # by what makes the run fail
        self.problems: list[str] = []  # the same in words
        self._refused: dict[str, Counter[str]] = {}

    @contextmanager
    def during(self, fault: str) -> Iterator[None]:
        """While it lasts, errors of its kind are expected."""
        self.faults[fault] += 1
        self.fault, self.calm_since = fault, float("inf")
        try:
            yield
        finally:
            self.calm_since = time.monotonic()
            self.fault = CALM

    def is_calm(self, seconds: float) -> bool:
        """Whether there was no fault for some seconds."""
        return time.monotonic() - self.calm_since > seconds

    def fail(self, kind: str, line: str) -> None:
        """Note what must not happen."""
        with self.lock:
            self.failures[kind] += 1
            self.problems.append(line)
            if self._log is not None:
                with self._log.open("a") as file:
                    file.write(f"soak: {self.fault}: {kind}: {line}\n")

    def refuse(self, fault: str, line: str) -> None:
        """Count what was not done, by the fault that there was."""
        with self.lock:
            self._refused.setdefault(fault, Counter())[line] += 1

    def refuse_request(self, path: str, status: int, detail: str, fault: str, calm: bool) -> None:
        """Count an error of the service.

        Args:
            path: what was asked.
            status: 500 or more.
            detail: what it said.
            fault: that there was when it was asked.
            calm: whether there was none for a while.
        """
        if fault == CALM and not calm:
            fault = f"{CALM}, less than 2 s after one"
        self.refuse(fault, f"{status}: {detail}")
        # The service keeps files for itself, however many connections there are.
        sound = fault == self.fault and fault in (CALM, IDLE)
        busy = status == 503 and any(word in detail for word in _BUSY)
        if status not in (503, 507) or (sound and not busy):
            self.fail("unexpected errors", f"{path}: {status} {detail}")

    def report(self) -> dict[str, Any]:
        """The numbers."""
        return {
            "acknowledged": _summed(self.acknowledged),
            "not acknowledged": _summed(self.not_acknowledged),
            "answers that were checked": _summed(self.answers),
            "faults": dict(self.faults),
            "refused, by fault": {fault: dict(lines) for fault, lines in self._refused.items()},
            "lost": _summed(self.lost),
            **{kind: self.failures[kind] for kind in ("half a change", "wrong answers", "unexpected errors")},
            "problems": self.problems[:20],
        }


def _summed(counts: Counter[str]) -> dict[str, int]:
    return {"in all": counts.total()} | dict(counts)
