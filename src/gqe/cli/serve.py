"""`gqe serve`: an index or a vector database as an HTTP service with a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from gqe.cli.common import Device, Json, app, print_result
from gqe.errors import InputError


@app.command(
    epilog="Examples: gqe serve --demo\n\n"
    "gqe serve my-index --port 8080 --pictures photos\n\n"
    "gqe serve my-index --host 0.0.0.0 --tokens tokens.txt\n\n"
    "gqe serve my-index --cluster head:6379 --replicas 2\n\n"
    "gqe serve 'postgresql://me@db/shop?table=items' --pictures photos"
)
def serve(
    place: Annotated[
        str | None,
        Argument(
            metavar="INDEX_OR_STORE",
            help="Directory of an index, or address of a vector database, see gqe store attach --help.",
        ),
    ] = None,
    demo: Annotated[bool, Option("--demo", help="Serve the built-in town instead of an index.")] = False,
    host: Annotated[str, Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 for any that is free.")] = 8080,
    name: Annotated[
        list[str] | None, Option(help="Also answer to this name, as of a proxy; may be repeated.")
    ] = None,
    proxy: Annotated[
        list[str] | None,
        Option(help="IP address of a proxy whose X-Forwarded-For is believed; may be repeated."),
    ] = None,
    tokens: Annotated[
        Path | None,
        Option(help="File of lines `read SECRET` or `read,write SECRET`; $GQE_TOKENS if left out."),
    ] = None,
    read_only: Annotated[bool, Option("--read-only", help="Refuse changes.")] = False,
    pictures: Annotated[Path | None, Option(help="Folder of the pictures, if they were moved.")] = None,
    extraction: Annotated[
        Path | None,
        Option(
            help="Record that gqe extract wrote beside its vectors, to search by picture; an index has one."
        ),
    ] = None,
    model: Annotated[
        str | None,
        Option(
            help="To search by text: the sentence-transformers model, if what is served does not know it."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        Option(
            help="Search by shards of the index on a Ray cluster: auto, local or host:port of its head."
            " Changes are refused; those of gqe index add are seen."
        ),
    ] = None,
    replicas: Annotated[
        int | None, Option(min=1, help="With --cluster: processes that hold each shard; 1 if left out.")
    ] = None,
    shards: Annotated[
        int | None, Option(min=1, help="With --cluster: parts of the index; as it was built if left out.")
    ] = None,
    rate: Annotated[float, Option(min=0, help="Requests a second for each client; 0 for no limit.")] = 500.0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Serve searches, explanations and changes over HTTP, and a page to try them."""
    if (place is None) == (not demo):
        raise InputError("INDEX_OR_STORE: give an index's folder or a store's address, or --demo (not both)")
    try:
        from gqe.server.app import create_app
        from gqe.server.opening import open_demo, open_served
        from gqe.server.runner import bind_socket, check_proxies, restrict_settings, run
        from gqe.server.settings import Settings, read_tokens
    except ModuleNotFoundError as error:
        raise InputError(f"serve: {error.name} is not installed; pip install 'gqe[serve]'") from None

    shared = _sharding(cluster, replicas, shards, demo)
    settings = Settings(tokens=read_tokens(tokens), read_only=read_only or shared is not None, rate=rate)
    settings = restrict_settings(settings, host, name or ())
    proxies = check_proxies(proxy or ())
    bound = bind_socket(host, port)
    if place is None:
        if pictures is not None or extraction is not None or model is not None:
            raise InputError(
                "--pictures, --extraction, --model: the town has its own pictures; leave them out"
            )
        parts = open_demo(device=device, max_pixels=settings.max_pixels)
    else:
        parts = open_served(
            place, pictures, extraction, model, device=device, max_pixels=settings.max_pixels, cluster=shared
        )
    service = create_app(
        parts.engine,
        settings,
        describe=parts.describe,
        pictures=parts.pictures,
        examples=parts.examples,
        embed=parts.embed,
        labels=parts.labels,
    )
    address = bound.getsockname()
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    url = f"http://{shown}:{address[1]}/"
    print_result({"url": url}, f"{url}  (Ctrl+C to stop)", as_json)
    run(service, bound, proxies=proxies)


def _sharding(
    cluster: str | None, replicas: int | None, shards: int | None, demo: bool
) -> dict[str, Any] | None:
    """Settings of `ShardedServing`; None without a cluster."""
    if cluster is None:
        if replicas is not None or shards is not None:
            raise InputError("--replicas, --shards: belong to --cluster; give it, too, or leave them out")
        return None
    if demo:
        raise InputError(
            "--cluster: the town is served by one process; leave one of --demo and --cluster out"
        )
    return {"cluster": cluster, "replicas": replicas or 1, "shards": shards}
