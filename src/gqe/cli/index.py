"""`gqe index`: build, change and look over an index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gqe.cli.common import (
    Cluster,
    Device,
    ExpanderText,
    Json,
    Key,
    Recall,
    Seed,
    app,
    print_facts,
    print_result,
    read_ids,
)
from gqe.errors import InputError
from gqe.progress import progress_bar

if TYPE_CHECKING:
    from gqe.index import Index

commands = typer.Typer(help="Build an index once, search it fast, update it forever.", no_args_is_help=True)
app.add_typer(commands, name="index")

Folder = Annotated[Path, Argument(metavar="INDEX", help="Directory of the index.")]
Metadata = Annotated[Path | None, Option("--metadata", help="Parquet file with one row for each vector.")]
Ids = Annotated[Path | None, Option("--ids", help="Ids of the vectors: a text file, one per line, or .npy.")]
Refresh = Annotated[bool, Option("--refresh", help="Compute changed levels now, not when first needed.")]


@commands.command(
    epilog="Examples: gqe index build base.npy my-index --expander universal\n\n"
    "gqe index build texts.txt my-index --model all-MiniLM-L6-v2"
)
def build(
    vectors: Annotated[
        str,
        Argument(
            metavar="VECTORS",
            help="File of vectors, folder of such files, or an address (s3://...); with --model, of texts.",
        ),
    ],
    index: Annotated[str, Argument(metavar="INDEX", help="Directory; with --cluster also an address.")],
    model: Annotated[
        str | None,
        Option(
            help="Name or folder of a sentence-transformers model: VECTORS is a file with one text per line,"
            " kept as the column `text`."
        ),
    ] = None,
    expander: ExpanderText = "universal",
    ids: Ids = None,
    metadata: Metadata = None,
    storage: Annotated[str, Option(help="float32, float16 or int8; or by level: float16,int8.")] = "float32",
    dba: Annotated[bool, Option("--dba", help="Store the augmented database and search it.")] = False,
    recall: Recall = None,
    approximate_by: Annotated[str, Option(help="With --recall: auto, ivf, ivf-pq or hnsw.")] = "auto",
    cluster: Cluster = None,
    shards: Annotated[int | None, Option(min=1, help="With --cluster: number of parts.")] = None,
    key: Key = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Build an index; the same command goes on with a build that was stopped."""
    from gqe.extraction.record import copy_record, names_path
    from gqe.formats import read_vectors
    from gqe.formats.addresses import is_address
    from gqe.formats.sources import open_source
    from gqe.index import Index
    from gqe.methods import parse_method
    from gqe.models import from_method

    if not vectors:
        raise InputError("VECTORS: is empty; give a file, a folder or an address")
    chosen = parse_method(expander)
    if chosen.reranking is not None:
        raise InputError(
            f"--expander: {chosen.reranking.name} reorders results; leave it to gqe search --rerank"
        )
    if chosen.database_only:
        raise InputError(
            f"--expander: build with {chosen.name} and --dba, then search with --plain: queries as they are"
        )
    if ids is None and not is_address(vectors) and names_path(vectors).is_file():
        ids = names_path(vectors)  # of gqe extract: the pictures' paths
    settings: dict[str, Any] = {
        "ids": None if ids is None else read_ids(ids),
        "metadata": metadata,
        "storage": storage.split(","),
        "dba": dba or chosen.dba,
        "recall": recall,
        "approximate_by": approximate_by,
        "device": device,
        "seed": seed,
    }
    if model is not None and (cluster is not None or key is not None):
        raise InputError("--model: VECTORS is a file of texts; leave --cluster and --key out")
    if cluster is not None:
        from gqe.cluster.building import build_index

        settings |= {"cluster": cluster, "shards": shards, "key": key}
        built = build_index(vectors, from_method(chosen), index, progress=True, **settings)
        text = (
            f"built {index}: {built['items']} items in {built['shards']} shards by {built['workers']} workers"
            f" in {sum(built['wall_seconds'].values()):.1f} s"
        )
        about = {"index": index} | built
    else:
        if shards is not None:
            raise InputError("--shards: only a build with --cluster cuts an index into shards")
        if is_address(index):
            raise InputError(f"{index}: give a folder; only a build with --cluster writes to an address")
        table: Any
        if model is not None:
            from gqe.integrations.sentence_transformers import (
                TextModel,
                read_texts,
                with_texts,
                write_model_name,
            )

            texts = read_texts(vectors)
            embedder = TextModel(model, device)
            table, settings["metadata"] = embedder.embed_documents(texts), with_texts(metadata, texts)
        else:
            # One file is read through for its fingerprint.
            is_file = not is_address(vectors) and not Path(vectors).is_dir()
            table = read_vectors(vectors, key=key) if is_file else open_source(vectors, key=key)
        opened = Index.build(table, from_method(chosen), index, progress=True, **settings)
        if model is not None:
            write_model_name(index, embedder.name)
        about, text = _state(opened), f"built {index}: {len(opened)} items of dimension {opened.dimension}"
    if not is_address(vectors) and not is_address(index):
        copy_record(vectors, index)
    print_result(about, text, as_json)


