"""`gqe index`: build, change and look over an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gqe.cli.common import Device, Json, Seed, print_json, print_table, progress_bar
from gqe.errors import InputError

# Of 2**63 - 1, the largest id; Python refuses to read numbers of thousands of digits.
_MOST_DIGITS = 19

app = typer.Typer(help="Build an index once, search it fast, update it forever.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="INDEX", help="Directory of the index.")]
Vectors = Annotated[
    Path, typer.Argument(metavar="VECTORS", help="File of vectors (npy, npz, fvecs, fbin, hdf5, ...).")
]
Key = Annotated[str | None, typer.Option("--key", help="Name of the array in an npz, hdf5 or parquet file.")]
Metadata = Annotated[
    Path | None, typer.Option("--metadata", help="Parquet file with one row for each vector.")
]
IdsFile = Annotated[
    Path | None, typer.Option("--ids", help="Ids of the vectors: a text file, one a line, or .npy.")
]
Refresh = Annotated[
    bool,
    typer.Option("--refresh", help="Compute levels that changed now, not when a search first needs them."),
]


Source = Annotated[
    str,
    typer.Argument(
        metavar="VECTORS", help="File of vectors, folder of such files, or an address (s3://bucket/base.npy)."
    ),
]
Place = Annotated[
    str, typer.Argument(metavar="INDEX", help="Directory of the index; with --cluster also an address.")
]


@app.command("build", epilog="Example: gqe index build base.npy my-index --expander universal")
def build(
    vectors: Source,
    index: Place,
    expander: Annotated[
        str, typer.Option("--expander", "-m", help="Method and settings, such as universal or aqe-g:k=4.")
    ] = "universal",
    ids: IdsFile = None,
    metadata: Metadata = None,
    storage: Annotated[
        str, typer.Option(help="float32, float16 or int8; by level, embeddings first: float16,int8.")
    ] = "float32",
    dba: Annotated[
        bool, typer.Option("--dba", help="Store the augmented database, too, and search in it.")
    ] = False,
    recall: Annotated[
        float | None,
        typer.Option("--recall", help="Find neighbours approximately: at least this share (e.g. 0.95)."),
    ] = None,
    approximate_by: Annotated[
        str, typer.Option("--approximate-by", help="With --recall: auto, ivf, ivf-pq or hnsw.")
    ] = "auto",
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="Build on a Ray cluster: auto, local, or host:port of its head node."),
    ] = None,
    shards: Annotated[
        int | None, typer.Option("--shards", min=1, help="With --cluster: into how many parts rows are cut.")
    ] = None,
    key: Key = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Build an index; the same command goes on with a build that was stopped."""
    from gqe.extraction.record import copy_record, names_path
    from gqe.formats.addresses import is_address
    from gqe.index import Index
    from gqe.methods import parse_method
    from gqe.models import from_method

    if not vectors:
        raise InputError("VECTORS: is empty; give a file, a folder or an address")
    chosen = parse_method(expander)
    if chosen.then is not None:
        raise InputError(f"--expander: {chosen.then.name} reorders results; leave it to gqe search --rerank")
    if chosen.database_only:
        raise InputError(
            f"--expander: build with {chosen.name} and --dba, then search with --plain: queries as they are"
        )
    if ids is None and not is_address(vectors) and names_path(vectors).is_file():
        ids = names_path(vectors)  # of gqe extract: the pictures' paths
    given: dict[str, Any] = {
        "ids": None if ids is None else read_ids(ids),
        "metadata": metadata,
        "storage": storage.split(","),
        "dba": dba or chosen.dba,
        "recall": recall,
        "approximate_by": approximate_by,
        "device": device,
        "seed": seed,
    }
    if cluster is not None:
        _build_on_cluster(vectors, from_method(chosen), index, cluster, shards, key, given, as_json)
        return
    if shards is not None:
        raise InputError("--shards: only a build with --cluster cuts an index into shards")
    if is_address(index):
        raise InputError(f"{index}: give a folder; only a build with --cluster writes to an address")
    with progress_bar("index") as progress:
        made = Index.build(_table(vectors, key), from_method(chosen), index, progress=progress, **given)
    if not is_address(vectors):
        copy_record(vectors, index)
    _say(made, as_json, f"built {index}: {len(made)} items of dimension {made.dimension}")


