"""Official benchmarks and training sets by name: NAME, NAME@DESCRIPTORS, and NAME+r1m with the distractors.

Revisited Oxford and Paris (Radenović et al., CVPR 2018), with or without their million distractors, and
retrieval-SfM-120k; also the lists of their pictures, in the order of their descriptors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from gqe.datasets.base import Benchmark, TrainingSet
from gqe.datasets.official.catalog import data_root
from gqe.datasets.official.descriptors import read_pair
from gqe.datasets.official.distractors import join, read_distractors
from gqe.datasets.official.rsfm import SPLITS_FILE, load_train, load_val, picture_path, read_split
from gqe.errors import InputError
from gqe.formats import OfficialGroundTruth, QueryTruth, read_ground_truth
from gqe.formats.checks import existing_file, wrap_parse_errors
from gqe.formats.names import stays_inside

BENCHMARKS = {
    "roxford5k": "Revisited Oxford (Easy, Medium, Hard)",
    "rparis6k": "Revisited Paris (Easy, Medium, Hard)",
    "roxford5k+r1m": "Revisited Oxford among a million distractors",
    "rparis6k+r1m": "Revisited Paris among a million distractors",
    "rsfm120k-val": "validation pictures of retrieval-SfM-120k: for choosing settings",
}
TRAINING = {"rsfm120k-train": "training pictures of retrieval-SfM-120k"}

LISTS = (
    *("roxford5k", "roxford5k-queries", "rparis6k", "rparis6k-queries"),
    *("r1m", "rsfm120k-train", "rsfm120k-val"),
)

_SYNTAX = re.compile(r"(?P<name>[a-z0-9-]+)(@(?P<source>.+?))?(?P<more>\+r1m(@(?P<distractors>.+))?)?")


class PictureFile(NamedTuple):
    """A picture file, and for a query the box (left, top, right, bottom) it is cropped to."""

    path: Path
    box: tuple[float, float, float, float] | None = None


def is_official(name: str | os.PathLike[str]) -> bool:
    """Whether a name is that of an official benchmark or training set, with or without descriptors.

    Example:
        >>> is_official("roxford5k@mine.npy"), is_official("mine.npz")
        (True, False)
    """
    found = _SYNTAX.fullmatch(os.fspath(name))
    if found is None:
        return False
    return found["name"] + ("+r1m" if found["more"] else "") in BENCHMARKS | TRAINING


def load_benchmark(name: str, root: str | os.PathLike[str] | None = None) -> Benchmark:
    """An official benchmark: roxford5k, rparis6k, either with +r1m, or rsfm120k-val.

    Args:
        name: the name, and after @ its descriptors: a file, two files separated by a comma, a folder, or the
            beginning of the name of a file in ROOT/NAME/descriptors. Without @ all that lies in that folder.
            The descriptors of the distractors follow `+r1m@` likewise.
        root: the data root; default $GQE_DATA or the cache folder.
    """
    found = _parse(name)
    root_folder = data_root(root)
    if found["name"] == "rsfm120k-val":
        return load_val(root_folder / "rsfm120k", found["source"])
    if found["name"] not in BENCHMARKS:
        raise InputError(f"benchmark: {name!r} is a training set; for validation use rsfm120k-val")
    name = found["name"]
    truth = _read_truth(root_folder / name, name)
    queries, database = read_pair(
        found["source"], root_folder / name, names=truth["imlist"], queries=truth["qimlist"], label=name
    )
    about = f"{name}: {len(queries)} queries among {len(database)} pictures"
    if not found["more"]:
        picture = _open_pictures(root_folder / name, truth) if (root_folder / name / "jpg").is_dir() else None
        return Benchmark(name, queries, database, truth, about, picture)
    # Distractors follow the database, where they are plain negatives.
    parts = read_distractors(found["distractors"], root_folder / "r1m", int(database.shape[1]), "r1m")
    joined = join(database, parts, root_folder / "joined")
    about += f" and {len(joined) - len(database)} distractors"
    return Benchmark(f"{name}+r1m", queries, joined, truth, about)


def load_training(name: str, root: str | os.PathLike[str] | None = None) -> TrainingSet:
    """The official training set rsfm120k-train, with its descriptors after @ as for `load_benchmark`."""
    found = _parse(name)
    if found["name"] not in TRAINING:
        raise InputError(f"data: {name!r} is for testing, not for training; use {', '.join(TRAINING)}")
    return load_train(data_root(root) / "rsfm120k", found["source"])


def pictures(name: str, root: Path) -> list[PictureFile]:
    """The pictures of an official list, in the order in which descriptors are expected.

    Args:
        name: one of `LISTS`.
        root: the data root.

    Raises:
        InputError: no such list, its file is not here, or the pictures are not.
    """
    if name not in LISTS:
        raise InputError(f"pictures: no list {name!r}; there are {', '.join(LISTS)}")
    collection = name.partition("-")[0]
    folder = root / collection
    inner = "ims" if collection == "rsfm120k" else "jpg"
    if not (folder / inner).is_dir():
        raise InputError(f"{folder / inner}: is not here; get it with `gqe data get {collection} --pictures`")
    if collection == "rsfm120k":
        split = read_split(existing_file(folder / SPLITS_FILE), name.partition("-")[2])
        return [PictureFile(folder / picture_path(cid)) for cid in split.names]
    if collection == "r1m":
        return _read_distractor_list(folder)
    truth = _read_truth(folder, collection)
    if not name.endswith("-queries"):
        return [PictureFile(folder / "jpg" / f"{item}.jpg") for item in truth["imlist"]]
    queries = zip(truth["qimlist"], truth["gnd"], strict=True)
    return [PictureFile(folder / "jpg" / f"{item}.jpg", _box(query)) for item, query in queries]


def _parse(name: str) -> re.Match[str]:
    found = _SYNTAX.fullmatch(name)
    if found is None or not is_official(name):
        raise InputError(
            f"data: {name!r} is no official data set; there are {', '.join(BENCHMARKS | TRAINING)}"
        )
    return found


def _read_truth(folder: Path, name: str) -> OfficialGroundTruth:
    """The ground truth of a data set's folder, official .pkl or .mat, with the names of all pictures."""
    for ending in (".pkl", ".mat", ".json"):
        path = folder / f"gnd_{name}{ending}"
        if path.is_file():
            truth = read_ground_truth(path)
            if "imlist" not in truth or "qimlist" not in truth:
                raise InputError(f"{path}: has no imlist and qimlist; get the official file")
            return truth
    raise InputError(f"{folder / f'gnd_{name}.pkl'}: is not here; get it with `gqe data get {name}`")


