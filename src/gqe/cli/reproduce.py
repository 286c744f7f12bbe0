"""`gqe reproduce`: the paper's tables and figures; `gqe demo`: most of them on the built-in town."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gqe.cli.common import Device, Json, Seed, app, output_folder, print_json, print_table
from gqe.progress import progress_bar

# All but the comparison of depths, which trains a third model.
ARTEFACTS = ("overview", "repaired", "table1", "k-sweep", "agreement-diversity", "table2")


@app.command(
    epilog="Examples: gqe reproduce all --suite town -o report\n\n"
    "gqe reproduce table1 table2 --suite paper --data DATA --models MODELS -o report\n\n"
    "gqe reproduce table1 --dry-run 1001001 --graph-recall 0.95 --bfloat16 -o dry-run"
)
def reproduce(
    output: Annotated[Path, Option("--output", "-o", help="Folder for results, page and files.")],
    artefacts: Annotated[
        list[str] | None,
        Argument(
            metavar="ARTEFACT",
            help="all, overview, repaired (town only), table1, k-sweep, agreement-diversity, table2 or"
            " depth.",
        ),
    ] = None,
    suite: Annotated[str, Option(help="town (built in), real or paper.")] = "town",
    data: Annotated[Path | None, Option(help="The suite's data; for paper, that of `gqe data path`.")] = None,
    models: Annotated[
        Path | None, Option(help="Trained models: [KIND/]lattqe, [KIND/]gqe, [KIND/]gqe3.")
    ] = None,
    train: Annotated[bool, Option("--train", help="Train models that are missing.")] = False,
    without_r1m: Annotated[bool, Option("--without-r1m", help="Leave the million distractors out.")] = False,
    leave_out: Annotated[
        list[str] | None,
        Option(
            metavar="ROW",
            help="A row to measure later, such as 'DBA + GQE*'; may be given several times. It is shown if it"
            " was measured before.",
        ),
    ] = None,
    graph_recall: Annotated[
        float | None,
        Option(
            help="Among distractors, find neighbours of database items approximately: at least this share"
            " (e.g. 0.95). For a CPU."
        ),
    ] = None,
    bfloat16: Annotated[bool, Option("--bfloat16", help="Augment distractors in bfloat16.")] = False,
    dry_run: Annotated[
        int, Option(min=0, help="So many random distractors instead of a suite, for time and memory.")
    ] = 0,
    dim: Annotated[int, Option(min=2, help="Dimension of made-up vectors.")] = 2048,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure the paper's tables and figures anew; the same command continues a stopped run."""
    from gqe import reproduce as job

    output_folder(output)
    options = job.StreamingOptions(graph_recall, bfloat16, tuple(leave_out or ()))
    with progress_bar("reproduce") as progress:
        sources = job.Sources(output, data, models, train, without_r1m, device, seed, dry_run, dim, progress)
        chosen = job.make_suite(suite, sources)
        names = artefacts or (["table1"] if chosen.name == "synthetic" else ["all"])
        report = job.reproduce(
            chosen,
            output,
            names,
            device=device,
            options=options,
            progress=progress,
            print_line=lambda line: typer.echo(line, err=True),
        )
    if as_json:
        print_json(report.to_dict())
        return
    for finding in report.findings:
        typer.echo(finding)
    typer.echo(f"{report.computed} cells computed, {report.kept} were there; report: {report.page.resolve()}")


@app.command(epilog="Example: gqe demo -o report")
def demo(
    output: Annotated[Path, Option("--output", "-o", help="Folder for the report.")] = Path("report"),
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write a page on the built-in town: what expansion gives, repaired queries, all methods, figures.

    The page is there after some seconds and is written anew after every part; small models are trained for
    the later ones. It leaves out the longest parts of `gqe reproduce all --suite town`, which continues it.
    """
    from gqe import reproduce as job
    from gqe.reproduce.artefact import format_number

    output_folder(output)
    with progress_bar("town") as progress:
        sources = job.Sources(output, device=device, seed=seed, quick=True, progress=progress)
        report = job.reproduce(
            job.make_suite("town", sources),
            output,
            ARTEFACTS,
            device=device,
            progress=progress,
            print_line=lambda line: typer.echo(line, err=True),
        )
    if as_json:
        print_json(report.to_dict())
        return
    table = next(table for artefact in report.artefacts for table in artefact.tables)
    rows = [
        [line.title, line.settings, *(format_number(value) for value in line.values)]
        for lines in table.sections.values()
        for line in lines
    ]
    print_table(["method", "settings", *table.columns], rows, left=2)
    typer.echo(f"\nreport: {report.page.resolve()}")
    typer.echo("search the town in a browser: gqe serve --demo  (with make: .venv/bin/gqe serve --demo)")
