"""`gqe whiten`: learn a whitening from vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gqe.cli.common import Device, Json, Seed, output_file, print_json
from gqe.errors import InputError


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(
        "whiten",
        epilog="Examples: gqe whiten vectors.npy -o white.npz --dim 512\n\n"
        "gqe whiten vectors.npy -o white.npz --labels labels.npy\n\n"
        "gqe extract pictures -o vectors.npy --whiten white.npz",
    )(whiten)


def whiten(
    vectors: Annotated[
        Path,
        typer.Argument(metavar="VECTORS", help="File of vectors to learn from, none of which is searched."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File of the whitening: .npz or .safetensors.")
    ],
    dim: Annotated[int | None, typer.Option(min=1, help="Dimensions to keep; all if left out.")] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Learn from what belongs together: labels, a text file with one a line, or .npy."),
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Learn from what belongs together: .npy of rows (m, 2).")
    ] = None,
    shrinkage: Annotated[
        float, typer.Option(help="Without labels: 0 to 1, how much less weak axes are blown up.")
    ] = 0.0,
    key: Annotated[
        str | None, typer.Option(help="Name of the array in an npz, hdf5 or parquet file.")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Learn a whitening for `gqe extract --whiten`: from vectors alone, or from labels or pairs, too."""
    import numpy as np

    from gqe.extraction import fit, fit_pairs, pairs_of_labels, save_whitening
    from gqe.formats import read_vectors

    if labels is not None and pairs is not None:
        raise InputError("--pairs: give labels or pairs, not both")
    output_file(output)
    table = np.asarray(read_vectors(vectors, key=key))
    if labels is None and pairs is None:
        learned = fit(table, min(table.shape[1], len(table) - 1) if dim is None else dim, shrinkage=shrinkage)
    else:
        if shrinkage:
            raise InputError("--shrinkage: is for a whitening without labels or pairs; leave it out")
        rows = np.asarray(read_vectors(pairs)) if pairs is not None else _labels(labels, len(table))
        learned = fit_pairs(table, rows if labels is None else pairs_of_labels(rows), dim)
    save_whitening(output, learned)
    before, after = learned.projection.shape
    if as_json:
        print_json({"output": str(output), "vectors": len(table), "dimension": before, "kept": after})
    else:
        typer.echo(f"wrote {output}: {before} dimensions to {after}, learned from {len(table)} vectors")


def _labels(path: Path | None, count: int) -> Any:
    import numpy as np

    from gqe.cli.index import read_ids

    assert path is not None
    labels = np.asarray(read_ids(path))
    if labels.shape != (count,):
        raise InputError(f"{path}: labels of shape {labels.shape} for {count} vectors; give one for each")
    return labels
