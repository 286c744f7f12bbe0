"""The next version of an index while it is being written: new files beside the old ones, then one swap.

Before a change writes its first file it notes, in a file of its own, which names it may leave: those of the
version it replaces, and everything that carries the token it draws. After it, or before the next one, all of
these that the manifest on the disk does not name are removed, and then the note. So it does not matter where
a writer stopped, and a file without a note is never touched.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gqe.errors import DamagedError, InputError
from gqe.formats.atomic import atomic_path, flush, flush_folder
from gqe.formats.names import plain_names
from gqe.index.files import (
    ArrayWriter,
    FileRecord,
    check_file,
    create,
    record_of,
    wrap_os_errors,
    write_array,
)
from gqe.index.manifest import (
    BUILDING,
    CHANGING,
    MANIFEST,
    RESERVED,
    Manifest,
    Segment,
    read_manifest,
    write_manifest,
)
from gqe.index.shards import count_built_segments
from gqe.index.snapshot import Snapshot, row_dtype_of
from gqe.index.tables import Rows

log = logging.getLogger(__name__)

_FORMAT = "gqe-change"
# What `atomic_path`, or a worker of a cluster, writes beside before it is renamed; only they make such names.
_TEMPORARY = re.compile(r"\.(building|changing|manifest|model|README|config)\.[0-9a-f]{16}(\.tmp)?\.[a-z]+")


class Note(NamedTuple):
    """What a writer may have left.

    Attributes:
        names: of files.
        token: part of the name of every other file.
        new: whether there was no index before.
    """

    names: frozenset[str]
    token: str
    new: bool


def write_note(folder: Path, names: Iterable[str], *, new: bool = False) -> str:
    """Note what may be left from here on; a note of an earlier writer must have been read.

    Args:
        folder: the index.
        names: files that may have to be removed later.
        new: whether there is no index yet.

    Returns:
        The token that the name of every file that is written must carry.
    """
    token = secrets.token_hex(8)
    # Those that are found by their names need no note.
    noted = sorted(name for name in names if not is_temporary(name.rpartition("/")[2]))
    about = {"format": _FORMAT, "token": token, "new": new, "names": noted}
    with atomic_path(folder / CHANGING, follow=False) as beside:
        beside.write_text(json.dumps(about) + "\n")
    return token


def remove_leftovers(folder: Path) -> dict[str, OSError]:
    """Remove what a writer has left; its note goes last, so that this can be stopped, too.

    Returns:
        The files that the system would not remove. Their note stays, and the next one must name them.
    """
    note, there = read_note(folder), {path.name for path in folder.iterdir()}
    names = set(filter(is_temporary, there))
    if note is None and BUILDING not in there and not names:
        return {}
    new = note is not None and note.new and MANIFEST not in there
    # The manifest on the disk is the index, whatever a writer meant to do.
    keep = set() if new else set(read_manifest(folder).files)
    if note is not None:
        names |= note.names | {name for name in there if note.token in name}
    built = building_names(folder) if BUILDING in there else None
    if built is not None:
        names |= built
        for part in {name.split("/")[0] for name in keep if "/" in name}:
            names |= {f"{part}/{path.name}" for path in (folder / part).iterdir() if is_temporary(path.name)}
    left = {}
    for name in sorted(names - keep):
        try:
            (folder / name).unlink()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            left[name] = error
    if left:
        return left
    flush_folder(folder)
    for name, ours in ((CHANGING, note), (BUILDING, built)):
        if ours is not None:
            (folder / name).unlink(missing_ok=True)
    flush_folder(folder)
    return {}


def try_remove_leftovers(folder: Path) -> None:
    """`remove_leftovers` after a change, which is valid even if this fails: the next writer does the rest."""
    try:
        left = remove_leftovers(folder)
        if left:
            raise next(iter(left.values()))
    except (OSError, InputError) as error:
        log.warning("%s: old files are still there, the next change removes them: %s", folder, error)


def read_note(folder: Path) -> Note | None:
    """What the last writer of a folder noted; None if it has finished."""
    path = folder / CHANGING
    try:
        about = json.loads(path.read_bytes())
        if about["format"] != _FORMAT or not re.fullmatch("[0-9a-f]{16}", about["token"]):
            raise ValueError
        names = frozenset(plain_names(about["names"], path, RESERVED))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise DamagedError(f"{path}: not a note of this package, or damaged; move it elsewhere") from None
    return Note(names, about["token"], about.get("new") is True)


def building_names(folder: Path) -> frozenset[str] | None:
    """The files that an interrupted build may have left; None if there is no journal of one."""
    try:
        journal = json.loads((folder / BUILDING).read_bytes())
        names = {*journal.get("names", ()), *journal["done"], *journal["partial"]}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return frozenset(plain_names(names, folder / BUILDING, RESERVED))


def is_temporary(name: str) -> bool:
    """Whether only this package makes such names, for files that are renamed when they are finished."""
    return _TEMPORARY.fullmatch(name) is not None


Array = np.ndarray[Any, Any]
# Segments a table may have, all shards counted as one; then those that came later are joined.
MOST_SEGMENTS = 8
_BLOCK = 4096


class Draft:
    """Collects the changes of one version.

    Args:
        folder: the index.
        manifest: the version to start from.
        left: files of earlier versions that could not be removed.

    Attributes:
        manifest: the version as it stands so far.
    """

    def __init__(self, folder: Path, manifest: Manifest, left: Iterable[str] = ()) -> None:
        self.folder = folder
        self.manifest = replace(manifest, state=manifest.state + 1)
        self._before = [*manifest.files, *left]
        self.written: dict[str, FileRecord] = {}

    def set(self, **changes: Any) -> None:
        """Change fields of the manifest."""
        self.manifest = replace(self.manifest, **changes)

    def snapshot(self) -> Snapshot:
        """The version as it stands so far, opened."""
        return Snapshot(self.folder, self.manifest.with_used_files(self.written))

    @cached_property
    def _token(self) -> str:
        """Part of the name of every new file, noted on the disk before the first one is written."""
        return write_note(self.folder, self._before)

    def file(self, table: str, ending: str = "npy") -> str:
        """The name of a new file of a table."""
        return file_name(table, self.manifest.state, f"{self._token}.{ending}")

    def array(self, table: str, array: Array, ending: str = "npy") -> str:
        """Write an array into a new file; returns its name."""
        name = self.file(table, ending)
        self.written[name] = write_array(self.folder / name, array)
        return name

    def other(self, name: str, write: Callable[[Path], None]) -> str:
        """Write a file of another kind; returns its name."""
        create(self.folder / name)
        write(self.folder / name)
        self.written[name] = flush_and_record(self.folder / name)
        return name

    def stream(self, table: str, count: int, blocks: Iterator[Array]) -> str:
        """Write the rows of a table block by block into a new file; returns its name."""
        name = self.file(table)
        dtype, shape = row_dtype_of(self.manifest, table)
        writer = ArrayWriter(self.folder / name, dtype, (count, *shape))
        try:
            for block in blocks:
                writer.append(block)
            self.written[name] = writer.close()
        finally:
            writer.abandon()
        return name

    def put(self, table: str, segments: list[Segment]) -> None:
        """Set the segments of a table."""
        self.set(tables=self.manifest.tables | {table: segments})

    def append(self, table: str, rows: Rows, data: Array) -> None:
        """Add rows that follow those there are; `rows` are the old ones."""
        old = self.manifest.tables[table]
        built = count_built_segments(old)
        if len(old) - built < MOST_SEGMENTS - 1:
            start = sum(part.count for part in old)
            self.put(table, [*old, Segment(self.array(table, data), len(data), start)])
            return
        self._check(old[built:])
        dtype, shape = row_dtype_of(self.manifest, table)
        tail = [piece.content.reshape(-1).view(dtype) for piece in rows.pieces[built:]]
        joined = np.concatenate([*(part.reshape(-1, *shape) for part in tail), data])
        start = sum(part.count for part in old[:built])
        self.put(table, [*old[:built], Segment(self.array(table, joined), len(joined), start)])

    def patch(self, table: str, rows: Rows, numbers: Array, data: Array) -> None:
        """Replace or add rows by number; `rows` are the old ones."""
        old = self.manifest.tables[table]
        if not len(numbers):
            return
        built = count_built_segments(old)
        if len(old) - built >= MOST_SEGMENTS - 1:
            # Rows of the later segments, each as it is now; those replaced here are left out.
            self._check(old[built:])
            later = [
                np.arange(piece.start, piece.start + len(piece.content)) if piece.rows is None else piece.rows
                for piece in rows.pieces[built:]
            ]
            unchanged = np.setdiff1d(np.concatenate(later), numbers)
            dtype, shape = row_dtype_of(self.manifest, table)
            content = rows.take(unchanged).reshape(-1).view(dtype)
            numbers = np.concatenate([unchanged, numbers])
            data = np.concatenate([content.reshape(-1, *shape), data])
            old = old[:built]
        names = self.array(table, numbers.astype("<i8"), "rows.npy")
        self.put(table, [*old, Segment(self.array(table, data), len(data), 0, names)])

    def check(self, names: Iterable[str]) -> None:
        """Refuse old files that are not what was written, before their content goes into new ones."""
        for name in names:
            if name not in self.written:
                check_file(self.folder / name, self.manifest.files[name])

    def _check(self, segments: list[Segment]) -> None:
        self.check(name for part in segments for name in (part.file, part.rows) if name is not None)

    def commit(self) -> Snapshot:
        """Swap the manifest. All that may fail comes before; see `open_draft` for what comes after."""
        manifest = self.manifest.with_used_files(self.written)
        result = Snapshot(self.folder, manifest)
        flush_folder(self.folder)
        write_manifest(self.folder, manifest)
        return result


@contextmanager
def open_draft(folder: Path, manifest: Manifest) -> Iterator[Draft]:
    """A draft; whatever happens, what is left in the end are the files of the manifest on the disk."""
    with wrap_os_errors(folder):
        left = remove_leftovers(folder)
        try:
            yield Draft(folder, manifest, left)
        finally:
            try_remove_leftovers(folder)


def file_name(table: str, state: int, ending: str = "npy") -> str:
    """The file of a table that one version wrote."""
    return f"{table}.{state:08d}.{ending}"


def flush_and_record(path: Path) -> FileRecord:
    """Bring a file onto the disk; its size and checksum."""
    flush(path)
    return record_of(path)
