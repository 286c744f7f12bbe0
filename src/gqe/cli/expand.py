"""`gqe expand`: vectors in, vectors out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from gqe.cli.common import (
    DatabaseKey,
    Device,
    Json,
    QueriesKey,
    Recall,
    Seed,
    app,
    output_file,
    print_result,
)
from gqe.cli.database import (
    DatabasePlace,
    Exact,
    Exclude,
    MethodText,
    Rounds,
    open_database,
    parse_expansion,
)
from gqe.errors import InputError


@app.command(
    epilog="Examples: gqe expand base.npy queries.npy -o expanded.npy\n\n"
    "gqe expand my-index queries.npy --rounds 2 -o expanded.npy\n\n"
    "gqe expand base.npy --augment -m alpha:k=10 -o augmented.npy"
)
def expand(
    database: DatabasePlace,
    queries: Annotated[
        Path | None, Argument(metavar="QUERIES", help="File of query vectors; not with --augment.")
    ] = None,
    output: Annotated[
        Path, Option("--output", "-o", help="Where to write; the ending chooses the format.")
    ] = Path("expanded.npy"),
    method: MethodText = None,
    augment: Annotated[
        bool, Option("--augment", help="With a file: write the augmented database (DBA) instead.")
    ] = False,
    rounds: Rounds = None,
    exact: Exact = False,
    exclude: Exclude = None,
    database_key: DatabaseKey = None,
    queries_key: QueriesKey = None,
    recall: Recall = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Expand query vectors over a database, or augment the database itself."""
    from gqe.formats import read_vectors, write_vectors

    if augment == (queries is not None):
        raise InputError("queries: give a QUERIES file to expand, or --augment to augment the database")
    if augment and (rounds is not None or exact or exclude is not None):
        raise InputError("--augment: concerns no queries; leave --rounds, --exact and --exclude out")
    output_file(output)
    chosen = parse_expansion(method)
    vectors = None if queries is None else read_vectors(queries, key=queries_key)
    num_queries = 0 if vectors is None else len(vectors)
    with open_database(
        database, chosen, num_queries, key=database_key, recall=recall, seed=seed, device=device
    ) as opened:
        if vectors is not None:
            result = opened.engine.expand(
                vectors,
                exclude=opened.read_exclude(exclude, num_queries),
                exact=exact or None,
                rounds=rounds,
                **opened.options,
            )
        elif opened.file is None:
            raise InputError("--augment: is for a file of vectors; gqe index build --dba augments an index")
        else:
            result = opened.engine.augment()
    write_vectors(output, result)
    about = {"output": str(output), "vectors": len(result), "dimension": int(result.shape[1])}
    text = f"wrote {len(result)} vectors of dimension {result.shape[1]} to {output}"
    print_result(about | opened.about, text, as_json)
