"""`gqe extract`: a folder of pictures to a file of vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gqe.cli.common import (
    Cluster,
    Device,
    Json,
    app,
    output_file,
    parse_numbers,
    print_result,
)

# As in gqe.extraction.pictures, which is not imported for `gqe --help`.
MOST_PIXELS = 89_478_485


@app.command(
    epilog="Examples: gqe extract pictures -o vectors.npy\n\n"
    "gqe extract pictures -o vectors.npy --network rSfM120k-tl-resnet101-gem-w.pth\n\n"
    "gqe extract jpg -o queries.npy --network net.pth --list gnd_roxford5k.pkl:queries"
)
def extract(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Folder of pictures, with all in it.")],
    output: Annotated[
        Path,
        Option("--output", "-o", help="File of vectors to write (.npy); names and a record lie beside it."),
    ],
    network: Annotated[
        str,
        Option(
            "--network",
            "-n",
            help="lite0, a checkpoint (.pth), an ONNX model (.onnx), timm:NAME or torchvision:NAME.",
        ),
    ] = "lite0",
    whiten: Annotated[
        str | None, Option(help="Whitening to apply: a file of `gqe whiten`, or CHECKPOINT.pth[:DATASET].")
    ] = None,
    names: Annotated[
        str | None,
        Option(
            "--list",
            help="Only these pictures, in this order: a text file of names, a box behind a name if wanted, "
            "or a benchmark's ground truth (gnd.pkl for its database, gnd.pkl:queries).",
        ),
    ] = None,
    size: Annotated[int | None, Option(help="Longer side in pixels; lite0 224, checkpoints 1024.")] = None,
    scales: Annotated[
        str | None,
        Option(help="For checkpoints: scales whose descriptors are averaged; 1,1.4142,0.7071 if left out."),
    ] = None,
    power: Annotated[
        str | None, Option(help="For checkpoints: power of the mean over scales, or gem.")
    ] = None,
    batch_size: Annotated[
        int | None, Option(min=1, max=4096, help="Pictures per call of the network.")
    ] = None,
    threads: Annotated[
        int | None,
        Option(min=1, max=1024, help="Of the network; all cores by default, one per task with --cluster."),
    ] = None,
    workers: Annotated[int | None, Option(min=0, max=256, help="Processes that decode; 0 for none.")] = None,
    max_pixels: Annotated[int, Option(min=1, max=2**31, help="Skip larger pictures.")] = MOST_PIXELS,
    as_stored: Annotated[
        bool, Option("--as-stored", help="Do not turn pictures by their EXIF data.")
    ] = False,
    strict: Annotated[bool, Option("--strict", help="Exit with status 1 if a picture is skipped.")] = False,
    cluster: Cluster = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Describe pictures by a network; the same command goes on with a run that was stopped."""
    from gqe.extraction import extract as describe
    from gqe.extraction import load_whitening, open_network, pictures_of_folder, pictures_of_list
    from gqe.extraction.pictures import DecodingOptions

    if cluster is not None:
        from gqe.cluster.session import ray_module

        ray_module()  # says at once if it is not there

    output_file(output)
    pictures = pictures_of_folder(folder) if names is None else pictures_of_list(folder, names)
    settings: dict[str, Any] = {
        "size": size,
        "scales": None if scales is None else parse_numbers("--scales", scales),
        "power": power if power is None or power == "gem" else parse_numbers("--power", power)[0],
        "batch_size": batch_size,
        "threads": threads,
        "device": device,
    }
    opened = open_network(network, **settings)
    several = len(opened.settings.get("scales", ())) > 1
    arguments: dict[str, Any] = {
        "whitening": None if whiten is None else load_whitening(whiten, several_scales=several),
        "whitening_file": None if whiten is None else str(Path(whiten).absolute()),
        "opening": DecodingOptions(max_pixels, not as_stored),
        "folder": folder,
        "workers": workers,
    }
    if cluster is None:
        written = describe(pictures, output, opened, **arguments, progress=True)
    else:
        from gqe.cluster.extracting import extract_on_cluster

        written = extract_on_cluster(
            pictures, output, network, cluster=cluster, settings=settings, **arguments, progress=True
        )
    record = written.about
    about = {
        "output": str(written.vectors),
        "names": str(written.names),
        "record": str(written.record),
        "vectors": record.pictures,
        "dimension": record.dimension,
        "skipped": record.skipped,
        "skipped_file": str(written.skipped),
    }
    text = (
        f"wrote {record.pictures} vectors of dimension {record.dimension} to {written.vectors}\n"
        f"next: gqe index build {written.vectors} INDEX"
    )
    print_result(about, text, as_json)
    if record.skipped:
        typer.echo(f"gqe: skipped {record.skipped} pictures, see {written.skipped}", err=True)
        if strict:
            raise typer.Exit(1)
