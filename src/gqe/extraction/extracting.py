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
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from gqe.errors import InputError
from gqe.extraction.decoding import decode
from gqe.extraction.network import Network, batches, normalize_rows
from gqe.extraction.pictures import DecodingOptions, Picture
from gqe.extraction.record import ExtractionRecord, names_path, read_record, record_path
from gqe.extraction.whitening import Whitening
from gqe.formats.atomic import atomic_path
from gqe.formats.checks import Array
from gqe.progress import Progress, Report, reporting

logger = logging.getLogger(__name__)
PART_SIZE = 256
"""Pictures in a part: what is lost at most when a run is killed."""
_LAYOUT = 1  # raise it when what parts hold changes
# A part, or what is written beside before it is renamed.
_OURS = re.compile(r"part-[0-9a-f]{16}-\d{6,}\.npz|\.part-[0-9a-f]{16}-\d{6,}\.[0-9a-f]{16}\.tmp\.npz")


class ExtractionPart(NamedTuple):
    """Some pictures in a row.

    Attributes:
        rows: (m,) numbers of the pictures that have a vector.
        vectors: (m, d) float32.
        reasons: (number, reason) of the others.
    """

    rows: Array
    vectors: Array
    reasons: list[tuple[int, str]]


class PartFiles:
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

    def read(self, number: int, *, vectors: bool = True) -> ExtractionPart | None:
        """A finished part, with its vectors or without; None if it is not there or damaged."""
        path = self._path(number)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                reasons = json.loads(arrays["reasons"].tobytes())
                values = arrays["vectors"] if vectors else np.empty((0, 0), np.float32)
                return ExtractionPart(arrays["rows"], values, [(int(i), str(why)) for i, why in reasons])
        except FileNotFoundError:
            return None
        except Exception:  # a zip file can be broken in many ways; it is made again
            logger.warning("%s: damaged; its pictures are described again", path)
            return None

    def write(self, number: int, part: ExtractionPart) -> None:
        """Keep a part."""
        reasons = np.frombuffer(json.dumps(part.reasons).encode(), np.uint8)
        with atomic_path(self._path(number)) as temporary:
            np.savez(temporary, rows=part.rows, vectors=part.vectors, reasons=reasons)

    def all(self, pictures: int, *, vectors: bool = False) -> Iterator[ExtractionPart]:
        """All parts of this many pictures, without their vectors unless these are asked for."""
        for number in range(-(-pictures // PART_SIZE)):
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


class PartStore(Protocol):
    """Where finished parts are kept; see `PartFiles`."""

    def read(self, number: int) -> ExtractionPart | None:
        """A finished part, or None."""

    def write(self, number: int, part: ExtractionPart) -> None:
        """Keep a part."""


class Extraction(NamedTuple):
    """What an extraction wrote.

    Attributes:
        vectors: (n, d) float32, .npy.
        names: Text file, the one name of a picture per line, in the order of the vectors.
        skipped: Text file, name and reason of each picture without a vector, separated by a tab.
        record: How the vectors were made, JSON.
        about: What is in the record.
    """

    vectors: Path
    names: Path
    skipped: Path
    record: Path
    about: ExtractionRecord


def extract(
    pictures: Sequence[Picture],
    output: str | os.PathLike[str],
    network: Network,
    *,
    whitening: Whitening | None = None,
    whitening_file: str | None = None,
    opening: DecodingOptions | None = None,
    folder: str | os.PathLike[str] = "",
    workers: int | None = None,
    describing: Callable[[PartFiles, Report | None], None] | None = None,
    progress: Progress = False,
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
        progress: True shows a bar on a terminal and a line every ten seconds elsewhere; or a function that is
            called with pictures done, pictures in all, and the latest name.

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
    limits = opening or DecodingOptions()
    plan = _plan(pictures, network, whitening, limits)
    paths = (target, names_path(target), target.with_suffix(".skipped.tsv"), record_path(target))
    if _is_done(paths, plan):
        return Extraction(*paths, read_record(paths[3]))
    parts = PartFiles(target.with_suffix(".parts"), plan)
    with reporting(progress, "pictures") as report:
        if describing is None:
            workers = _choose_workers(workers, len(pictures))
            describe(pictures, network, whitening, limits, workers, parts, report)
        else:
            describing(parts, report)
    described = sum(len(part.rows) for part in parts.all(len(pictures)))
    if not described:
        reason = next(iter(parts.all(len(pictures)))).reasons[0][1]
        raise InputError(
            f"{pictures[0].path}: {reason}; and no other of {len(pictures)} pictures can be used"
        )
    dimension = network.dimension if whitening is None else int(whitening.projection.shape[1])
    about = ExtractionRecord(
        network=network.name,
        settings=network.settings,
        fingerprint=network.fingerprint,
        dimension=dimension,
        whitening=None if whitening is None else whitening_file,
        whitening_fingerprint=None if whitening is None else whitening.digest(),
        rotate=limits.rotate,
        folder=str(Path(folder).absolute()) if folder else "",
        pictures=described,
        skipped=len(pictures) - described,
        plan=plan,
    )
    _write(paths, pictures, parts, about)
    parts.remove()
    return Extraction(*paths, about)


def describe(
    pictures: Sequence[Picture],
    network: Network,
    whitening: Whitening | None,
    opening: DecodingOptions,
    workers: int,
    parts: PartStore,
    progress: Report | None,
) -> None:
    """Describe what no finished part holds."""
    parts_rows = {
        number: range(number * PART_SIZE, min(len(pictures), (number + 1) * PART_SIZE))
        for number in missing_parts(parts, len(pictures))
    }
    missing = [pictures[row] for rows in parts_rows.values() for row in rows]
    done = len(pictures) - len(missing)
    if done:
        logger.info("%d of %d pictures are described already", done, len(pictures))

    def read_pixels(rows: range, reasons: list[tuple[int, str]]) -> Iterator[tuple[int, Array]]:
        nonlocal done
        for row in rows:
            name, answer = pictures[row].name, next(answers)
            done += 1
            if progress is not None:
                progress(done, len(pictures), Path(name).name)
            problem = _name_problem(name)
            if problem is None and not isinstance(answer, str):
                yield row, answer
            else:
                reasons.append((row, problem or str(answer)))

    # Closing it ends the workers now, not some time.
    with closing(decode(missing, network.prepare, opening, workers)) as answers:
        for number, rows in parts_rows.items():
            reasons: list[tuple[int, str]] = []
            vectors = np.zeros((len(rows), network.dimension), dtype=np.float32)
            for batch_rows, pixels in batches(read_pixels(rows, reasons), network.batch_size):
                vectors[np.array(batch_rows) - rows[0]] = network.run(pixels)
            parts.write(number, _finish_part(vectors, rows, reasons, whitening))


def missing_parts(parts: PartStore, pictures: int) -> list[int]:
    """Numbers of the parts of so many pictures that are not there."""
    return [number for number in range(-(-pictures // PART_SIZE)) if parts.read(number) is None]


def _finish_part(
    vectors: Array, numbers: range, reasons: list[tuple[int, str]], whitening: Whitening | None
) -> ExtractionPart:
    skipped = {row for row, _ in reasons}
    rows = np.array([row for row in numbers if row not in skipped], dtype=np.int64)
    vectors = normalize_rows(vectors[rows - numbers[0]])
    if whitening is not None:
        vectors = whitening.apply(vectors)
    good = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    for row in rows[~good].tolist():
        reasons.append((row, "the network sees nothing in it: its vector has no length"))
    return ExtractionPart(rows[good], vectors[good], sorted(reasons))


def _name_problem(name: str) -> str | None:
    """Why a name cannot be an id: ids are read from a text file, one per line."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    if name.strip() != name or name.splitlines() != [name]:
        return "its name has a line break, or blanks around it; rename it"
    return None


def _plan(
    pictures: Sequence[Picture], network: Network, whitening: Whitening | None, opening: DecodingOptions
) -> str:
    """Names everything that the vectors depend on."""
    white = None if whitening is None else whitening.digest()
    weights = [network.fingerprint, network.settings, network.batch_size, white]
    settings = [_LAYOUT, PART_SIZE, *weights, *opening]
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


def _is_done(paths: tuple[Path, Path, Path, Path], plan: str) -> bool:
    try:
        return all(path.is_file() for path in paths) and read_record(paths[3]).plan == plan
    except InputError:
        return False


def _choose_workers(workers: int | None, pictures: int) -> int:
    if workers is not None:
        if workers < 0:
            raise InputError(f"workers: {workers} is negative; use 0 to decode in this process")
        return workers
    # A few pictures are decoded before a process has started.
    return 0 if pictures < 64 else max(1, min(8, (os.cpu_count() or 1) // 2))


def _write(
    paths: tuple[Path, Path, Path, Path],
    pictures: Sequence[Picture],
    parts: PartFiles,
    about: ExtractionRecord,
) -> None:
    """The record last: with it everything is there."""
    vectors, names, skipped, record = paths
    record.unlink(missing_ok=True)
    with atomic_path(vectors) as temporary, temporary.open("wb") as file:
        shape = (about.pictures, about.dimension)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts.all(len(pictures), vectors=True):
            file.write(np.ascontiguousarray(part.vectors, "<f4").data)
    with atomic_path(names) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as text:
        for part in parts.all(len(pictures)):
            text.writelines(f"{pictures[row].name}\n" for row in part.rows.tolist())
    with atomic_path(skipped) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as text:
        for part in parts.all(len(pictures)):
            text.writelines(f"{_escape(pictures[row].name)}\t{_escape(why)}\n" for row, why in part.reasons)
    about.write(record)


def _escape(text: str) -> str:
    """On one line, without tabs, in UTF-8."""
    if text.isprintable():
        return text
    return text.encode("unicode_escape").decode("ascii")
