"""`gqe data`: built-in and official data sets, and file formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from gqe.cli import official_data
from gqe.cli.common import Device, Json, Seed, output_file, print_json, print_table, progress_bar

app = typer.Typer(help="List, get, describe and make data sets; convert vector files.", no_args_is_help=True)
official_data.register(app)


@app.command("describe", epilog="Example: gqe data describe town\n\ngqe data describe vectors.fvecs")
def describe(
    source: Annotated[
        str, typer.Argument(help="A data set (see `gqe data list`), a benchmark .npz, or a file of vectors.")
    ],
    key: Annotated[
        str | None, typer.Option(help="Name of the array in an npz, hdf5 or parquet file.")
    ] = None,
    as_json: Json = False,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Sizes, types and lengths of a data set or file."""
    about = _described(source, key)
    if as_json:
        print_json(about)
    else:
        print_table(["what", "value"], [[name, str(value)] for name, value in about.items()], left=2)


@app.command("convert", epilog="Example: gqe data convert base.fvecs base.npy")
def convert(
    source: Annotated[Path, typer.Argument(help="File to read.")],
    target: Annotated[Path, typer.Argument(help="File to write; its ending chooses the format.")],
    key: Annotated[
        str | None, typer.Option(help="Name of the array in an npz, hdf5 or parquet file.")
    ] = None,
    as_json: Json = False,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Convert a file of vectors to another format; large files are streamed."""
    from gqe import formats

    output_file(target)
    formats.convert(source, target, key=key)
    written = formats.read_vectors(target)
    if as_json:
        print_json({"output": str(target), "vectors": len(written), "dimension": int(written.shape[1])})
    else:
        typer.echo(f"wrote {len(written)} vectors of dimension {written.shape[1]} to {target}")


@app.command("make", epilog="Example: gqe data make town -o town.npz")
def make(
    name: Annotated[str, typer.Argument(help="Data set to draw and extract anew: town.")] = "town",
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it.")] = Path("town.npz"),
    scale: Annotated[
        float, typer.Option(help="Size of the town; 0.05 makes a village to try with in seconds.")
    ] = 1.0,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Draw the pictures of the built-in town and extract their descriptors again."""
    from gqe import datasets

    output_file(output)
    with progress_bar(name) as progress:
        about = datasets.make(name, output, seed=seed, scale=scale, progress=progress)
    if as_json:
        print_json(about)
    else:
        typer.echo(f"wrote {output}")


def _described(source: str, key: str | None) -> dict[str, Any]:
    from gqe import datasets, formats
    from gqe.embeddings import as_table

    if datasets.is_name(source) or datasets.is_benchmark_file(source):
        data = datasets.load(source)
        return {
            "name": data.name,
            "about": data.description,
            "queries": len(data.queries),
            "database": len(data.database),
            "dimension": int(data.database.shape[1]),
        }
    vectors = formats.read_vectors(source, key=key)
    lengths = np.linalg.norm(vectors[: min(len(vectors), 10_000)].astype(np.float32), axis=1)
    as_table(vectors, source)  # says which row is unusable, if one is
    return {
        "file": source,
        "vectors": len(vectors),
        "dimension": int(vectors.shape[1]),
        "type": str(vectors.dtype),
        "shortest": round(float(lengths.min()), 4) if len(lengths) else None,
        "longest": round(float(lengths.max()), 4) if len(lengths) else None,
    }
