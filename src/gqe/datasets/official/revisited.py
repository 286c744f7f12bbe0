"""Revisited Oxford and Paris (Radenović et al., CVPR 2018), with or without their million distractors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gqe.datasets.base import Benchmark
from gqe.datasets.official.descriptors import read_pair
from gqe.datasets.official.joined import join, read_distractors
from gqe.errors import InputError
from gqe.formats import GroundTruth, read_ground_truth


def load_revisited(
    root: Path,
    name: str,
    source: str | None = None,
    *,
    distractors: bool = False,
    distractor_source: str | None = None,
) -> Benchmark:
    """Ground truth and descriptors as a benchmark.

    Args:
        root: the data root.
        name: "roxford5k" or "rparis6k".
        source: descriptors, see `gqe.datasets.official.descriptors.read_pair`.
        distractors: whether to append the distractors behind the database, where they are plain negatives.
        distractor_source: their descriptors; default what lies in r1m/descriptors.
    """
    folder = root / name
    truth = read_truth(folder, name)
    queries, database = read_pair(source, folder, names=truth["imlist"], queries=truth["qimlist"], label=name)
    picture = _pictures(folder, truth) if (folder / "jpg").is_dir() else None
    about = f"{name}: {len(queries)} queries among {len(database)} pictures"
    if not distractors:
        return Benchmark(name, queries, database, truth, about, picture)
    parts = read_distractors(distractor_source, root / "r1m", int(database.shape[1]), "r1m")
    joined = join(database, parts, root / "joined")
    about += f" and {len(joined) - len(database)} distractors"
    return Benchmark(f"{name}+r1m", queries, joined, truth, about)


def read_truth(folder: Path, name: str) -> GroundTruth:
    """The ground truth of a data set's folder, official .pkl or .mat, with the names of all pictures."""
    for ending in (".pkl", ".mat", ".json"):
        path = folder / f"gnd_{name}{ending}"
        if path.is_file():
            truth = read_ground_truth(path)
            if "imlist" not in truth or "qimlist" not in truth:
                raise InputError(f"{path}: has no imlist and qimlist; get the official file")
            return truth
    raise InputError(f"{folder / f'gnd_{name}.pkl'}: is not here; get it with `gqe data get {name}`")


def _pictures(folder: Path, truth: GroundTruth) -> Callable[[str, int], Any]:
    def picture(kind: str, index: int) -> Any:
        from gqe.formats.checks import existing_file

        try:
            from PIL import Image
        except ImportError:
            raise InputError("pictures need pillow: pip install 'gqe[report]'") from None
        names = truth["qimlist"] if kind == "query" else truth["imlist"]
        with Image.open(existing_file(folder / "jpg" / f"{names[index]}.jpg")) as image:
            box = truth["gnd"][index]["bbx"] if kind == "query" else None
            whole = image.convert("RGB")
        return whole if box is None else whole.crop((box[0], box[1], box[2], box[3]))

    return picture
