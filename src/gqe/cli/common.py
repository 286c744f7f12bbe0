"""Options, output and progress that all commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from gqe.errors import InputError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Seed = Annotated[
    int,
    typer.Option(
        "--seed", min=0, max=2**31 - 1, help="Seed of everything random; the same seed repeats a run."
    ),
]
Device = Annotated[str, typer.Option("--device", help="Where to compute: auto, cpu, cuda or cuda:N.")]
Recall = Annotated[
    float | None,
    typer.Option(
        "--recall", help="Build the neighbour graph approximately, finding at least this share (e.g. 0.95)."
    ),
]
DatabaseFile = Annotated[
    Path,
    typer.Argument(metavar="DATABASE", help="File of database vectors (npy, npz, fvecs, fbin, hdf5, ...)."),
]
QueriesFile = Annotated[
    Path, typer.Argument(metavar="QUERIES", help="File of query vectors of the same dimension.")
]
DatabaseKey = Annotated[
    str | None,
    typer.Option("--database-key", help="Name of the database array in an npz, hdf5 or parquet file."),
]
QueriesKey = Annotated[
    str | None, typer.Option("--queries-key", help="Name of the query array in an npz, hdf5 or parquet file.")
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Run on a Ray cluster: auto, local, or host:port of its head node.",
    ),
]
MethodText = Annotated[
    str, typer.Option("--method", "-m", help="Method and settings, such as aqe:k=10 or alpha-g:k=6:alpha=3.")
]
Progress = Callable[[int, int, str], None]


def output_file(path: Path) -> Path:
    """Refuse a name under which no file can be written, before hours of work are done for it."""
    if not path.name or path.is_dir():
        raise InputError(f"{path}: is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a regular file; give another name")
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist; make it first")
    return path


def output_folder(path: Path) -> Path:
    """Refuse a name under which no folder can be made, before hours of work are done for it."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise InputError(f"{path}: {place} is not a folder; give another name")
    return path


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """A progress bar on a terminal; None elsewhere."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
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


def print_table(columns: list[str], rows: list[list[str]], *, left: int = 1) -> None:
    """A plain table; the first `left` columns are text, the others numbers aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    if sys.stdout is None:  # closed by the one who called
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        # A text at the end of a line goes on in the next one; numbers are never cut in two.
        text, last = position < left, position == len(columns) - 1
        table.add_column(
            column, justify="left" if text else "right", no_wrap=not (text and last), overflow="fold"
        )
    for row in rows:
        table.add_row(*row)
    # Wide enough for every column when the output is piped into a file.
    widths = (max(map(len, cells)) for cells in zip(columns, *rows, strict=True))
    needed = sum(widths) + 2 * len(columns)
    Console(width=None if sys.stdout.isatty() else needed, highlight=False).print(table)
