"""`gqe explain`: which items gave how much weight to a query."""

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
from gqe.errors import InputError


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("explain", epilog="Example: gqe explain base.npy queries.npy --query 3 -m alpha-g:k=6")(
        explain
    )


def explain(
    database: DatabaseFile,
    queries: QueriesFile,
    query: Annotated[int, typer.Option("--query", "-q", help="Row of the query to explain.")] = 0,
    top: Annotated[int, typer.Option(min=1, help="How many of the heaviest items to show.")] = 10,
    method: MethodText = "aqe",
    database_key: DatabaseKey = None,
    queries_key: QueriesKey = None,
    recall: Recall = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Show the exact weight of every database item in an expanded query, through all hops."""
    from gqe.formats import read_vectors
    from gqe.methods import parse_method
    from gqe.models import from_method

    chosen = parse_method(method)
    asked = read_vectors(queries, key=queries_key)
    if not 0 <= query < len(asked):
        raise InputError(f"--query: {query} is not a row of {queries}, which has {len(asked)}")
    expander = from_method(chosen)
    expander.fit(read_vectors(database, key=database_key), recall=recall, seed=seed, device=device)
    explained = expander.explain(asked[query], top=top)
    own, total, count = float(explained.own), float(explained.total), int(explained.count)
    items = [
        {"id": int(each), "weight": round(float(weight), 6), "share": round(abs(float(weight)) / total, 6)}
        for each, weight in zip(explained.ids[:count], explained.weights[:count], strict=True)
    ]
    about_query = {"weight": round(own, 6), "share": round(own / total, 6)}
    if as_json:
        about = {"method": chosen.title, "settings": chosen.given, "query": query, "own": about_query}
        print_json(about | {"items": items, "items_with_weight": count})
        return
    rows = [["the query", f"{own:.4f}", f"{own / total:.1%}"]]
    rows += [[f"item {item['id']}", f"{item['weight']:.4f}", f"{item['share']:.1%}"] for item in items]
    print_table(["source", "weight", "share"], rows)
    typer.echo(f"{count} items have a weight; {len(items)} shown")
