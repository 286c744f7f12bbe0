"""What is noted beside extracted vectors: enough to describe another picture in the same way."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.extraction.network import Network, normalize_rows, open_network
from gqe.extraction.pictures import DecodingOptions, UnreadablePictureError, open_picture
from gqe.extraction.whitening import Whitening, load_whitening
from gqe.formats.atomic import atomic_path
from gqe.formats.checks import Array, existing_file, wrap_parse_errors

FORMAT = "gqe extraction"
VERSION = 1
IN_INDEX = "extraction.json"
"""Name of the record inside an index."""


@dataclass(frozen=True)
class ExtractionRecord:
    """How vectors were made.

    Attributes:
        network: Name or file, for `open_network`.
        settings: Of the network.
        fingerprint: Of its weights.
        dimension: Of the vectors.
        whitening: File of the whitening, or None.
        whitening_fingerprint: Of its numbers.
        rotate: Whether pictures were turned as their EXIF data say.
        folder: Where the pictures are.
        pictures: How many were described.
        skipped: How many were not.
        plan: Names the pictures and all settings; the same run has the same one.
    """

    network: str
    settings: dict[str, Any]
    fingerprint: str
    dimension: int
    whitening: str | None = None
    whitening_fingerprint: str | None = None
    rotate: bool = True
    folder: str = ""
    pictures: int = 0
    skipped: int = 0
    plan: str = field(default="", repr=False)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON."""
        content = json.dumps({"format": FORMAT, "version": VERSION} | asdict(self), indent=2)
        with atomic_path(path) as temporary:
            temporary.write_text(content + "\n", encoding="utf-8")


def record_path(vectors: str | os.PathLike[str]) -> Path:
    """Where the record of a file of vectors is: vectors.npy has vectors.extraction.json beside it."""
    return _beside(vectors, ".extraction.json")


def names_path(vectors: str | os.PathLike[str]) -> Path:
    """Where the names of the pictures are: vectors.npy has vectors.names.txt beside it."""
    return _beside(vectors, ".names.txt")


def _beside(vectors: str | os.PathLike[str], ending: str) -> Path:
    """The name with another ending; a folder such as "." has none that could be changed."""
    path = Path(vectors)
    return path.parent / f"{path.stem}{ending}"


def read_record(path: str | os.PathLike[str]) -> ExtractionRecord:
    """Read a record, by its own name or that of its vectors."""
    found = existing_file(path if Path(path).suffix == ".json" else record_path(path))
    with wrap_parse_errors(found, "record of an extraction"):
        content = json.loads(found.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise InputError(
                f"{found}: not a record of gqe extract; give the .extraction.json beside the vectors"
            )
        version = content.pop("version", None)
        if version != VERSION:
            raise InputError(f"{found}: version {version!r:.20} is unknown; use a newer gqe")
        record = ExtractionRecord(**content)
        for name, kind in (("network", str), ("settings", dict), ("fingerprint", str), ("dimension", int)):
            if not isinstance(getattr(record, name), kind):
                raise InputError(f"{found}: {name!r} is not a {kind.__name__}; extract the vectors again")
    return record


def copy_record(vectors: str | os.PathLike[str], index: str | os.PathLike[str]) -> bool:
    """Copy the record beside a file of vectors, if there is one, into the index built from them.

    Returns:
        Whether there was one.
    """
    beside = record_path(vectors)
    if not beside.is_file():
        return False
    read_record(beside).write(Path(index) / IN_INDEX)
    return True


class Describer:
    """Describes pictures as a record says.

    Args:
        record: See `read_record`.
        threads: See `open_network`.
        device: See `open_network`.
    """

    def __init__(self, record: ExtractionRecord, *, threads: int | None = None, device: Any = "auto") -> None:
        self.record = record
        settings = {k: v for k, v in record.settings.items() if k in ("size", "scales", "power")}
        self.network: Network = open_network(record.network, threads=threads, device=device, **settings)
        if self.network.fingerprint != record.fingerprint:
            raise InputError(
                f"{record.network}: not the network the vectors were made with: {self.network.fingerprint}, "
                f"not {record.fingerprint}; restore it or extract again"
            )
        self.whitening: Whitening | None = None
        if record.whitening is not None:
            several = len(record.settings.get("scales", ())) > 1
            self.whitening = load_whitening(record.whitening, several_scales=several)
            if self.whitening.digest() != record.whitening_fingerprint:
                raise InputError(
                    f"{record.whitening}: not the whitening the vectors were made with; restore it or "
                    "extract again"
                )

    def __call__(
        self, paths: Sequence[str | os.PathLike[str]], boxes: Sequence[Sequence[float] | None] | None = None
    ) -> Array:
        """Vectors (n, d) of picture files.

        Args:
            paths: The files.
            boxes: (left, top, right, bottom) to crop each one to, or None.

        Raises:
            InputError: One of them cannot be used.
        """
        network, opening = self.network, DecodingOptions(rotate=self.record.rotate)
        rows = []
        for path, box in zip(paths, boxes or [None] * len(paths), strict=True):
            try:
                opened = open_picture(path, box=box, opening=opening, at_least=network.prepare.at_least)
            except UnreadablePictureError as error:
                raise InputError(f"{path}: {error}; give another picture") from error
            pixels = network.prepare(opened.image, opened.full_side)
            rows.append(network.run(pixels[None])[0])
        vectors = normalize_rows(np.stack(rows)) if rows else np.zeros((0, network.dimension), np.float32)
        return vectors if self.whitening is None else self.whitening.apply(vectors)
