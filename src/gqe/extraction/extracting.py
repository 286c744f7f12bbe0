"""From pictures to a file of vectors, so that a run that was killed goes on where it was.

Pictures are described in parts of a fixed number, each kept as a file beside the output until all are done.
What a part holds depends on its pictures and the settings alone, so a run in pieces gives the same bytes as
one in one go.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from gqe.errors import InputError
from gqe.extraction.decoding import Picture, decode
from gqe.extraction.network import Array, Network, batches, of_unit_length
from gqe.extraction.parts import PART, Part, Parts
from gqe.extraction.pictures import Opening
from gqe.extraction.record import Record, names_path, read_record, record_path
from gqe.extraction.whitening import Whitening
from gqe.extraction.whitening_files import whitening_digest
from gqe.formats.atomic import replacing

logger = logging.getLogger(__name__)
_LAYOUT = 1  # raise it when what parts hold changes
Progress = Callable[[int, int, str], None] | None


class Kept(Protocol):
    """Where finished parts are kept; see `Parts`."""

    def read(self, number: int) -> Part | None:
        """A finished part, or None."""

    def write(self, number: int, part: Part) -> None:
        """Keep a part."""


# Makes all parts that are missing, in another way than here.
Describing = Callable[[Parts, Progress], None]


class Extraction(NamedTuple):
    """What an extraction wrote.

    Attributes:
        vectors: (n, d) float32, .npy.
        names: Text file, the name of a picture a line, in the order of the vectors.
        skipped: Text file, name and reason of each picture without a vector, separated by a tab.
        record: How the vectors were made, JSON.
        about: What is in the record.
    """

    vectors: Path
    names: Path
    skipped: Path
    record: Path
    about: Record


def extract(
    pictures: Sequence[Picture],
    output: str | os.PathLike[str],
    network: Network,
    *,
    whitening: Whitening | None = None,
    whitening_file: str | None = None,
    opening: Opening | None = None,
    folder: str | os.PathLike[str] = "",
    workers: int | None = None,
    describing: Describing | None = None,
    progress: Progress = None,
) -> Extraction:
    """Describe pictures and write vectors, names, skipped pictures and a record of how.

    The same call goes on with a run that was stopped, and does nothing if all of it is done.

    Args:
        pictures: See `pictures_of_folder`.
        output: The vectors' file, ending in .npy; the others lie beside it.
        network: See `open_network`.
        whitening: Applied to the network's descriptors.
        whitening_file: Where it came from, for the record.
        opening: Limits and rotation of pictures.
        folder: Where the pictures are, for the record.
        workers: Processes that decode; None chooses, 0 decodes here.
        describing: Makes the parts that are missing; None describes pictures here.
        progress: Called with pictures done, pictures in all, and the latest name.

    Raises:
        InputError: The output cannot be written, or no picture at all can be read.
    """
    target = Path(output)
    if target.suffix != ".npy":
        raise InputError(f"{output}: vectors are written to .npy files; choose another name")
    if whitening is not None and len(whitening.mean) != network.dimension:
        raise InputError(
            f"whitening: learned from {len(whitening.mean)} dimensions, the network gives {network.dimension}"
        )
    limits = opening or Opening()
    plan = _plan(pictures, network, whitening, limits)
    result = _paths(target)
    if _is_done(result, plan):
        return Extraction(*result, read_record(result[3]))
    parts = Parts(target.with_suffix(".parts"), plan)
    if describing is None:
        describe(pictures, network, whitening, limits, _chosen(workers, len(pictures)), parts, progress)
    else:
        describing(parts, progress)
    described = sum(len(part.rows) for part in parts.all(len(pictures)))
    if not described:
        reason = next(iter(parts.all(len(pictures)))).reasons[0][1]
        raise InputError(
            f"{pictures[0].path}: {reason}; and no other of {len(pictures)} pictures can be used"
        )
    dimension = network.dimension if whitening is None else int(whitening.projection.shape[1])
    about = Record(
        network=network.name,
        settings=network.settings,
        fingerprint=network.fingerprint,
        dimension=dimension,
        whitening=None if whitening is None else whitening_file,
        whitening_fingerprint=None if whitening is None else whitening_digest(whitening),
        rotate=limits.rotate,
        folder=str(Path(folder).absolute()) if folder else "",
        pictures=described,
        skipped=len(pictures) - described,
        plan=plan,
    )
    _write(result, pictures, parts, about)
    parts.remove()
    return Extraction(*result, about)


def describe(
    pictures: Sequence[Picture],
    network: Network,
    whitening: Whitening | None,
    opening: Opening,
    workers: int,
    parts: Kept,
    progress: Progress,
) -> None:
    """Describe what no finished part holds."""
    missing = missing_parts(parts, len(pictures))
    done = len(pictures) - sum(len(pictures[n * PART : (n + 1) * PART]) for n in missing)
    if done:
        logger.info("%d of %d pictures are described already", done, len(pictures))
    todo = [picture for n in missing for picture in pictures[n * PART : (n + 1) * PART]]
    answers = decode(todo, network.prepare, opening, workers)
    try:
        for number in missing:
            numbers = range(number * PART, min(len(pictures), (number + 1) * PART))
            reasons: list[tuple[int, str]] = []

            def readable(numbers: range = numbers, reasons: list[tuple[int, str]] = reasons) -> Any:
                nonlocal done
                for row in numbers:
                    answer = next(answers)
                    why = _unusable(pictures[row].name) or (answer if isinstance(answer, str) else None)
                    done += 1
                    if progress is not None:
                        progress(done, len(pictures), Path(pictures[row].name).name)
                    if why is None:
                        yield row, answer
                    else:
                        reasons.append((row, why))

            vectors = np.zeros((len(numbers), network.dimension), dtype=np.float32)
            for rows, pixels in batches(readable(), network.batch_size):
                vectors[np.array(rows) - numbers[0]] = network.run(pixels)
            parts.write(number, _finished(vectors, numbers, reasons, whitening))
    finally:
        answers.close()  # type: ignore[attr-defined]  # ends the workers now, not some time


def missing_parts(parts: Kept, pictures: int) -> list[int]:
    """Numbers of the parts of so many pictures that are not there."""
    return [number for number in range(-(-pictures // PART)) if parts.read(number) is None]


def _finished(
    vectors: Array, numbers: range, reasons: list[tuple[int, str]], whitening: Whitening | None
) -> Part:
    skipped = {row for row, _ in reasons}
    rows = np.array([row for row in numbers if row not in skipped], dtype=np.int64)
    made = of_unit_length(vectors[rows - numbers[0]])
    if whitening is not None and len(made):
        made = whitening.apply(made)
    elif whitening is not None:
        made = np.zeros((0, whitening.projection.shape[1]), np.float32)
    good = np.isfinite(made).all(axis=1) & made.any(axis=1)
    for row in rows[~good].tolist():
        reasons.append((row, "the network sees nothing in it: its vector has no length"))
    return Part(rows[good], made[good], sorted(reasons))


def _unusable(name: str) -> str | None:
    """Why a name cannot be an id: ids are read from a text file, one a line."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    if name.strip() != name or name.splitlines() != [name]:
        return "its name has a line break, or blanks around it; rename it"
    return None


