"""`gqe demo`: every method on the built-in town, in one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gqe.cli.common import Device, Json, Seed, print_json, print_table, progress_bar


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("demo", epilog="Example: gqe demo -o report")(demo)


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the report.")] = Path("report"),
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Evaluate every method on the built-in town and write a report with figures and pictures."""
    from gqe import demo as job

    with progress_bar("town") as progress:
        result = job.run(output, seed=seed, device=device, progress=progress)
    if as_json:
        results = [{"row": row} | outcome.to_dict() for row, outcome in result.outcomes.items()]
        print_json({"report": str(result.page), "results": results})
        return
    rows = []
    for row, outcome in result.outcomes.items():
        scores = outcome.evaluation.map
        assert isinstance(scores, dict)
        rows.append(
            [row, outcome.method.summary, *(f"{scores[name]:.1f}" for name in ("easy", "medium", "hard"))]
        )
    print_table(["method", "settings", "Easy", "Medium", "Hard"], rows, left=2)
    typer.echo(f"\nreport: {result.page.resolve()}")
    typer.echo("search the town in a browser: gqe serve --demo  (with make: .venv/bin/gqe serve --demo)")
