"""A look into a downloaded file before it is shown: is it what its name says?

Servers answer with pages ("moved", "log in first") where a file was asked for; such a page must not lie in
the place of a ground truth.
"""

from __future__ import annotations

from pathlib import Path

from gqe.errors import InputError
from gqe.formats import read_ground_truth
from gqe.formats.matlab import matrix_names


def check_content(path: Path) -> None:
    """Raise InputError if a file is not of the kind its name promises."""
    name = path.name
    if name.startswith("gnd_"):
        read_ground_truth(path)
    elif name.endswith("-whiten.pkl"):
        from gqe.datasets.official.rsfm import read_pairs

        read_pairs(path)
    elif name.startswith("retrieval-SfM") and name.endswith(".pkl"):
        from gqe.datasets.official.rsfm import read_split

        for split in ("train", "val"):
            read_split(path, split)
    elif name.endswith(".mat"):
        matrix_names(path)
    elif name.endswith((".gz", ".tgz")):
        _begins(path, (b"\x1f\x8b",), "a gzip archive")
    elif name.endswith(".pth"):
        _begins(path, (b"PK\x03\x04", b"\x80"), "a file of torch.save")
    else:
        _refuse_page(path)


def _begins(path: Path, signatures: tuple[bytes, ...], kind: str) -> None:
    with path.open("rb") as stream:
        start = stream.read(16)
    if not start.startswith(signatures):
        raise InputError(f"{path}: is not {kind}, it begins with {start!r}")


def _refuse_page(path: Path) -> None:
    with path.open("rb") as stream:
        start = stream.read(512).lstrip().lower()
    if not start or start.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise InputError(f"{path}: is a web page or empty, not a list of names")
