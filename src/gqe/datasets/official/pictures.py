"""Lists of pictures, in the order of the descriptors that belong to them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gqe.datasets.official.revisited import read_truth
from gqe.datasets.official.rsfm import FILE, picture_path, read_split
from gqe.errors import InputError
from gqe.formats.checks import existing_file, explaining
from gqe.formats.names import stays_inside

LISTS = (
    "roxford5k",
    "roxford5k-queries",
    "rparis6k",
    "rparis6k-queries",
    "r1m",
    "rsfm120k-train",
    "rsfm120k-val",
)


class Picture(NamedTuple):
    """A picture file, and for a query the box (left, top, right, bottom) it is cropped to."""

    path: Path
    box: tuple[float, float, float, float] | None = None


def pictures(name: str, root: Path) -> list[Picture]:
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
        split = read_split(existing_file(folder / FILE), name.partition("-")[2])
        return [Picture(folder / picture_path(cid)) for cid in split.names]
    if collection == "r1m":
        return _listed(folder)
    truth = read_truth(folder, collection)
    if not name.endswith("-queries"):
        return [Picture(folder / "jpg" / f"{item}.jpg") for item in truth["imlist"]]
    found = []
    for item, query in zip(truth["qimlist"], truth["gnd"], strict=True):
        box = query["bbx"]
        found.append(
            Picture(folder / "jpg" / f"{item}.jpg", None if box is None else (box[0], box[1], box[2], box[3]))
        )
    return found


def _listed(folder: Path) -> list[Picture]:
    path = existing_file(folder / "revisitop1m.txt")
    found = []
    with explaining(path, "list of pictures"):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        name = PurePosixPath(line.strip())
        if not stays_inside(line.strip()):
            raise InputError(
                f"{path}: line {number} is {line!r:.60}, no name of a picture; download it again"
            )
        found.append(Picture(folder / "jpg" / (name if name.suffix else name.with_suffix(".jpg"))))
    return found
