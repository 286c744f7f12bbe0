"""`gqe reproduce`: the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gqe.cli.common import Device, Json, Seed, output_folder, print_json, progress_bar


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(
        "reproduce",
        epilog="Examples: gqe reproduce all --suite town -o report\n\n"
        "gqe reproduce table1 table2 --suite paper --data DATA --models MODELS -o report\n\n"
        "gqe reproduce table1 --dry-run 1001001 --graph-recall 0.95 --bfloat16 -o dry-run",
    )(reproduce)


def reproduce(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for results, page and files.")],
    artefacts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARTEFACT",
            help="all, table1, repaired (town only), table2, k-sweep, agreement-diversity or depth.",
        ),
    ] = None,
    suite: Annotated[str, typer.Option(help="town (built in), real or paper.")] = "town",
    data: Annotated[
        Path | None, typer.Option(help="Folder of the suite's data; for paper, the root of `gqe data path`.")
    ] = None,
    models: Annotated[
        Path | None, typer.Option(help="Folder of trained models: [KIND/]lattqe, [KIND/]gqe, [KIND/]gqe3.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Train models that are missing.")] = False,
    without_r1m: Annotated[
        bool, typer.Option("--without-r1m", help="Leave the million distractors out.")
    ] = False,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROW",
            help="A row to measure later, such as 'DBA + GQE*'; may be given several times. It is shown if it"
            " was measured before.",
        ),
    ] = None,
    graph_recall: Annotated[
        float | None,
        typer.Option(
            help="Among distractors, find neighbours of database items approximately: at least this share"
            " (e.g. 0.95). For a CPU."
        ),
    ] = None,
    bfloat16: Annotated[
        bool,
        typer.Option("--bfloat16", help="Among distractors, augment the database with encoders in bfloat16."),
    ] = False,
    dry_run: Annotated[
        int,
        typer.Option(
            min=0, help="Instead of a suite: made-up vectors with so many distractors, for time and memory."
        ),
    ] = 0,
    dim: Annotated[int, typer.Option(min=2, help="Dimension of made-up vectors.")] = 2048,
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
