"""Plan the download of a data set and carry it out; the same call continues after a stop."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gqe.datasets.official.catalog import Collection, File, download_address
from gqe.datasets.official.download import (
    PARTIAL,
    Progress,
    RetryPolicy,
    download,
    file_sha256,
    remote_size,
)
from gqe.datasets.official.record import RECORD_NAME, Entry, read_record, write_entry
from gqe.datasets.official.rsfm import read_pairs, read_split
from gqe.datasets.official.unpack import unpack
from gqe.errors import InputError
from gqe.formats import read_ground_truth
from gqe.formats.matlab import matrix_names
from gqe.redaction import redact

_ARCHIVES = ".archives"


@dataclass(frozen=True)
class Step:
    """One file of a plan: its bytes in all (None if unknown), those already here, and whether it is done."""

    file: File
    address: str
    size: int | None
    have: int
    done: bool


@dataclass(frozen=True)
class DownloadPlan:
    """What getting a data set will take.

    Attributes:
        collection: the data set.
        folder: where it goes.
        steps: one for each file.
        free: bytes free on that disk.
    """

    collection: Collection
    folder: Path
    steps: tuple[Step, ...]
    free: int

    @property
    def missing_steps(self) -> list[Step]:
        """Steps still to be done."""
        return [step for step in self.steps if not step.done]

    @property
    def to_fetch(self) -> int | None:
        """Bytes to fetch, None if a size is unknown."""
        sizes = [None if step.size is None else step.size - step.have for step in self.missing_steps]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def disk_bytes(self) -> int:
        """Bytes of disk: what is fetched, and archives a second time while they are unpacked.

        Archives are unpacked one by one and removed; pictures take as much space outside as inside them.
        """
        archives = [step.size or 0 for step in self.missing_steps if step.file.folder is not None]
        return sum((step.size or 0) - step.have for step in self.missing_steps) + max(archives, default=0)


def plan(
    collection: Collection, root: Path, *, pictures: bool = False, timeout: float = 30.0
) -> DownloadPlan:
    """Look what is here, and ask the servers for the sizes of the rest.

    Raises:
        InputError: a file is not to be had, or a file here is not the one that was downloaded.
    """
    folder = root / collection.name
    entries = read_record(folder)
    steps = []
    for file in collection.select(pictures):
        address = download_address(collection.name, file.address)
        if is_here(folder, file, entries):
            steps.append(Step(file, address, None, 0, True))
            continue
        target = _target(folder, file)
        if file.name in entries and target.is_file():  # an archive that waits to be unpacked
            size: int | None = entries[file.name].size
            have = entries[file.name].size
        else:
            size = file.size if file.size is not None else remote_size(address, timeout)
            partial = target.parent / PARTIAL / target.name
            have = min(partial.stat().st_size, size or 0) if partial.exists() else 0
        steps.append(Step(file, address, size, have, False))
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return DownloadPlan(collection, folder, tuple(steps), shutil.disk_usage(existing).free)


def get(
    plan: DownloadPlan, *, progress: Progress | None = None, retry: RetryPolicy | None = None
) -> list[Path]:
    """Carry out a plan.

    Files appear in their place one by one, each whole and checked; a folder of pictures appears when all its
    archives are unpacked.

    Returns:
        The files and folders of the data set.

    Raises:
        InputError: something cannot be had, is not what it should be, or does not fit on the disk. What is
            complete stays; the same call goes on from there.
    """
    if plan.disk_bytes > plan.free:
        raise InputError(
            f"{plan.folder}: {plan.collection.name} needs {format_size(plan.disk_bytes)}, "
            f"{format_size(plan.free)} are free; free some or choose another --root"
        )
    with _lock(plan.folder):
        for step in plan.missing_steps:
            _fetch(plan.folder, step, progress, retry)
            if step.file.folder is not None:
                _unpack(plan.folder, step.file, progress)
        for name in {step.file.folder for step in plan.steps if step.file.folder is not None}:
            _publish(plan.folder, name)
    return sorted({plan.folder / (step.file.folder or step.file.name) for step in plan.steps})


def verify(collection: Collection, root: Path, *, progress: Progress | None = None) -> list[str]:
    """Read all downloaded files again and name those whose content differs from the recorded checksum."""
    folder = root / collection.name
    entries = read_record(folder)
    wrong = []
    for number, (name, entry) in enumerate(entries.items()):
        path = folder / name
        if progress is not None:
            progress(number, len(entries), name)
        if not entry.unpacked and path.is_file() and file_sha256(path) != entry.sha256:
            wrong.append(str(path))
    return wrong


def is_here(folder: Path, file: File, entries: dict[str, Entry]) -> bool:
    """Whether a file is in place; one put there by hand counts as well."""
    entry = entries.get(file.name)
    if file.folder is not None:
        if (folder / file.folder).is_dir():
            return True
        return entry is not None and entry.unpacked and _unpack_folder(folder, file.folder).is_dir()
    path = folder / file.name
    if not path.is_file():
        return False
    size = path.stat().st_size
    if entry is not None and size != entry.size:
        raise InputError(f"{path}: has {size} bytes, {entry.size} were downloaded; remove it to get it again")
    return True


def format_size(size: int | None) -> str:
    """Bytes as people read them.

    Example:
        >>> format_size(1_938_238_004)
        '1.9 GB'
    """
    if size is None:
        return "unknown"
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _fetch(folder: Path, step: Step, progress: Progress | None, retry: RetryPolicy | None) -> None:
    file, target = step.file, _target(folder, step.file)
    known = read_record(folder).get(file.name)
    if known is not None and target.is_file():
        return  # an archive that waits to be unpacked
    sha256 = known.sha256 if known is not None else file.sha256
    try:
        result = download(
            step.address,
            target,
            size=file.size,
            sha256=sha256,
            check=_check_content,
            progress=progress,
            retry=retry,
        )
    except InputError as error:
        if known is not None and not file.sha256 and "SHA-256" in str(error):
            raise InputError(
                f"{error}; that checksum was recorded at the first download: if the owner has published "
                f"a new file, remove its entry from {folder / RECORD_NAME}"
            ) from None
        raise
    entry = Entry(redact(step.address), result.size, result.sha256, bool(file.sha256))
    write_entry(folder, file.name, entry)


def _check_content(path: Path) -> None:
    """Raise InputError if a file is not of the kind its name promises.

    Servers answer with pages ("moved", "log in first") where a file was asked for; such a page must not lie
    in the place of a ground truth.
    """
    name = path.name
    with path.open("rb") as stream:
        start = stream.read(512)
    if name.startswith("gnd_"):
        read_ground_truth(path)
    elif name.endswith("-whiten.pkl"):
        read_pairs(path)
    elif name.startswith("retrieval-SfM") and name.endswith(".pkl"):
        for split in ("train", "val"):
            read_split(path, split)
    elif name.endswith(".mat"):
        matrix_names(path)
    elif name.endswith((".gz", ".tgz")):
        if not start.startswith(b"\x1f\x8b"):
            raise InputError(f"{path}: is not a gzip archive, it begins with {start[:16]!r}")
    elif name.endswith(".pth"):
        if not start.startswith((b"PK\x03\x04", b"\x80")):
            raise InputError(f"{path}: is not a file of torch.save, it begins with {start[:16]!r}")
    elif not start.strip() or start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise InputError(f"{path}: is a web page or empty, not a list of names")


def _unpack(folder: Path, file: File, progress: Progress | None) -> None:
    archive = _target(folder, file)
    try:
        unpack(archive, _unpack_folder(folder, file.folder or ""), flat=file.flat, progress=progress)
    except InputError as error:
        if "cannot be written" not in str(error):
            # Neither the archive nor its checksum is worth keeping.
            archive.unlink(missing_ok=True)
            write_entry(folder, file.name, None)
        raise
    write_entry(folder, file.name, replace(read_record(folder)[file.name], unpacked=True))
    archive.unlink()


def _publish(folder: Path, name: str) -> None:
    """Give a folder of pictures its name once every archive of it is unpacked."""
    hidden, final = _unpack_folder(folder, name), folder / name
    if final.is_dir() or not hidden.is_dir():
        return
    if hasattr(os, "sync"):
        os.sync()  # cheaper than flushing a million small files one by one
    hidden.rename(final)
    with suppress(OSError):
        (folder / _ARCHIVES / PARTIAL).rmdir()
        (folder / _ARCHIVES).rmdir()


def _target(folder: Path, file: File) -> Path:
    return folder / file.name if file.folder is None else folder / _ARCHIVES / file.name


def _unpack_folder(folder: Path, name: str) -> Path:
    return folder / f".{name}.part"


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Keep a second command from writing the same partial files; the lock goes with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / ".lock").open("w")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}; choose another --root") from None
    with stream:
        try:
            import fcntl
        except ImportError:  # Windows; two commands at once are then up to the user
            yield
            return
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{folder}: another command is getting this; wait for it") from None
        yield
