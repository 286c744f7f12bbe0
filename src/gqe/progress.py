"""Progress of long calls: a bar on a terminal, a line every ten seconds elsewhere; on standard error.

Public functions take `progress: Progress` and hand a `Report` down to what does the work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from gqe.errors import InputError, short_repr

Report: TypeAlias = Callable[[int, int, str], None]
"""Called with what is done, all that is to be done, and what is being done."""
Progress: TypeAlias = bool | Report | None
"""True for a bar or lines, a function to be called instead, False or None for nothing."""

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def reporting(progress: Progress, title: str) -> Iterator[Report | None]:
    """What the work inside reports to, as the caller wants it.

    Example:
        >>> with reporting(lambda done, total, what: print(done, total, what), "index") as report:
        ...     report(3, 5, "neighbours")
        3 5 neighbours
    """
    if callable(progress):
        yield progress
    elif progress is True:
        with progress_bar(title) as report:
            yield report
    elif progress is None or progress is False:
        yield None
    else:
        raise InputError(
            f"progress: expected True, False or a function(done, total, what), got {short_repr(progress)}"
        )


@contextmanager
def progress_bar(title: str) -> Iterator[Report | None]:
    """A progress bar on a terminal; elsewhere a line every ten seconds."""
    if sys.stderr is None:
        yield None
        return
    if not sys.stderr.isatty():
        yield _progress_lines(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, now="")
        yield lambda done, total, now: bar.update(task, completed=done, total=total, now=now)


def _progress_lines(title: str) -> Report:
    said = time.monotonic()

    def say(done: int, total: int, now: str) -> None:
        nonlocal said
        if time.monotonic() - said >= _SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            print(f"{title}: {done} of {total} {now}".rstrip(), file=sys.stderr, flush=True)

    return say
