"""Pictures to vectors on a cluster: each part of the pictures is one task.

What a part holds depends on its pictures and the settings alone, wherever it is made, so the files are those
of `gqe extract` without a cluster; either goes on with a run that the other has begun.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gqe.cluster.session import Chain, TaskRunner, connect, ray_module
from gqe.errors import InputError
from gqe.extraction.extracting import (
    PART_SIZE,
    Extraction,
    ExtractionPart,
    PartFiles,
    describe,
    extract,
    missing_parts,
)
from gqe.extraction.network import Network, open_network
from gqe.extraction.pictures import DecodingOptions, Picture
from gqe.extraction.whitening import Whitening
from gqe.progress import Progress, Report

# Networks that compute on a GPU where there is one; the others run on the CPU.
_ON_GPU = ("timm:", "torchvision:")
_ON_GPU_FILES = (".pth", ".pt", ".tar")


class ExtractionSettings(NamedTuple):
    """What all tasks of an extraction know; small, and sent to each.

    Attributes:
        network: Name or file, for `open_network`.
        settings: Of `open_network`, by name.
        fingerprint: Of its weights, as the driver sees them.
        whitening: Applied to descriptors, or None.
        opening: Limits and rotation of pictures.
        workers: Processes that decode for a task.
    """

    network: str
    settings: tuple[tuple[str, Any], ...]
    fingerprint: str
    whitening: Whitening | None
    opening: DecodingOptions
    workers: int


def extract_on_cluster(
    pictures: Sequence[Picture],
    output: str | os.PathLike[str],
    network: str,
    *,
    cluster: str = "auto",
    settings: dict[str, Any] | None = None,
    whitening: Whitening | None = None,
    whitening_file: str | None = None,
    opening: DecodingOptions | None = None,
    folder: str | os.PathLike[str] = "",
    workers: int | None = None,
    progress: Progress = False,
) -> Extraction:
    """`gqe.extraction.extract` with the work done by a cluster.

    All nodes must see the pictures, and the file of the network, under the same paths. The driver keeps
    finished parts beside the output; killed, it goes on from them.

    Args:
        pictures: See `pictures_of_folder`.
        output: The vectors' file, ending in .npy.
        network: Name or file, for `open_network`.
        cluster: See `gqe.cluster.session.connect`.
        settings: Of `open_network`. A task uses one thread unless `threads` is among them.
        whitening: Applied to the network's descriptors.
        whitening_file: Where it came from, for the record.
        opening: Limits and rotation of pictures.
        folder: Where the pictures are, for the record.
        workers: Processes that decode for each task; 1 if None, so that a picture that crashes its decoder
            does not end the task.
        progress: See `gqe.extraction.extract`.

    Raises:
        InputError: Ray is not installed, nobody answers, or what `extract` refuses.
    """
    ray = ray_module()
    if workers is not None and workers < 0:
        raise InputError(f"workers: {workers} is negative; use 0 to decode in the task itself")
    options = dict(settings or {})
    options["threads"] = options.get("threads") or 1
    here = open_network(network, **options)
    options["batch_size"] = here.batch_size  # results may depend on it
    uses_gpu = network.startswith(_ON_GPU) or network.endswith(_ON_GPU_FILES)

    def describe_missing(parts: PartFiles, progress: Report | None) -> None:
        with connect(cluster) as session:
            on_gpu = session.gpus and uses_gpu and options.get("device") != "cpu"
            options["device"] = "cuda" if on_gpu else "cpu"
            hashable = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
            shared = ray.put(
                ExtractionSettings(
                    network=str(Path(network).absolute()) if Path(network).is_file() else network,
                    settings=tuple(sorted(hashable.items())),
                    fingerprint=here.fingerprint,
                    whitening=whitening,
                    opening=opening or DecodingOptions(),
                    workers=1 if workers is None else workers,
                )
            )
            runner = TaskRunner(ray, session, options["device"], str(output))
            task = runner.task(describe_part, spread=True)
            missing = missing_parts(parts, len(pictures))
            done = len(pictures) - sum(len(_part_of(pictures, number)) for number in missing)

            def chain(number: int) -> Chain:
                nonlocal done
                some = list(_part_of(pictures, number))
                parts.write(number, (yield task.remote(shared, some, number)))
                done += len(some)
                if progress is not None:
                    progress(done, len(pictures), Path(some[-1].name).name)

            runner.run(map(chain, missing))

    return extract(
        pictures,
        output,
        here,
        whitening=whitening,
        whitening_file=whitening_file,
        opening=opening,
        folder=folder,
        describing=describe_missing,
        progress=progress,
    )


def describe_part(settings: ExtractionSettings, pictures: list[Picture], number: int) -> ExtractionPart:
    """One part: the task. Gives the same wherever, and however often, it runs."""
    network = _network(settings.network, settings.settings)
    if network.fingerprint != settings.fingerprint:
        raise InputError(
            f"{settings.network}: a node has another version of this network; copy it to all nodes"
        )
    parts = _SinglePart()
    describe(pictures, network, settings.whitening, settings.opening, settings.workers, parts, None)
    assert parts.part is not None
    start = number * PART_SIZE
    reasons = [(row + start, why) for row, why in parts.part.reasons]
    return ExtractionPart(parts.part.rows + start, parts.part.vectors, reasons)


class _SinglePart:
    """Holds the only part of a task, in the place of `PartFiles`."""

    part: ExtractionPart | None = None

    def read(self, number: int) -> ExtractionPart | None:
        """Nothing is there before."""
        return None

    def write(self, number: int, part: ExtractionPart) -> None:
        """Hold it."""
        self.part = part


def _part_of(pictures: Sequence[Picture], number: int) -> Sequence[Picture]:
    return pictures[number * PART_SIZE : (number + 1) * PART_SIZE]


@lru_cache(maxsize=1)
def _network(name: str, settings: tuple[tuple[str, Any], ...]) -> Network:
    """Opened once in each worker process."""
    return open_network(name, **dict(settings))
