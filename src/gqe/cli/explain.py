"""`gqe explain`: which items gave how much weight to a query."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from gqe.cli.common import (
    DatabaseKey,
    Device,
    Json,
    QueriesKey,
    Recall,
    Seed,
    app,
    print_json,
    print_table,
)
from gqe.cli.database import (
    DatabasePlace,
    Exact,
    Exclude,
    MethodText,
    QueriesFile,
    Rounds,
    open_database,
    parse_expansion,
)
from gqe.errors import InputError


@app.command(
    epilog="Examples: gqe explain base.npy queries.npy --query 3 -m alpha-g:k=6\n\n"
    "gqe explain my-index queries.npy --top 20"
)
def explain(
    database: DatabasePlace,
    queries: QueriesFile,
    query: Annotated[int, Option("--query", "-q", help="Row of the query to explain.")] = 0,
    top: Annotated[int, Option(min=1, help="How many of the heaviest items to show.")] = 10,
    method: MethodText = None,
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
    """Show the exact weight of every database item in an expanded query, through all levels and rounds."""
    from gqe.formats import read_vectors

    chosen = parse_expansion(method)
    vectors = read_vectors(queries, key=queries_key)
    if not 0 <= query < len(vectors):
        raise InputError(f"--query: {query} is not a row of {queries}, which has {len(vectors)}")
    with open_database(
        database, chosen, len(vectors), key=database_key, recall=recall, seed=seed, device=device
    ) as opened:
        excluded = opened.read_exclude(exclude, len(vectors))
        result = opened.engine.explain(
            vectors[query],
            top=top,
            exclude=None if excluded is None else [excluded[query]],
            exact=exact or None,
            rounds=rounds,
            **opened.options,
        )
    own, total, count = float(result.own), float(result.total), int(result.count)
    ids, weights = result.ids[:count].tolist(), result.weights[:count].tolist()
    items = [
        {"id": item, "weight": round(weight, 6), "share": round(abs(weight) / total, 6)}
        for item, weight in zip(ids, weights, strict=True)
    ]
    if as_json:
        about_query = {"weight": round(own, 6), "share": round(own / total, 6)}
        print_json(
            opened.about | {"query": query, "own": about_query, "items": items, "items_with_weight": count}
        )
        return
    rows = [["the query", f"{own:.4f}", f"{own / total:.1%}"]]
    rows += [[f"item {item['id']}", f"{item['weight']:.4f}", f"{item['share']:.1%}"] for item in items]
    print_table(["source", "weight", "share"], rows)
    typer.echo(f"{count} items have a weight; {len(items)} shown")
