"""Which pictures to describe: those of a folder, of a list, or of a benchmark's ground truth."""

from __future__ import annotations

import os
from pathlib import Path

from gqe.errors import InputError
from gqe.extraction.decoding import Picture
from gqe.extraction.pictures import ENDINGS
from gqe.formats.checks import existing_file, explaining
from gqe.formats.ground_truth import read_ground_truth
from gqe.formats.names import stays_inside

_TRUTHS = (".pkl", ".mat", ".json")


def pictures_of_folder(folder: str | os.PathLike[str]) -> list[Picture]:
    """All pictures in a folder and the folders in it, in the order of their names.

    Names are paths from the folder on, with "/" between parts. Links to folders are not followed.
    """
    root = _checked_folder(folder)

    def failed(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}; check its rights") from error

    found = []
    for place, _, files in os.walk(root, onerror=failed):
        for file in files:
            path = Path(place, file)
            if path.suffix.lower() in ENDINGS and path.is_file():
                found.append(Picture(str(path.absolute()), path.relative_to(root).as_posix()))
    if not found:
        raise InputError(f"{folder}: holds no pictures ({', '.join(sorted(ENDINGS))})")
    return sorted(found, key=lambda picture: picture.name)


def pictures_of_list(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> list[Picture]:
    """Pictures that a file names, in its order.

    Args:
        folder: Where they are.
        path: A text file with a name a line and, where a picture is to be cropped, left, top, right and
            bottom behind it, all separated by tabs. Or the ground truth of a benchmark (.pkl, .mat, .json):
            the pictures of its database, or with ":queries" behind it those of its queries, cropped to their
            boxes.
    """
    root = _checked_folder(folder)
    text = os.fspath(path)
    asked = text.removesuffix(":queries")
    if Path(asked).suffix.lower() in _TRUTHS:
        listed = _of_ground_truth(asked, queries=asked != text)
    else:
        listed = _of_text(existing_file(text))
    if not listed:
        raise InputError(f"{text}: names no pictures")
    seen: set[str] = set()
    for name, _ in listed:
        if name in seen:
            raise InputError(f"{text}: names {name!r} twice; a name must be unique")
        if not stays_inside(name):
            raise InputError(f"{text}: {name[:60]!r} does not lie in {folder}; give names of pictures in it")
        seen.add(name)
    return [Picture(str(picture_file(root, name)), name, box) for name, box in listed]


_Listed = list[tuple[str, tuple[float, float, float, float] | None]]


def _of_ground_truth(path: str, *, queries: bool) -> _Listed:
    truth = read_ground_truth(path)
    names = truth.get("qimlist") if queries else truth.get("imlist")
    if names is None:
        raise InputError(f"{path}: does not name its pictures (imlist, qimlist); give a list of names")
    if not queries:
        return [(name, None) for name in names]
    boxes = [entry["bbx"] for entry in truth["gnd"]]
    return [
        (name, None if box is None else (box[0], box[1], box[2], box[3]))
        for name, box in zip(names, boxes, strict=True)
    ]


def _of_text(path: Path) -> _Listed:
    with explaining(path, "list of pictures"):
        lines = path.read_text(encoding="utf-8").split("\n")
    listed: _Listed = []
    for number, line in enumerate(lines, 1):
        name, *sides = line.rstrip("\r").split("\t")
        if not name and not sides:
            continue
        try:
            values = tuple(float(side) for side in sides)
            box = None if not values else (values[0], values[1], values[2], values[3])
            if len(values) not in (0, 4) or not name:
                raise ValueError
        except (ValueError, IndexError):
            raise InputError(
                f"{path}: line {number} is {line!r:.60}; write a name, or with tabs name, left, top, right, "
                "bottom"
            ) from None
        listed.append((name, box))
    return listed


def picture_file(root: Path, name: str) -> Path:
    """The file of a picture by its name; benchmarks leave out the ending."""
    path = root.absolute() / name
    if path.suffix.lower() not in ENDINGS:
        for ending in (".jpg", ".png", ".jpeg"):
            if path.with_name(path.name + ending).is_file():
                return path.with_name(path.name + ending)
    return path


def _checked_folder(folder: str | os.PathLike[str]) -> Path:
    root = Path(folder)
    if "\0" in str(root) or not root.exists():
        raise InputError(f"{str(folder)!r}: no such folder; check the name")
    if not root.is_dir():
        raise InputError(f"{folder}: is a file; give the folder of the pictures")
    return root
