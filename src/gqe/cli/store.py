"""`gqe store`: levels beside the vectors of a database that is already there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gqe.cli.common import Device, ExpanderText, Json, app, print_facts, print_result
from gqe.errors import InputError

if TYPE_CHECKING:
    from gqe.stores import Connection

commands = typer.Typer(help="Attach expansion to a vector database and keep it fresh.", no_args_is_help=True)
app.add_typer(commands, name="store")

Url = Annotated[
    str,
    Argument(
        metavar="URL",
        help="postgresql://user@host/db?table=items, qdrant://host/collection, milvus://host/collection,"
        " lancedb:///folder?table=items, or the folder of an index.",
    ),
]


@commands.command(epilog="Example: gqe store attach 'postgresql://me@db/shop?table=items'")
def attach(
    url: Url,
    expander: ExpanderText = "universal",
    exact: Annotated[bool, Option("--exact", help="Find neighbours without the engine's index.")] = False,
    anew: Annotated[bool, Option("--anew", help="Start from nothing, replacing what is attached.")] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write neighbour lists and levels beside the vectors; run again, it goes on where it was stopped."""
    from gqe.methods import parse_method
    from gqe.models import from_method
    from gqe.stores import connect

    chosen = parse_method(expander)
    if chosen.reranking is not None or chosen.dba:
        raise InputError("--expander: a store expands queries; leave dba- and +RERANKER out")
    with connect(url, device=device) as items:
        items.attach(from_method(chosen), exact=exact, anew=anew, progress=True)
        text = f"{items.address}: {chosen.title} attached to {len(items)} items"
        print_result(_about(items), text, as_json)


@commands.command(epilog="Example: gqe store sync qdrant://localhost:6333/pictures")
def sync(url: Url, device: Device = "auto", as_json: Json = False) -> None:
    """Recompute what items added, changed or deleted since have made stale."""
    from gqe.stores import connect

    with connect(url, device=device) as items:
        done = items.sync(progress=True)
        text = (
            f"{items.address}: {done.added} added, {done.changed} changed, {done.deleted} deleted;"
            f" {done.lists} neighbour lists renewed"
        )
        print_result(_about(items) | done._asdict(), text, as_json)


@commands.command(epilog="Example: gqe store stats milvus://localhost:19530/pictures --json")
def stats(url: Url, device: Device = "auto", as_json: Json = False) -> None:
    """What is attached, how far it is, and how much of it is out of date."""
    from gqe.stores import connect

    with connect(url, device="cpu") as items:
        about = items.stats()
    if not as_json and about.get("unsynced", 0) is None:
        about["unsynced"] = "unknown; gqe store sync finds out"
    print_facts(about, as_json)


def _about(items: Connection) -> dict[str, Any]:
    return {"store": items.address, "items": len(items), "dimension": items.dimension}
