"""`gqe search`: expand, search again, print what was found."""

from __future__ import annotations

from typing import Annotated

import typer

from gqe.cli.common import (
    DatabaseFile,
    DatabaseKey,
    Device,
    Json,
    MethodText,
    QueriesFile,
    QueriesKey,
    Recall,
    Seed,
    print_json,
    print_table,
)


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("search", epilog="Example: gqe search base.npy queries.npy -m aqe-g:k=4 -k 5")(search)


def search(
    database: DatabaseFile,
    queries: QueriesFile,
    method: MethodText = "aqe",
    k: Annotated[int, typer.Option("-k", help="How many results for each query.")] = 10,
    database_key: DatabaseKey = None,
    queries_key: QueriesKey = None,
    recall: Recall = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Search a file of vectors with expanded queries; dba-METHOD also augments the database."""
    from gqe.formats import read_vectors
    from gqe.methods import parse_method
    from gqe.models import from_method

    chosen = parse_method(method)
    expander = from_method(chosen)
    expander.fit(read_vectors(database, key=database_key), recall=recall, seed=seed, device=device)
    found = expander.search(read_vectors(queries, key=queries_key), k, dba=chosen.dba)
    results = [
        {
            "query": row,
            "ids": ids[ids >= 0].tolist(),
            "scores": [round(float(s), 6) for s in scores[ids >= 0]],
        }
        for row, (scores, ids) in enumerate(zip(found.scores, found.ids, strict=True))
    ]
    if as_json:
        print_json({"method": chosen.title, "settings": chosen.given, "results": results})
        return
    lines = [
        [
            str(result["query"]),
            " ".join(f"{i}:{s:.3f}" for i, s in zip(result["ids"], result["scores"], strict=True)),
        ]
        for result in results
    ]
    print_table(["query", "id:score, best first"], lines, left=2)
