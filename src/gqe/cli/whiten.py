"""`gqe whiten`: learn a whitening from vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from gqe.cli.common import Json, Key, app, output_file, print_result, read_ids
from gqe.errors import InputError


@app.command(
    epilog="Examples: gqe whiten vectors.npy -o white.npz --dim 512\n\n"
    "gqe whiten vectors.npy -o white.npz --labels labels.npy\n\n"
    "gqe extract pictures -o vectors.npy --whiten white.npz"
)
def whiten(
    vectors: Annotated[
        Path, Argument(metavar="VECTORS", help="File of vectors to learn from, not to search.")
    ],
    output: Annotated[Path, Option("--output", "-o", help="File of the whitening: .npz or .safetensors.")],
    dim: Annotated[int | None, Option(min=1, help="Dimensions to keep; all if left out.")] = None,
    labels: Annotated[
        Path | None, Option(help="Learn from labels: a text file, one per line, or .npy.")
    ] = None,
    pairs: Annotated[Path | None, Option(help="Learn from pairs of rows: .npy (m, 2).")] = None,
    shrinkage: Annotated[float, Option(help="Without labels: 0 to 1, damping of weak axes.")] = 0.0,
    key: Key = None,
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
    elif shrinkage:
        raise InputError("--shrinkage: is for a whitening without labels or pairs; leave it out")
    elif pairs is not None:
        learned = fit_pairs(table, np.asarray(read_vectors(pairs)), dim)
    else:
        assert labels is not None
        values = np.asarray(read_ids(labels))
        if values.shape != (len(table),):
            raise InputError(
                f"{labels}: labels of shape {values.shape} for {len(table)} vectors; give one for each"
            )
        learned = fit_pairs(table, pairs_of_labels(values), dim)
    save_whitening(output, learned)
    before, after = learned.projection.shape
    about = {"output": str(output), "vectors": len(table), "dimension": before, "kept": after}
    text = f"wrote {output}: {before} dimensions to {after}, learned from {len(table)} vectors"
    print_result(about, text, as_json)
