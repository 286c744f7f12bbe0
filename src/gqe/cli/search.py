"""`gqe search`: expand, search again, print the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    print_json,
    print_table,
)
from gqe.cli.database import Database, DatabasePlace, Exact, Exclude, MethodText, Rounds, open_database
from gqe.cli.pictures import PictureQueries
from gqe.errors import InputError


@app.command(
    epilog="Examples: gqe search base.npy queries.npy -m universal:rounds=2+reciprocal -k 5\n\n"
    "gqe search my-index queries.npy -k 10 --rerank reciprocal --json\n\n"
    "gqe search my-index --image photo.jpg --html found.html\n\n"
    "gqe search qdrant://localhost/pictures queries.npy --filter '{\"year\": 2024}'"
)
def search(
    database: DatabasePlace,
    queries: Annotated[
        Path | None,
        Argument(metavar="QUERIES", help="File of query vectors of the same dimension; or use --image."),
    ] = None,
    image: Annotated[
        list[Path] | None,
        Option("--image", help="With a database of pictures: a picture to search with; may be repeated."),
    ] = None,
    box: Annotated[
        str | None, Option(help="With one --image: crop it to LEFT,TOP,RIGHT,BOTTOM first.")
    ] = None,
    html: Annotated[
        Path | None, Option("--html", help="With --image: a page of the results as pictures.")
    ] = None,
    extraction: Annotated[
        Path | None,
        Option("--extraction", help="With --image: the record of gqe extract, if DATABASE has none."),
    ] = None,
    method: MethodText = None,
    k: Annotated[int, Option("-k", help="How many results for each query.")] = 10,
    plain: Annotated[bool, Option("--plain", help="Search with the queries as they are.")] = False,
    rounds: Rounds = None,
    rerank: Annotated[
        str | None,
        Option(metavar="NAME[:SETTING=VALUE]", help="Reorder the results by the neighbour graph."),
    ] = None,
    dba: Annotated[
        bool | None,
        Option(
            "--dba/--no-dba",
            help="Search the augmented database, or not; if left out, where the index has one, and with a"
            " file if the method begins with dba-.",
            show_default=False,
        ),
    ] = None,
    filter_text: Annotated[
        str | None,
        Option(
            "--filter",
            metavar="JSON",
            help='With an index or a vector database: items to find, \'{"year": [2023, 2024], "price":'
            ' {"lt": 10}}\'.',
        ),
    ] = None,
    exact: Exact = False,
    exclude: Exclude = None,
    database_key: DatabaseKey = None,
    queries_key: QueriesKey = None,
    recall: Recall = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Search a file of vectors, an index or a vector database with expanded queries."""
    from gqe.formats import read_vectors
    from gqe.methods import parse_method

    if (queries is None) == (not image):
        raise InputError("QUERIES: give a file of query vectors, or a picture by --image (not both)")
    if not image and (box is not None or html is not None or extraction is not None):
        raise InputError("--box, --html and --extraction: are for a search with --image")
    if plain and (method is not None or rounds is not None):
        raise InputError(
            "--plain: searches with the queries as they are; leave -m and --rounds out (--rerank and --dba"
            " work with it)"
        )
    if html is not None:
        output_file(html)
    chosen = None if method is None else parse_method(method)
    if chosen is not None and chosen.then is not None:
        if rerank is not None:
            raise InputError(f"--rerank: the method names {chosen.then.name} already; leave one of them out")
        rerank = str(chosen.then)
    if chosen is not None and chosen.dba and dba is None:
        dba = True
    settings: dict[str, Any] = {"filter": _parse_filter(filter_text), "exact": exact or None, "dba": dba}
    vectors = None if queries is None else read_vectors(queries, key=queries_key)
    num_queries = 0 if vectors is None else len(vectors)
    with open_database(
        database, chosen, num_queries, key=database_key, recall=recall, seed=seed, device=device
    ) as opened:
        if filter_text is not None and opened.file is not None:
            raise InputError(
                "--filter: a file of vectors has no metadata; give it to gqe index build --metadata"
            )
        about = opened.about
        pictures = PictureQueries(opened, image, box, extraction, device) if image else None
        if pictures is not None:
            vectors, about = pictures.vectors, about | {"images": [str(path) for path in pictures.images]}
        assert vectors is not None
        settings["exclude"] = opened.read_exclude(exclude, len(vectors))
        k = _without_padding(k, opened)
        found = opened.engine.search(
            vectors, k, expand=not plain, rounds=rounds, rerank=rerank, **settings, **opened.options
        )
        if pictures is not None and html is not None:
            before = found if plain else opened.engine.search(vectors, k, expand=False, **settings)
            pictures.write_page(html, before, None if plain else found)
    _print_results(found, about, as_json)


def _parse_filter(text: str | None) -> Any:
    import json

    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--filter: not readable as JSON ({error})") from None


def _without_padding(k: int, database: Database) -> int:
    """No more results than there are items: places without one take memory and are not printed."""
    from gqe.aggregators.base import MOST

    # Smaller numbers take little memory, and some stores take long to count; larger ones are refused.
    return min(k, max(1, len(database.items))) if 1000 < k <= MOST else k


def _print_results(found: Any, about: dict[str, Any], as_json: bool) -> None:
    """Results as one JSON object or as a table; places without an item are left out."""
    results: list[dict[str, Any]] = []
    for row, (scores, ids) in enumerate(zip(found.scores.tolist(), found.ids.tolist(), strict=True)):
        items = [(i, round(s, 6)) for i, s in zip(ids, scores, strict=True) if i is not None and i != -1]
        results.append({"query": row, "ids": [i for i, _ in items], "scores": [s for _, s in items]})
    if as_json:
        print_json(about | {"results": results})
        return
    lines = []
    for result in results:
        pairs = zip(result["ids"], result["scores"], strict=True)
        lines.append([str(result["query"]), " ".join(f"{i}:{s:.3f}" for i, s in pairs)])
    print_table(["query", "id:score, best first"], lines, left=2)