def _plan(
    pictures: Sequence[Picture], network: Network, whitening: Whitening | None, opening: Opening
) -> str:
    """Names everything that the vectors depend on."""
    white = None if whitening is None else whitening_digest(whitening)
    settings = [_LAYOUT, PART, network.fingerprint, network.settings, network.batch_size, white, *opening]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for picture in pictures:
        try:
            known = os.stat(picture.path)  # noqa: PTH116  # a Path for each of a million takes its time
            state = [known.st_size, known.st_mtime_ns]
        except (OSError, ValueError):
            state = []
        # ASCII, for names that are not UTF-8.
        digest.update(json.dumps([picture.name, picture.box, state], ensure_ascii=True).encode())
    return digest.hexdigest()[:16]


def _paths(target: Path) -> tuple[Path, Path, Path, Path]:
    return target, names_path(target), target.with_suffix(".skipped.tsv"), record_path(target)


def _is_done(paths: tuple[Path, Path, Path, Path], plan: str) -> bool:
    try:
        return all(path.is_file() for path in paths) and read_record(paths[3]).plan == plan
    except InputError:
        return False


def _chosen(workers: int | None, pictures: int) -> int:
    if workers is not None:
        if workers < 0:
            raise InputError(f"workers: {workers} is negative; use 0 to decode in this process")
        return workers
    # A few pictures are decoded before a process has started.
    return 0 if pictures < 64 else max(1, min(8, (os.cpu_count() or 1) // 2))


def _write(
    paths: tuple[Path, Path, Path, Path], pictures: Sequence[Picture], parts: Parts, about: Record
) -> None:
    """The record last: with it everything is there."""
    vectors, names, skipped, record = paths
    record.unlink(missing_ok=True)
    with replacing(vectors) as temporary, temporary.open("wb") as file:
        shape = (about.pictures, about.dimension)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts.all(len(pictures), vectors=True):
            file.write(np.ascontiguousarray(part.vectors, "<f4").data)
    with replacing(names) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as text:
        for part in parts.all(len(pictures)):
            text.writelines(f"{pictures[row].name}\n" for row in part.rows.tolist())
    with replacing(skipped) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as text:
        for part in parts.all(len(pictures)):
            text.writelines(f"{_shown(pictures[row].name)}\t{_shown(why)}\n" for row, why in part.reasons)
    about.write(record)


def _shown(text: str) -> str:
    """On one line, without tabs, in UTF-8."""
    if text.isprintable():
        return text
    return text.encode("unicode_escape").decode("ascii")
