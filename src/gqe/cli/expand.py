"""`gqe expand`: vectors in, vectors out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gqe.cli.common import (
    DatabaseFile,
    DatabaseKey,
    Device,
    Json,
    MethodText,
    QueriesKey,
    Recall,
    Seed,
    output_file,
    print_json,
)
from gqe.errors import InputError


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(
        "expand",
        epilog="Examples: gqe expand base.npy queries.npy -m alpha:k=10 -o expanded.npy\n\n"
        "gqe expand base.npy --augment -m alpha:k=10 -o augmented.npy",
    )(expand)


def expand(
    database: DatabaseFile,
    queries: Annotated[
        Path | None, typer.Argument(metavar="QUERIES", help="File of query vectors; not with --augment.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write; the ending chooses the format.")
    ] = Path("expanded.npy"),
    method: MethodText = "aqe",
    augment: Annotated[
        bool,
        typer.Option("--augment", help="Write the augmented database (DBA) instead of expanded queries."),
    ] = False,
    database_key: DatabaseKey = None,
    queries_key: QueriesKey = None,
    recall: Recall = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Expand query vectors over a database, or augment the database itself."""
    from gqe.formats import read_vectors, write_vectors
    from gqe.methods import parse_method
    from gqe.models import from_method

    if augment == (queries is not None):
        raise InputError("queries: give a QUERIES file to expand, or --augment to augment the database")
    output_file(output)
    chosen = parse_method(method)
    if chosen.dba:
        raise InputError(f"method: {method!r}: use {chosen.name!r} here; --augment gives the database side")
    if chosen.then is not None:
        raise InputError(f"method: {method!r}: {chosen.then.name} reorders results; use it with gqe search")
    expander = from_method(chosen)
    expander.fit(read_vectors(database, key=database_key), recall=recall, seed=seed, device=device)
    if queries is None:
        result = expander.augment()
    else:
        result = expander.expand(read_vectors(queries, key=queries_key))
    write_vectors(output, result)
    about = {
        "output": str(output),
        "vectors": len(result),
        "dimension": int(result.shape[1]),
        "method": str(chosen),
    }
    if as_json:
        print_json(about)
    else:
        typer.echo(f"wrote {len(result)} vectors of dimension {result.shape[1]} to {output}")
