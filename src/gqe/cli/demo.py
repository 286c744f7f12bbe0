"""`gqe demo`: the paper's tables on the built-in town, in one page with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gqe.cli.common import Device, Json, Seed, output_folder, print_json, print_table, progress_bar

# All but the comparison of depths, which trains a third model.
ARTEFACTS = ("table1", "repaired", "table2", "k-sweep", "agreement-diversity")


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("demo", epilog="Example: gqe demo -o report")(demo)


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the report.")] = Path("report"),
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train small models on the built-in town and write a page: all methods, figures, repaired queries.

    The same as `gqe reproduce --suite town`, without the comparison of depths. A few minutes on two cores.
    """
    from gqe import reproduce as job
    from gqe.reproduce.artefact import format_number

    output_folder(output)
    with progress_bar("town") as progress:
        suite = job.make_suite("town", job.Sources(output, device=device, seed=seed, progress=progress))
        report = job.reproduce(suite, output, ARTEFACTS, device=device, progress=progress)
    if as_json:
        print_json(report.to_dict())
        return
    table = report.artefacts[0].tables[0]
    rows = [
        [line.title, line.settings, *(format_number(value) for value in line.values)]
        for lines in table.sections.values()
        for line in lines
    ]
    print_table(["method", "settings", *table.columns], rows, left=2)
    typer.echo(f"\nreport: {report.page.resolve()}")
    typer.echo("search the town in a browser: gqe serve --demo  (with make: .venv/bin/gqe serve --demo)")
