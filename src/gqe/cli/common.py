"""The app, and the options and output that commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from gqe.errors import InputError

app = typer.Typer(
    name="gqe",
    help="Graph Query Expansion: better search from the embeddings you already have.",
    epilog="Try: gqe evaluate town --methods none,universal,dba-universal",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Json = Annotated[bool, Option("--json", help="Print one JSON object instead of text.")]
Seed = Annotated[
    int,
    Option("--seed", min=0, max=2**31 - 1, help="The same seed repeats a run."),
]
Device = Annotated[str, Option("--device", help="Where to compute: auto, cpu, cuda or cuda:N.")]
Recall = Annotated[
    float | None,
    Option("--recall", help="Find neighbours approximately: at least this share (0.95)."),
]
Key = Annotated[str | None, Option("--key", help="Name of the array in an npz, hdf5 or parquet file.")]
DatabaseKey = Annotated[
    str | None, Option("--database-key", help="Database array in an npz, hdf5 or parquet file.")
]
QueriesKey = Annotated[
    str | None, Option("--queries-key", help="Query array in an npz, hdf5 or parquet file.")
]
Cluster = Annotated[
    str | None, Option("--cluster", help="Run on a Ray cluster: auto, local, or host:port of its head.")
]
ExpanderText = Annotated[str, Option("--expander", "-m", help="Method, such as universal or aqe-g:k=4.")]

# Of 2**63 - 1, the largest id; Python refuses to read numbers of thousands of digits.
_MAX_DIGITS = 19
# On a terminal the last column of a table is wrapped, but not to less than this.
_LEAST_WRAPPED_WIDTH = 20


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
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"{path}: {existing} is not a folder; give another name")
    return path


def read_ids(path: Path, *, as_text: bool = False) -> Any:
    """Ids from a .npy file, or from a text file with one per line: whole numbers if all of them are.

    Args:
        path: the file.
        as_text: leave lines as they are.
    """
    import numpy as np

    from gqe.formats.checks import existing_file, wrap_parse_errors

    found = existing_file(path)
    with wrap_parse_errors(found, "file of ids"):
        if found.suffix == ".npy":
            return np.load(found, allow_pickle=False)
        lines = [line.strip() for line in found.read_text(encoding="utf-8").splitlines() if line.strip()]
    if as_text or not all(line.isascii() and line.isdigit() for line in lines):
        return lines
    numbers = [line.lstrip("0") or "0" for line in lines]
    for row, number in enumerate(numbers, start=1):
        if len(number) > _MAX_DIGITS:
            raise InputError(
                f"{path}: id {row} is {number:.20}..., larger than 2**63 - 1; use smaller numbers"
            )
    return [int(number) for number in numbers]


def parse_numbers(option: str, text: str, kind: type[Any] = float) -> list[Any]:
    """Numbers with commas between them."""
    from gqe.errors import short_repr

    try:
        if text.isascii():  # Python also takes digits of other scripts for numbers
            return [kind(part) for part in text.split(",")]
    except ValueError:
        pass
    what = "whole numbers" if kind is int else "numbers"
    raise InputError(f"{option}: expected {what} separated by commas, got {short_repr(text)}")


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows with the same names to a CSV file."""
    import csv

    from gqe.formats.atomic import atomic_path

    with atomic_path(path) as temporary, Path(temporary).open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def print_result(about: dict[str, Any], text: str, as_json: bool) -> None:
    """What a command has done: a JSON object, or a line of text."""
    print_json(about) if as_json else typer.echo(text)


def print_facts(about: dict[str, Any], as_json: bool) -> None:
    """Names and values: a JSON object, or a table."""
    if as_json:
        print_json(about)
    else:
        rows = [[name.replace("_", " "), _format_fact(value)] for name, value in about.items()]
        print_table(["what", "value"], rows, left=2)


def _format_fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format_fact(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def print_table(columns: list[str], rows: list[list[str]], *, left: int = 1) -> None:
    """A plain table without loss; the first `left` columns are text, the others numbers aligned right.

    On a terminal a text in the last column is wrapped; nothing is ever cut off.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    if sys.stdout is None:  # closed by the one who called
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        text, last = position < left, position == len(columns) - 1
        table.add_column(
            column, justify="left" if text else "right", no_wrap=not (text and last), overflow="fold"
        )
    for row in rows:
        table.add_row(*row)
    widths = [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]
    width = sum(widths) + 2 * len(columns)
    if sys.stdout.isatty():
        wrapped = widths[-1] - _LEAST_WRAPPED_WIDTH if left == len(columns) else 0
        width = max(width - max(0, wrapped), Console().width)
    # Texts are ids and names of users: a [tag] or an :emoji: in them is printed as it is.
    Console(width=width, highlight=False, markup=False, emoji=False).print(table)