def _open_pictures(folder: Path, truth: OfficialGroundTruth) -> Callable[[str, int], Any]:
    def picture(kind: str, index: int) -> Any:
        try:
            from PIL import Image
        except ImportError:
            raise InputError("pictures need pillow: pip install 'gqe[report]'") from None
        names = truth["qimlist"] if kind == "query" else truth["imlist"]
        with Image.open(existing_file(folder / "jpg" / f"{names[index]}.jpg")) as image:
            whole = image.convert("RGB")
        box = _box(truth["gnd"][index]) if kind == "query" else None
        return whole if box is None else whole.crop(box)

    return picture


def _box(query: QueryTruth) -> tuple[float, float, float, float] | None:
    box = query["bbx"]
    return None if box is None else (box[0], box[1], box[2], box[3])


def _read_distractor_list(folder: Path) -> list[PictureFile]:
    path = existing_file(folder / "revisitop1m.txt")
    found = []
    with wrap_parse_errors(path, "list of pictures"):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        name = PurePosixPath(line.strip())
        if not stays_inside(line.strip()):
            raise InputError(
                f"{path}: line {number} is {line!r:.60}, no name of a picture; download it again"
            )
        found.append(PictureFile(folder / "jpg" / (name if name.suffix else name.with_suffix(".jpg"))))
    return found
