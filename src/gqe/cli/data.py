"""`gqe data`: built-in and official data sets, and file formats."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from typer import Argument, Option

from gqe.cli.common import (
    Json,
    Key,
    Seed,
    app,
    output_file,
    print_facts,
    print_json,
    print_result,
    print_table,
)
from gqe.errors import InputError
from gqe.progress import progress_bar
from gqe.redaction import redact

if TYPE_CHECKING:
    from gqe.datasets.official import DownloadPlan

commands = typer.Typer(
    help="List, get, describe and make data sets; convert vector files.", no_args_is_help=True
)
app.add_typer(commands, name="data")

Root = Annotated[Path | None, Option("--root", help="Folder of all data; $GQE_DATA or the cache by default.")]
_ASK_ABOVE = 1_000_000_000  # bytes


@commands.command("list", epilog="Example: gqe data list")
def list_data(root: Root = None, as_json: Json = False) -> None:
    """The data sets: built in, and those `gqe data get` fetches, with what of them is here."""
    from gqe import datasets
    from gqe.datasets import official

    folder = official.data_root(root)
    rows: list[dict[str, Any]] = [
        {"name": name, "about": about, "bytes": None, "here": "yes"}
        for name, about in datasets.available().items()
        if not official.is_official(name)
    ]
    rows += [_list_entry(name, folder) for name in official.COLLECTIONS]
    names = official.BENCHMARKS | official.TRAINING
    if as_json:
        rows = [{key: value for key, value in row.items() if key != "size"} for row in rows]
        print_json({"root": str(folder), "datasets": rows, "benchmarks_and_training_sets": names})
        return
    table = [[row["name"], row["here"], row.get("size", ""), row["about"]] for row in rows]
    print_table(["name", "here", "size", "what"], table, left=4)
    typer.echo(f"\nfolder: {folder}")
    typer.echo(f"to evaluate, tune and train with, once here: {', '.join(names)}")


@commands.command(
    epilog="Examples: gqe data get roxford5k && gqe evaluate roxford5k\n\n"
    "gqe data get rparis6k --pictures --root /data --yes"
)
def get(
    names: Annotated[list[str], Argument(metavar="NAME...", help="What to get; see `gqe data list`.")],
    pictures: Annotated[bool, Option("--pictures", help="Also pictures, for extraction: gigabytes.")] = False,
    root: Root = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask before a large download.")] = False,
    check: Annotated[bool, Option("--check", help="Compare what is here with its checksums.")] = False,
    timeout: Annotated[float, Option(min=0.1, help="Seconds without a byte to wait for.")] = 30.0,
    tries: Annotated[int, Option(min=1, help="Failures in a row before giving up.")] = 6,
    as_json: Json = False,
) -> None:
    """Fetch official data from its owners; the same command continues a stopped one."""
    from gqe.datasets import official

    folder = official.data_root(root)
    chosen = [official.collection(name) for name in dict.fromkeys(names)]
    results = []
    for collection in chosen:
        if check:
            with progress_bar(collection.name) as progress:
                wrong = official.verify(collection, folder, progress=progress)
            if wrong:
                raise InputError(f"{wrong[0]}: has changed since the download; remove it and get it again")
        plan = official.plan(collection, folder, pictures=pictures, timeout=timeout)
        if not as_json:
            _print_plan(plan)
        if plan.missing_steps:
            _confirm(plan, yes)
            with progress_bar(collection.name) as progress:
                official.get(plan, progress=progress, retry=official.RetryPolicy(timeout, tries))
        results.append(
            {
                "name": collection.name,
                "folder": str(plan.folder),
                "fetched": [step.file.name for step in plan.missing_steps],
                "bytes": plan.to_fetch,
            }
        )
        if not as_json:
            typer.echo(f"{collection.name} is in {plan.folder}")
    if as_json:
        print_json({"root": str(folder), "datasets": results})


@commands.command(epilog="Example: ls $(gqe data path roxford5k)")
def path(
    name: Annotated[str | None, Argument(help="A data set; without it the folder of all.")] = None,
    root: Root = None,
) -> None:
    """Print the folder of a data set."""
    from gqe.datasets import official

    folder = official.data_root(root)
    typer.echo(str(folder if name is None else folder / official.collection(name).name))


@commands.command(epilog="Example: gqe data pictures roxford5k-queries -o queries.tsv")
def pictures(
    name: Annotated[
        str, Argument(help="roxford5k, rparis6k, either with -queries, r1m, rsfm120k-train or -val.")
    ],
    output: Annotated[Path | None, Option("--output", "-o", help="Write the list to this file.")] = None,
    root: Root = None,
) -> None:
    """The pictures of a data set in the order of its descriptors: path, and for queries the box.

    Paths begin in the folder that `gqe data path` prints; the box is left, top, right, bottom. Tabs separate.
    """
    from gqe.datasets import official
    from gqe.formats.atomic import atomic_path

    folder = official.data_root(root)
    lines = []
    for item in official.pictures(name, folder):
        root = folder / item.path.relative_to(folder).parts[0]  # as `gqe data path` prints it
        lines.append("\t".join([item.path.relative_to(root).as_posix(), *map(repr, item.box or ())]))
    if output is None:
        typer.echo("\n".join(lines))
    else:
        with atomic_path(output) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


@commands.command(epilog="Example: gqe data describe town\n\ngqe data describe vectors.fvecs")
def describe(
    source: Annotated[
        str, Argument(help="A data set of `gqe data list`, a benchmark .npz, or a file of vectors.")
    ],
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Sizes, types and lengths of a data set or file."""
    from gqe import datasets, formats
    from gqe.embeddings import as_table

    if datasets.is_name(source) or datasets.is_benchmark_file(source):
        data = datasets.load(source)
        about: dict[str, Any] = {
            "name": data.name,
            "about": data.description,
            "queries": len(data.queries),
            "database": len(data.database),
            "dimension": int(data.database.shape[1]),
        }
    else:
        vectors = formats.read_vectors(source, key=key)
        as_table(vectors, source)  # says which row is unusable, if one is
        lengths = np.linalg.norm(vectors[:10_000].astype(np.float32), axis=1)
        about = {
            "file": source,
            "vectors": len(vectors),
            "dimension": int(vectors.shape[1]),
            "type": str(vectors.dtype),
            "shortest": round(float(lengths.min()), 4) if len(lengths) else None,
            "longest": round(float(lengths.max()), 4) if len(lengths) else None,
        }
    print_facts(about, as_json)