@app.command("add", epilog="Example: gqe index add my-index more.npy")
def add(
    index: Folder,
    vectors: Vectors,
    ids: IdsFile = None,
    metadata: Metadata = None,
    update: Annotated[
        bool, typer.Option("--update", help="Replace the items of these ids instead of adding new ones.")
    ] = False,
    refresh: Refresh = False,
    key: Key = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Add items to an index, or give items new vectors."""
    from gqe.formats import read_vectors
    from gqe.index import Index

    opened = Index.open(index, device=device)
    names = None if ids is None else read_ids(ids, texts=opened.id_kind == "text")
    with progress_bar("index") as progress:
        given: dict[str, Any] = {"metadata": metadata, "refresh": refresh, "progress": progress}
        rows = read_vectors(vectors, key=key)
        if not update:
            opened.add(rows, ids=names, **given)
        elif names is None:
            raise InputError("--ids: give the ids of the items to update")
        else:
            opened.update(rows, names, **given)
    _say(opened, as_json, f"{index}: {len(opened)} items, version {opened.version}")


@app.command("remove", epilog="Example: gqe index remove my-index --ids gone.txt")
def remove(
    index: Folder,
    ids: Annotated[Path, typer.Option("--ids", help="Ids to remove: a text file, one a line, or .npy.")],
    refresh: Refresh = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Remove items; no search finds them from here on."""
    from gqe.index import Index

    opened = Index.open(index, device=device)
    names = read_ids(ids, texts=opened.id_kind == "text")
    with progress_bar("index") as progress:
        opened.remove(names, refresh=refresh, progress=progress)
    _say(opened, as_json, f"{index}: {len(opened)} items, version {opened.version}")


@app.command("compact", epilog="Example: gqe index compact my-index")
def compact(index: Folder, device: Device = "auto", as_json: Json = False) -> None:
    """Compute all levels that are out of date and rewrite the files without removed items."""
    from gqe.index import Index

    opened = Index.open(index, device=device)
    with progress_bar("index") as progress:
        opened.compact(progress=progress)
    _say(opened, as_json, f"{index}: {len(opened)} items, version {opened.version}")


@app.command("verify", epilog="Example: gqe index verify my-index && echo sound")
def verify(index: Folder, device: Device = "auto", as_json: Json = False) -> None:
    """Read every byte and compare checksums; exit status 1 names the files that are damaged."""
    from gqe.index import verify as problems_of

    problems = problems_of(index)
    if as_json:
        print_json({"index": str(index), "sound": not problems, "problems": problems})
    else:
        typer.echo("\n".join(problems) if problems else f"{index}: sound")
    if problems:
        raise typer.Exit(1)


@app.command("stats", epilog="Example: gqe index stats my-index --json")
def stats(index: Folder, device: Device = "auto", as_json: Json = False) -> None:
    """Sizes, K, L, recall and staleness."""
    from gqe.index import Index

    about = Index.open(index, device="cpu").stats()
    if as_json:
        print_json(about)
        return
    rows = [[name.replace("_", " "), _shown(value)] for name, value in about.items()]
    print_table(["what", "value"], rows, left=2)


@app.command("fetch", epilog="Example: gqe index fetch s3://bucket/my-index my-index")
def fetch(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Where --cluster has built an index.")],
    index: Folder,
    as_json: Json = False,
) -> None:
    """Copy an index from an address to this machine, and verify it; what is there already is not copied."""
    from gqe.cluster.storage import fetch_index
    from gqe.index import Index

    with progress_bar("fetch") as progress:
        fetch_index(address, index, progress=progress)
    _say(Index.open(index, device="cpu"), as_json, f"{index}: fetched from {address}")


def _build_on_cluster(
    vectors: str,
    expander: Any,
    index: str,
    cluster: str,
    shards: int | None,
    key: str | None,
    given: dict[str, Any],
    as_json: bool,
) -> None:
    from gqe.cluster.building import build_index
    from gqe.extraction.record import copy_record
    from gqe.formats.addresses import is_address

    with progress_bar("index") as progress:
        made = build_index(
            vectors, expander, index, cluster=cluster, shards=shards, key=key, progress=progress, **given
        )
    if not is_address(vectors) and not is_address(index):
        copy_record(vectors, index)
    if as_json:
        print_json({"index": index} | made)
        return
    seconds = sum(made["wall_seconds"].values())
    typer.echo(
        f"built {index}: {made['items']} items in {made['shards']} shards by {made['workers']} workers"
        f" in {seconds:.1f} s"
    )


def _table(vectors: str, key: str | None) -> Any:
    """One file as an array, which is read through for its fingerprint; a folder or an address as a source."""
    from gqe.formats import read_vectors
    from gqe.formats.addresses import is_address
    from gqe.formats.sources import open_source

    if is_address(vectors) or Path(vectors).is_dir():
        return open_source(vectors, key=key)
    return read_vectors(vectors, key=key)


def read_ids(path: Path, *, texts: bool = False) -> Any:
    """Ids from a .npy file, or from a text file with one a line: whole numbers if all of them are.

    Args:
        path: the file.
        texts: keep lines as they are.
    """
    import numpy as np

    from gqe.formats.checks import existing_file, explaining

    found = existing_file(path)
    with explaining(found, "file of ids"):
        if found.suffix == ".npy":
            return np.load(found, allow_pickle=False)
        lines = [line.strip() for line in found.read_text(encoding="utf-8").splitlines() if line.strip()]
    if texts or not all(line.isascii() and line.isdigit() for line in lines):
        return lines
    numbers = [line.lstrip("0") or "0" for line in lines]
    for row, number in enumerate(numbers, start=1):
        if len(number) > _MOST_DIGITS:
            raise InputError(
                f"{path}: id {row} is {number:.20}..., larger than 2**63 - 1; use smaller numbers"
            )
    return [int(number) for number in numbers]


def _say(index: Any, as_json: bool, text: str) -> None:
    if as_json:
        about = {"index": str(index.path), "items": len(index), "dimension": index.dimension}
        print_json(about | {"version": index.version})
    else:
        typer.echo(text)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