@commands.command(epilog="Example: gqe index add my-index more.npy")
def add(
    index: Folder,
    vectors: Annotated[
        Path, Argument(metavar="VECTORS", help="File of vectors (npy, npz, fvecs, fbin, hdf5...).")
    ],
    ids: Ids = None,
    metadata: Metadata = None,
    update: Annotated[bool, Option("--update", help="Replace the items of --ids, add none.")] = False,
    refresh: Refresh = False,
    key: Key = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Add items to an index, or give items new vectors."""
    from gqe.formats import read_vectors
    from gqe.index import Index

    opened = Index.open(index, device=device)
    names = None if ids is None else read_ids(ids, as_text=opened.id_kind == "text")
    settings: dict[str, Any] = {"metadata": metadata, "refresh": refresh, "progress": True}
    rows = read_vectors(vectors, key=key)
    if not update:
        opened.add(rows, ids=names, **settings)
    elif names is None:
        raise InputError("--ids: give the ids of the items to update")
    else:
        opened.update(rows, names, **settings)
    print_result(_state(opened), f"{index}: {len(opened)} items, version {opened.version}", as_json)


@commands.command(epilog="Example: gqe index remove my-index --ids gone.txt")
def remove(
    index: Folder,
    ids: Annotated[Path, Option(help="Ids to remove: a text file, one per line, or .npy.")],
    refresh: Refresh = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Remove items; no search finds them from here on."""
    from gqe.index import Index

    opened = Index.open(index, device=device)
    names = read_ids(ids, as_text=opened.id_kind == "text")
    opened.remove(names, refresh=refresh, progress=True)
    print_result(_state(opened), f"{index}: {len(opened)} items, version {opened.version}", as_json)


@commands.command(epilog="Example: gqe index compact my-index")
def compact(index: Folder, device: Device = "auto", as_json: Json = False) -> None:
    """Compute all levels that are out of date and rewrite the files without removed items."""
    from gqe.index import Index

    opened = Index.open(index, device=device)
    opened.compact(progress=True)
    print_result(_state(opened), f"{index}: {len(opened)} items, version {opened.version}", as_json)


@commands.command(epilog="Example: gqe index verify my-index && echo sound")
def verify(index: Folder, device: Device = "auto", as_json: Json = False) -> None:
    """Read every byte and compare checksums; exit status 1 names the files that are damaged."""
    from gqe.index import verify as find_problems

    problems = find_problems(index)
    about = {"index": str(index), "sound": not problems, "problems": problems}
    print_result(about, "\n".join(problems) if problems else f"{index}: sound", as_json)
    if problems:
        raise typer.Exit(1)


@commands.command(epilog="Example: gqe index stats my-index --json")
def stats(index: Folder, device: Device = "auto", as_json: Json = False) -> None:
    """Sizes, K, L, recall and staleness."""
    from gqe.index import Index

    print_facts(Index.open(index, device="cpu").stats(), as_json)


@commands.command(epilog="Example: gqe index fetch s3://bucket/my-index my-index")
def fetch(
    address: Annotated[str, Argument(metavar="ADDRESS", help="Where --cluster has built an index.")],
    index: Folder,
    as_json: Json = False,
) -> None:
    """Copy an index from an address to this machine, and verify it; what is there already is not copied."""
    from gqe.cluster.storage import fetch_index
    from gqe.index import Index

    with progress_bar("fetch") as progress:
        fetch_index(address, index, progress=progress)
    print_result(_state(Index.open(index, device="cpu")), f"{index}: fetched from {address}", as_json)


def _state(index: Index) -> dict[str, Any]:
    return {
        "index": str(index.path),
        "items": len(index),
        "dimension": index.dimension,
        "version": index.version,
    }
