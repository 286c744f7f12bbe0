"""`gqe search`: expand, search again, print what was found."""

from __future__ import annotations

from collections.abc import Sized
from pathlib import Path
from typing import Annotated, Any

import typer

from gqe.cli.common import (
    DatabaseKey,
    Device,
    Json,
    QueriesKey,
    Recall,
    Seed,
    print_json,
    print_table,
)
from gqe.cli.pictures import PictureSearch
from gqe.errors import InputError

DEFAULT_METHOD = "aqe"


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(
        "search",
        epilog="Examples: gqe search base.npy queries.npy -m aqe-g:k=4 -k 5\n\n"
        "gqe search base.npy queries.npy -m universal+reciprocal\n\n"
        "gqe search my-index queries.npy -k 10 --rerank reciprocal --json\n\n"
        "gqe search my-index --image photo.jpg --html found.html\n\n"
        "gqe search --store qdrant://localhost/pictures queries.npy --filter '{\"year\": 2024}'",
    )(search)


def search(
    database: Annotated[
        Path,
        typer.Argument(
            metavar="DATABASE",
            help="Directory of an index, or file of database vectors; left out with --store.",
        ),
    ],
    queries: Annotated[
        Path | None,
        typer.Argument(
            metavar="QUERIES", help="File of query vectors of the same dimension; or use --image."
        ),
    ] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", help="With an index of pictures: a picture to search with; may be repeated."),
    ] = None,
    box: Annotated[
        str | None, typer.Option(help="With one --image: crop it to LEFT,TOP,RIGHT,BOTTOM first.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="With --image: a page of the results as pictures.")
    ] = None,
    extraction: Annotated[
        Path | None,
        typer.Option(
            "--extraction",
            help="With --image: the record `gqe extract` wrote beside its vectors, if the index has none.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store", metavar="URL", help="Search a vector database instead, see gqe store attach --help."
        ),
    ] = None,
    filter_text: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="JSON", help='Items to find: \'{"year": [2023, 2024], "price": {"lt": 10}}\'.'
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help=f"With a file: method, such as alpha-g:k=6 [{DEFAULT_METHOD}].",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many results for each query.")] = 10,
    plain: Annotated[
        bool, typer.Option("--plain", help="With an index: search with the queries as they are.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="With an index built with --recall: search exactly.")
    ] = False,
    rerank: Annotated[
        str | None,
        typer.Option(metavar="NAME[:SETTING=VALUE]", help="With an index: reorder the results by its graph."),
    ] = None,
    database_key: DatabaseKey = None,
    queries_key: QueriesKey = None,
    recall: Recall = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Search an index, or a file of vectors, with expanded queries; dba-METHOD also augments the file."""
    from gqe.formats import read_vectors

    if store is not None:
        others = (queries, image, box, html, extraction, rerank, method, recall, database_key)
        if any(option is not None for option in others):
            raise InputError(
                "--store: give only a file of query vectors, -k, --filter, --plain and --exact;"
                " the store has its own vectors and method"
            )
        asked = read_vectors(database, key=queries_key)
        _print(*_in_store(store, asked, k, plain, exact, _parse_filter(filter_text), device), as_json)
        return
    if filter_text is not None and not database.is_dir():
        raise InputError("--filter: is for a search with --store, or of an index with metadata")
    if (queries is None) == (not image):
        raise InputError("QUERIES: give a file of query vectors, or a picture by --image (not both)")
    if not image and (box is not None or html is not None or extraction is not None):
        raise InputError("--box, --html and --extraction: are for a search with --image")
    if database.is_dir():
        from gqe.index import Index

        if method is not None or recall is not None or database_key is not None:
            raise InputError(f"{database}: an index has its own method, recall and arrays; leave them out")
        index = Index.open(database, device=device)
        about: dict[str, Any] = {"index": str(database), "version": index.version}
        settings: dict[str, Any] = {"exact": exact or None, "rerank": rerank}
        settings["filter"] = _parse_filter(filter_text)
        if image:
            pictures = PictureSearch(index, image, box, extraction, device)
            found = pictures.search(k, expand=not plain, **settings)
            if html is not None:
                pictures.write(html, k, found, expanded=not plain, **settings)
            about |= {"images": [str(path) for path in image]}
        else:
            assert queries is not None
            asked = read_vectors(queries, key=queries_key)
            found = index.search(asked, _without_padding(k, index), expand=not plain, **settings)
    else:
        from gqe.methods import parse_method
        from gqe.models import from_method

        if plain or exact or rerank is not None:
            raise InputError(
                f"{database}: --plain, --exact and --rerank are for an index; use -m none or -m NAME+RERANKER"
            )
        if queries is None:
            raise InputError(f"{database}: --image searches an index; make one with gqe index build")
        chosen = parse_method(method or DEFAULT_METHOD)
        expander = from_method(chosen)
        vectors = read_vectors(database, key=database_key)
        expander.fit(vectors, recall=recall, seed=seed, device=device)
        asked = read_vectors(queries, key=queries_key)
        found = expander.search(asked, _without_padding(k, vectors), dba=chosen.dba)
        about = {"method": chosen.title, "settings": chosen.given}
    _print(found, about, as_json)


def _in_store(
    url: str, asked: Any, k: int, plain: bool, exact: bool, chosen: Any, device: str
) -> tuple[Any, dict[str, Any]]:
    """What a vector database finds, and where."""
    from gqe.stores import connect

    with connect(url, device=device) as items:
        found = items.search(asked, _without_padding(k, items), expand=not plain, filter=chosen, exact=exact)
        return found, {"store": items.address}


def _parse_filter(text: str | None) -> Any:
    import json

    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--filter: not readable as JSON ({error})") from None


def _without_padding(k: int, database: Sized) -> int:
    """No more results than there are items: places without one take memory and are not printed."""
    from gqe.aggregators.base import MOST

    # Smaller numbers take little memory, and some stores take long to count; larger ones are refused.
    return min(k, max(1, len(database))) if 1000 < k <= MOST else k


def _print(found: Any, about: dict[str, Any], as_json: bool) -> None:
    """Results as one JSON object or as a table; places without an item are left out."""
    results: list[dict[str, Any]] = []
    for row, (scores, ids) in enumerate(zip(found.scores.tolist(), found.ids.tolist(), strict=True)):
        there = [(i, round(s, 6)) for i, s in zip(ids, scores, strict=True) if i is not None and i != -1]
        results.append({"query": row, "ids": [i for i, _ in there], "scores": [s for _, s in there]})
    if as_json:
        print_json(about | {"results": results})
        return
    lines = [
        [
            str(result["query"]),
            " ".join(f"{i}:{s:.3f}" for i, s in zip(result["ids"], result["scores"], strict=True)),
        ]
        for result in results
    ]
    print_table(["query", "id:score, best first"], lines, left=2)
