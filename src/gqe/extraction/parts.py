"""What is described so far, kept as files until all is."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gqe.errors import InputError
from gqe.extraction.network import Array
from gqe.formats.atomic import replacing

logger = logging.getLogger(__name__)
# A part, or what is written beside before it is renamed.
_OURS = re.compile(r"part-[0-9a-f]{16}-\d{6,}\.npz|\.part-[0-9a-f]{16}-\d{6,}\.[0-9a-f]{16}\.tmp\.npz")
PART = 256
"""Pictures in a part: what is lost at most when a run is killed."""


class Part(NamedTuple):
    """Some pictures in a row.

    Attributes:
        rows: (m,) numbers of the pictures that have a vector.
        vectors: (m, d) float32.
        reasons: (number, reason) of the others.
    """

    rows: Array
    vectors: Array
    reasons: list[tuple[int, str]]


class Parts:
    """Parts in a folder, each one file with the plan in its name."""

    def __init__(self, folder: Path, plan: str) -> None:
        self.folder = folder
        self.plan = plan
        try:
            folder.mkdir(exist_ok=True)
            for path in folder.iterdir():  # of other pictures or settings, or half written
                if _OURS.fullmatch(path.name) and not path.name.startswith(f"part-{plan}-"):
                    path.unlink()
        except OSError as error:
            raise InputError(
                f"{folder}: cannot be written: {error.strerror}; choose another place"
            ) from error

    def read(self, number: int, *, vectors: bool = True) -> Part | None:
        """A finished part, with its vectors or without; None if it is not there or damaged."""
        path = self._path(number)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                reasons = json.loads(arrays["reasons"].tobytes())
                values = arrays["vectors"] if vectors else np.empty((0, 0), np.float32)
                return Part(arrays["rows"], values, [(int(i), str(why)) for i, why in reasons])
        except FileNotFoundError:
            return None
        except Exception:  # a zip file can be broken in many ways; it is made again
            logger.warning("%s: damaged; its pictures are described again", path)
            return None

    def write(self, number: int, part: Part) -> None:
        """Keep a part."""
        reasons = np.frombuffer(json.dumps(part.reasons).encode(), np.uint8)
        with replacing(self._path(number)) as temporary:
            np.savez(temporary, rows=part.rows, vectors=part.vectors, reasons=reasons)

    def all(self, pictures: int, *, vectors: bool = False) -> Iterator[Part]:
        """All parts of this many pictures, without their vectors unless these are asked for."""
        for number in range(-(-pictures // PART)):
            part = self.read(number, vectors=vectors)
            if part is None:
                raise InputError(f"{self._path(number)}: is missing or damaged; run the same command again")
            yield part

    def remove(self) -> None:
        """Remove all of them, and the folder if nothing else is in it."""
        with suppress(OSError):
            for path in self.folder.iterdir():
                if _OURS.fullmatch(path.name):
                    path.unlink()
            self.folder.rmdir()

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{self.plan}-{number:06d}.npz"
