"""`gqe store`: levels beside the vectors of a database that is already there."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gqe.cli.common import Device, Json, print_json, print_table, progress_bar
from gqe.errors import InputError

app = typer.Typer(help="Attach expansion to a vector database and keep it fresh.", no_args_is_help=True)

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="postgresql://user@host/db?table=items, qdrant://host/collection, milvus://host/collection,"
        " or the folder of an index.",
    ),
]


@app.command("attach", epilog="Example: gqe store attach 'postgresql://me@db/shop?table=items'")
def attach(
    url: Url,
    expander: Annotated[
        str, typer.Option("--expander", "-m", help="Method and settings, such as universal or aqe-g:k=4.")
    ] = "universal",
    exact: Annotated[
        bool, typer.Option("--exact", help="Find neighbours exactly instead of by the engine's index.")
    ] = False,
    anew: Annotated[
        bool, typer.Option("--anew", help="Start from nothing, replacing what is attached.")
    ] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write neighbour lists and levels beside the vectors; run again, it goes on where it was stopped."""
    from gqe.methods import parse_method
    from gqe.models import from_method
    from gqe.stores import connect

    chosen = parse_method(expander)
    if chosen.then is not None or chosen.dba:
        raise InputError("--expander: a store expands queries; leave dba- and +RERANKER out")
    with connect(url, device=device) as items:
        with progress_bar("store") as progress:
            items.attach(from_method(chosen), exact=exact, anew=anew, progress=progress)
        _say(items, as_json, {}, f"{items.address}: {chosen.title} attached to {len(items)} items")


@app.command("sync", epilog="Example: gqe store sync qdrant://localhost:6333/pictures")
def sync(url: Url, device: Device = "auto", as_json: Json = False) -> None:
    """Recompute what items added, changed or deleted since have made stale."""
    from gqe.stores import connect

    with connect(url, device=device) as items:
        with progress_bar("store") as progress:
            done = items.sync(progress=progress)
        text = f"{items.address}: {done.added} added, {done.changed} changed, {done.deleted} deleted;"
        _say(items, as_json, done._asdict(), f"{text} {done.lists} neighbour lists renewed")


@app.command("stats", epilog="Example: gqe store stats milvus://localhost:19530/pictures --json")
def stats(url: Url, device: Device = "auto", as_json: Json = False) -> None:
    """What is attached, how far it is, and how much of it is out of date."""
    from gqe.stores import connect

    with connect(url, device="cpu") as items:
        about = items.stats()
    if as_json:
        print_json(about)
        return
    if "unsynced" in about and about["unsynced"] is None:
        about["unsynced"] = "unknown; gqe store sync finds out"
    print_table(
        ["what", "value"], [[name.replace("_", " "), str(value)] for name, value in about.items()], left=2
    )


def _say(items: Any, as_json: bool, more: dict[str, Any], text: str) -> None:
    if as_json:
        print_json({"store": items.address, "items": len(items), "dimension": items.dimension} | more)
    else:
        typer.echo(text)
