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

from gqe.cluster.running import Chain, TaskRunner
from gqe.cluster.session import connect, ray_module
from gqe.errors import InputError
from gqe.extraction.extracting import (
    PART_SIZE,
    Extraction,
    ExtractionPart,
    PartFiles,
    Progress,
    describe,
    extract,
    missing_parts,
)
from gqe.extraction.network import Network, open_network
from gqe.extraction.pictures import Opening, Picture
from gqe.extraction.whitening import Whitening

# Networks that compute on a GPU where there is one; the others run on the CPU.
_ON_GPU = ("timm:", "torchvision:")
_ON_GPU_FILES = (".pth", ".pt", ".tar")


class Describing(NamedTuple):
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
    opening: Opening
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
    opening: Opening | None = None,
    folder: str | os.PathLike[str] = "",
    workers: int | None = None,
    progress: Progress = None,
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
        progress: Called with pictures done, pictures in all, and the latest name.

    Raises:
        InputError: Ray is not installed, nobody answers, or what `extract` refuses.
    """
    ray = ray_module()
    if workers is not None and workers < 0:
        raise InputError(f"workers: {workers} is negative; use 0 to decode in the task itself")
    given = dict(settings or {})
    given["threads"] = given.get("threads") or 1
    here = open_network(network, **given)
    given["batch_size"] = here.batch_size  # results may depend on it

    def on_cluster(parts: PartFiles, progress: Progress) -> None:
        with connect(cluster) as session:
            device = "cuda" if session.gpus and _uses_gpu(network) and given.get("device") != "cpu" else "cpu"
            known = given | {"device": device}
            about = Describing(
                network=str(Path(network).absolute()) if Path(network).is_file() else network,
                settings=tuple(sorted((name, _fixed(value)) for name, value in known.items())),
                fingerprint=here.fingerprint,
                whitening=whitening,
                opening=opening or Opening(),
                workers=1 if workers is None else workers,
            )
            crew = TaskRunner(ray, session, device, str(output))
            task, shared = crew.task(describe_part, spread=True), ray.put(about)
            missing = missing_parts(parts, len(pictures))
            count = _Count(len(pictures), len(pictures) - _size(missing, len(pictures)), progress)
            crew.run(_part(task, shared, pictures, number, parts, count) for number in missing)

    return extract(
        pictures,
        output,
        here,
        whitening=whitening,
        whitening_file=whitening_file,
        opening=opening,
        folder=folder,
        describing=on_cluster,
        progress=progress,
    )


def describe_part(about: Describing, pictures: list[Picture], number: int) -> ExtractionPart:
    """One part: the task. Gives the same wherever, and however often, it runs."""
    network = _network(about.network, about.settings)
    if network.fingerprint != about.fingerprint:
        raise InputError(f"{about.network}: a node has another version of this network; copy it to all nodes")
    made = _One()
    describe(pictures, network, about.whitening, about.opening, about.workers, made, None)
    assert made.part is not None
    start = number * PART_SIZE
    reasons = [(row + start, why) for row, why in made.part.reasons]
    return ExtractionPart(made.part.rows + start, made.part.vectors, reasons)


def _part(
    task: Any, about: Any, pictures: Sequence[Picture], number: int, parts: PartFiles, count: _Count
) -> Chain:
    """Have one part made, and keep it."""
    mine = list(pictures[number * PART_SIZE : (number + 1) * PART_SIZE])
    made = yield task.remote(about, mine, number)
    parts.write(number, made)
    count.add(mine)


class _One:
    """Keeps the only part of a task."""

    def __init__(self) -> None:
        self.part: ExtractionPart | None = None

    def read(self, number: int) -> ExtractionPart | None:
        """Nothing is there before."""
        return None

    def write(self, number: int, part: ExtractionPart) -> None:
        """Keep it."""
        self.part = part


class _Count:
    """Tells how far the pictures are."""

    def __init__(self, total: int, done: int, progress: Progress) -> None:
        self.total = total
        self.done = done
        self.progress = progress

    def add(self, pictures: Sequence[Picture]) -> None:
        """Some more are described."""
        self.done += len(pictures)
        if self.progress is not None:
            self.progress(self.done, self.total, Path(pictures[-1].name).name)


def _size(numbers: Sequence[int], pictures: int) -> int:
    """Pictures in the parts of these numbers."""
    return sum(min(PART_SIZE, pictures - number * PART_SIZE) for number in numbers)


def _fixed(value: Any) -> Any:
    """A value that can be looked up by."""
    return tuple(value) if isinstance(value, list) else value


def _uses_gpu(network: str) -> bool:
    return network.startswith(_ON_GPU) or network.endswith(_ON_GPU_FILES)


@lru_cache(maxsize=1)
def _network(name: str, settings: tuple[tuple[str, Any], ...]) -> Network:
    """Opened once in each worker process."""
    return open_network(name, **dict(settings))