@commands.command(epilog="Example: gqe data convert base.fvecs base.npy")
def convert(
    source: Annotated[Path, Argument(help="File to read.")],
    target: Annotated[Path, Argument(help="File to write; its ending chooses the format.")],
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Convert a file of vectors to another format; large files are streamed."""
    from gqe import formats

    output_file(target)
    formats.convert(source, target, key=key)
    written = formats.read_vectors(target)
    about = {"output": str(target), "vectors": len(written), "dimension": int(written.shape[1])}
    text = f"wrote {len(written)} vectors of dimension {written.shape[1]} to {target}"
    print_result(about, text, as_json)


@commands.command(epilog="Example: gqe data make town -o town.npz")
def make(
    name: Annotated[str, Argument(help="Data set to draw and extract anew: town.")] = "town",
    output: Annotated[Path, Option("--output", "-o", help="Where to write it.")] = Path("town.npz"),
    scale: Annotated[float, Option(help="Size of the town; 0.05 takes seconds.")] = 1.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Draw the pictures of the built-in town and extract their descriptors again."""
    from gqe import datasets

    output_file(output)
    with progress_bar(name) as progress:
        about = datasets.make(name, output, seed=seed, scale=scale, progress=progress)
    print_result(about, f"wrote {output}", as_json)


def _list_entry(name: str, root: Path) -> dict[str, Any]:
    from gqe.datasets import official

    collection = official.collection(name)
    parts: dict[str, list[bool]] = {}
    try:
        entries = official.read_record(root / name)
        for file in collection.files:
            parts.setdefault(file.part, []).append(official.is_here(root / name, file, entries))
        complete = [part for part, states in parts.items() if all(states)]
        here = "yes" if len(complete) == len(parts) else ", ".join(complete) or "no"
    except InputError:  # `get` says what is wrong; a list goes on
        here = "changed"
    sizes = [file.size or file.roughly for file in collection.files]
    known = sum(size for size in sizes if size is not None)
    size = official.format_size(known) if known else "unknown"
    return {
        "name": name,
        "about": collection.about,
        "bytes": None if None in sizes else known,
        "size": f"over {size}" if None in sizes and known else size,
        "here": here,
    }


def _print_plan(plan: DownloadPlan) -> None:
    from gqe.datasets.official import format_size

    rows = []
    for step in plan.steps:
        state = "here" if step.done else f"{format_size(step.have)} here" if step.have else "to fetch"
        size = "" if step.done else format_size(step.size)
        rows.append([step.file.name, size, state, redact(step.address)])
    many = len(rows) - 12
    if many > 0:
        rows = [*rows[:10], [f"... {many + 2} more", "", "", ""]]
    print_table(["file", "size", "", "from"], rows, left=4)
    if plan.missing_steps:
        to_fetch, free = format_size(plan.to_fetch), format_size(plan.free)
        typer.echo(f"to fetch: {to_fetch}; into {plan.folder}; free there: {free}")
        typer.echo(f"terms: {plan.collection.terms}")


def _confirm(plan: DownloadPlan, yes: bool) -> None:
    from gqe.datasets.official import format_size

    if yes or (plan.to_fetch is not None and plan.to_fetch <= _ASK_ABOVE):
        return
    if not sys.stdin.isatty():
        raise InputError(f"{plan.collection.name}: {format_size(plan.to_fetch)} to fetch; say so with --yes")
    if not typer.confirm("Fetch?", err=True):
        raise InputError(f"{plan.collection.name}: nothing was fetched")
