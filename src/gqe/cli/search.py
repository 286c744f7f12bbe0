"""`gqe search`, `gqe expand` and `gqe explain`: all take a file of vectors, an index or a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gqe.cli.common import app, output_file, print_json, print_result, print_table
from gqe.cli.database import DatabaseOptions, OpenedDatabase, Place, with_database_options
from gqe.cli.pictures import PictureQueries
from gqe.errors import InputError


@app.command(
    epilog="Examples: gqe search base.npy queries.npy -m universal:rounds=2+reciprocal -k 5\n\n"
    "gqe search my-index queries.npy -k 10 --rerank reciprocal --json\n\n"
    "gqe search my-index --image photo.jpg --html found.html\n\n"
    "gqe search my-index --text 'a red house' --with-metadata\n\n"
    "gqe search qdrant://localhost/pictures queries.npy --filter '{\"year\": 2024}'"
)
@with_database_options
def search(
    database: Place,
    queries: Annotated[
        Path | None, Argument(metavar="QUERIES", help="File of query vectors; or use --image or --text.")
    ] = None,
    image: Annotated[list[Path] | None, Option(help="A picture to search with; may be repeated.")] = None,
    text: Annotated[list[str] | None, Option(help="A text to search with; may be repeated.")] = None,
    model: Annotated[
        str | None,
        Option(help="With --text: the sentence-transformers model, if DATABASE does not know it."),
    ] = None,
    box: Annotated[str | None, Option(help="With one --image: crop to LEFT,TOP,RIGHT,BOTTOM.")] = None,
    html: Annotated[Path | None, Option(help="With --image: write the results as a page.")] = None,
    extraction: Annotated[
        Path | None, Option(help="With --image: the record of gqe extract, if DATABASE has none.")
    ] = None,
    k: Annotated[int, Option("-k", help="How many results for each query.")] = 10,
    plain: Annotated[bool, Option("--plain", help="Search with the queries as they are.")] = False,
    rerank: Annotated[
        str | None, Option(metavar="NAME[:SETTING=VALUE]", help="Reorder the results by the neighbour graph.")
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
    with_metadata: Annotated[
        bool, Option("--with-metadata", help="Also what an index or a vector database keeps of each.")
    ] = False,
    run: Annotated[
        Path | None, Option(help="Write the results to this TREC run file instead of printing them.")
    ] = None,
    query_ids: Annotated[
        Path | None, Option(metavar="IDS", help="With --run: the id of each query, one per line.")
    ] = None,
    *,
    options: DatabaseOptions,
) -> None:
    """Search a file of vectors, an index or a vector database with expanded queries."""
    from gqe.formats import read_vectors, write_run
    from gqe.formats.trec import read_names
    from gqe.methods import parse_method

    if (queries is not None) + bool(image) + bool(text) != 1:
        raise InputError(
            "QUERIES: give a file of query vectors, or a picture by --image, or a text by --text (not both)"
        )
    if model is not None and not text:
        raise InputError("--model: is for a search with --text")
    if not image and (box is not None or html is not None or extraction is not None):
        raise InputError("--box, --html and --extraction: are for a search with --image")
    if queries is None and options.queries_key is not None:
        raise InputError("--queries-key: is for a file of query vectors; leave it out")
    if plain and (options.method is not None or options.rounds is not None):
        raise InputError(
            "--plain: searches with the queries as they are; leave -m and --rounds out (--rerank and --dba"
            " work with it)"
        )
    if query_ids is not None and run is None:
        raise InputError("--query-ids: is for --run; leave it out")
    if run is not None and with_metadata:
        raise InputError("--with-metadata: a run has ids and scores only; leave it or --run out")
    for file in (html, run):
        if file is not None:
            output_file(file)
    names = None if query_ids is None else read_names(query_ids)
    chosen = None if options.method is None else parse_method(options.method)
    if chosen is not None and chosen.reranking is not None:
        if rerank is not None:
            raise InputError(
                f"--rerank: the method names {chosen.reranking.name} already; leave one of them out"
            )
        rerank = str(chosen.reranking)
    if chosen is not None and chosen.dba and dba is None:
        dba = True
    wanted = _parse_filter(filter_text)
    settings: dict[str, Any] = {"filter": wanted, "exact": options.exact or None, "dba": dba}
    vectors = None if queries is None else read_vectors(queries, key=options.queries_key)
    with options.open(database, chosen, vectors) as opened:
        if filter_text is not None and opened.file is not None:
            raise InputError(
                "--filter: a file of vectors has no metadata; give it to gqe index build --metadata"
            )
        about = opened.about
        if image:
            pictures = PictureQueries(opened, image, box, extraction, options.device)
            vectors, about = pictures.vectors, about | {"images": [str(path) for path in image]}
        if text:
            vectors, about = _embed_texts(opened, text, model, options.device), about | {"texts": text}
        assert vectors is not None
        settings["exclude"] = opened.read_exclude(options.exclude, len(vectors))
        k = _limit_k(k, opened)
        found = opened.engine.search(
            vectors,
            k,
            expand=not plain,
            rounds=options.rounds,
            rerank=rerank,
            with_metadata=with_metadata,
            **settings,
            **opened.options,
        )
        if html is not None:
            before = found if plain else opened.engine.search(vectors, k, expand=False, **settings)
            pictures.write_page(html, before, None if plain else found)
    if run is not None:
        tag = "plain" if plain else "".join(opened.method.split())
        count = write_run(run, found, query_ids=names, tag=tag)
        about |= {"output": str(run), "results": count}
        print_result(about, f"wrote {count} results of {len(found.ids)} queries to {run}", options.as_json)
        return
    _print_results(found, about, options.as_json)


@app.command(
    epilog="Examples: gqe expand base.npy queries.npy -o expanded.npy\n\n"
    "gqe expand my-index queries.npy --rounds 2 -o expanded.npy\n\n"
    "gqe expand base.npy --augment -m alpha:k=10 -o augmented.npy"
)
@with_database_options
def expand(
    database: Place,
    queries: Annotated[
        Path | None, Argument(metavar="QUERIES", help="File of query vectors; not with --augment.")
    ] = None,
    output: Annotated[Path, Option("--output", "-o", help="The ending chooses the format.")] = Path(
        "expanded.npy"
    ),
    augment: Annotated[bool, Option("--augment", help="With a file: write the augmented database.")] = False,
    *,
    options: DatabaseOptions,
) -> None:
    """Expand query vectors over a database, or augment the database itself."""
    from gqe.formats import read_vectors, write_vectors

    if augment == (queries is not None):
        raise InputError("queries: give a QUERIES file to expand, or --augment to augment the database")
    if augment and (
        options.rounds is not None
        or options.exact
        or options.exclude is not None
        or options.queries_key is not None
    ):
        raise InputError(
            "--augment: concerns no queries; leave --rounds, --exact, --exclude and --queries-key out"
        )
    output_file(output)
    chosen = _parse_expansion(options.method)
    vectors = None if queries is None else read_vectors(queries, key=options.queries_key)
    with options.open(database, chosen, vectors) as opened:
        if vectors is not None:
            result = opened.engine.expand(
                vectors,
                exclude=opened.read_exclude(options.exclude, len(vectors)),
                exact=options.exact or None,
                rounds=options.rounds,
                **opened.options,
            )
        elif opened.file is None:
            raise InputError("--augment: is for a file of vectors; gqe index build --dba augments an index")
        else:
            result = opened.engine.augment()
    write_vectors(output, result)
    about = {"output": str(output), "vectors": len(result), "dimension": int(result.shape[1])}
    text = f"wrote {len(result)} vectors of dimension {result.shape[1]} to {output}"
    print_result(about | opened.about, text, options.as_json)


@app.command(
    epilog="Examples: gqe explain base.npy queries.npy --query 3 -m alpha-g:k=6\n\n"
    "gqe explain my-index queries.npy --top 20"
)
@with_database_options
def explain(
    database: Place,
    queries: Annotated[Path, Argument(metavar="QUERIES", help="File of query vectors.")],
    query: Annotated[int, Option("--query", "-q", help="Row of the query to explain.")] = 0,
    top: Annotated[int, Option(min=1, help="How many of the heaviest items to show.")] = 10,
    *,
    options: DatabaseOptions,
) -> None:
    """Show the exact weight of every database item in an expanded query, through all levels and rounds."""
    from gqe.formats import read_vectors

    chosen = _parse_expansion(options.method)
    vectors = read_vectors(queries, key=options.queries_key)
    if not 0 <= query < len(vectors):
        raise InputError(f"--query: {query} is not a row of {queries}, which has {len(vectors)}")
    with options.open(database, chosen, vectors) as opened:
        excluded = opened.read_exclude(options.exclude, len(vectors))
        result = opened.engine.explain(
            vectors[query],
            top=top,
            exclude=None if excluded is None else [excluded[query]],
            exact=options.exact or None,
            rounds=options.rounds,
            **opened.options,
        )
    own, total, count = float(result.own), float(result.total), int(result.count)
    ids, weights = result.ids[:count].tolist(), result.weights[:count].tolist()
    items = [
        {"id": item, "weight": round(weight, 6), "share": round(abs(weight) / total, 6)}
        for item, weight in zip(ids, weights, strict=True)
    ]
    if options.as_json:
        about_query = {"weight": round(own, 6), "share": round(own / total, 6)}
        print_json(
            opened.about | {"query": query, "own": about_query, "items": items, "items_with_weight": count}
        )
        return
    rows = [["the query", f"{own:.4f}", f"{own / total:.1%}"]]
    rows += [[f"item {item['id']}", f"{item['weight']:.4f}", f"{item['share']:.1%}"] for item in items]
    print_table(["source", "weight", "share"], rows)
    typer.echo(f"{count} items have a weight; {len(items)} shown")


def _parse_expansion(text: str | None) -> Any:
    """The method of `gqe expand` and `explain`, which concern queries and search nothing."""
    from gqe.methods import parse_method

    if text is None:
        return None
    method = parse_method(text)
    if method.dba:
        raise InputError(
            f"method: {text!r}: use {method.name!r} here; gqe expand --augment gives the database side"
        )
    if method.reranking is not None:
        raise InputError(
            f"method: {text!r}: {method.reranking.name} reorders results; use it with gqe search"
        )
    return method


def _parse_filter(text: str | None) -> Any:
    import json

    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--filter: not readable as JSON ({error})") from None


def _limit_k(k: int, database: OpenedDatabase) -> int:
    """No more results than there are items: places without one take memory and are not printed."""
    from gqe.aggregators.base import MOST

    # Smaller numbers take little memory, and some stores take long to count; larger ones are refused.
    return min(k, max(1, len(database.items))) if 1000 < k <= MOST else k


def _embed_texts(database: OpenedDatabase, texts: list[str], model: str | None, device: str) -> Any:
    """Embeddings (m, d) of texts by the model that the texts of the database were embedded by."""
    from gqe.integrations.sentence_transformers import TextModel, read_model_name

    if model is None and database.folder is not None:
        model = read_model_name(database.folder)
    if model is None:
        raise InputError(f"--text: {database.name} does not know how texts were embedded; give --model")
    return TextModel(model, device).embed_queries(texts)


def _print_results(found: Any, about: dict[str, Any], as_json: bool) -> None:
    """Results as one JSON object or as a table; places without an item are left out."""
    from gqe.results import plain_value

    results: list[dict[str, Any]] = []
    for row, (scores, ids) in enumerate(zip(found.scores.tolist(), found.ids.tolist(), strict=True)):
        items = [(i, round(s, 6)) for i, s in zip(ids, scores, strict=True) if i is not None and i != -1]
        results.append({"query": row, "ids": [i for i, _ in items], "scores": [s for _, s in items]})
    metadata = found.metadata
    if metadata is not None:
        for result, rows in zip(results, metadata, strict=True):
            result["metadata"] = plain_value([row or {} for row in rows[: len(result["ids"])]])
    if as_json:
        print_json(about | {"results": results})
        return
    if metadata is not None:
        lines = [
            [str(result["query"]), str(name), f"{score:.3f}", _one_line_of(row)]
            for result in results
            for name, score, row in zip(result["ids"], result["scores"], result["metadata"], strict=True)
        ]
        print_table(["query", "id", "score", "metadata"], lines, left=4)
        return
    lines = []
    for result in results:
        pairs = zip(result["ids"], result["scores"], strict=True)
        lines.append([str(result["query"]), " ".join(f"{i}:{s:.3f}" for i, s in pairs)])
    print_table(["query", "id:score, best first"], lines, left=2)


def _one_line_of(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {' '.join(str(value).split())}" for name, value in row.items())
