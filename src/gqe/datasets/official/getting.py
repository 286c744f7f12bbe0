"""Plan a download, say what it takes, and carry it out; the same call goes on after a stop."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gqe.datasets.official import record
from gqe.datasets.official.catalog import Collection, File
from gqe.datasets.official.contents import check_content
from gqe.datasets.official.download import PARTIAL, Patience, download
from gqe.datasets.official.place import address_of
from gqe.datasets.official.transfer import Progress, TemporaryError, ask
from gqe.datasets.official.unpack import unpack
from gqe.errors import InputError
from gqe.redaction import redacted

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
class Plan:
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
    def missing(self) -> list[Step]:
        """Steps still to be done."""
        return [step for step in self.steps if not step.done]

    @property
    def to_fetch(self) -> int | None:
        """Bytes to fetch, None if a size is unknown."""
        sizes = [None if step.size is None else step.size - step.have for step in self.missing]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def needed(self) -> int:
        """Bytes of disk: what is fetched, and archives a second time while they are unpacked.

        Archives are unpacked one by one and removed; pictures take as much space outside as inside them.
        """
        sizes = [(step.size or 0, step.have, step.file.folder is not None) for step in self.missing]
        archives = [size for size, _, packed in sizes if packed]
        return sum(size - have for size, have, _ in sizes) + max(archives, default=0)


def plan(collection: Collection, root: Path, *, pictures: bool = False, timeout: float = 30.0) -> Plan:
    """Look what is here, and ask the servers for the sizes of the rest.

    Raises:
        InputError: a file is not to be had, or a file here is not the one that was downloaded.
    """
    folder = root / collection.name
    entries = record.read_record(folder)
    steps = []
    for file in collection.chosen(pictures):
        address = address_of(collection.name, file.address)
        if is_here(folder, file, entries):
            steps.append(Step(file, address, None, 0, True))
            continue
        size, have = file.size, 0
        waiting = _archive(folder, file)
        if file.folder is not None and file.name in entries and waiting.is_file():
            size = have = entries[file.name].size
        else:
            size = size if size is not None else _ask(address, timeout)
            partial = _target(folder, file).parent / PARTIAL / Path(file.name).name
            have = min(partial.stat().st_size, size or 0) if partial.exists() else 0
        steps.append(Step(file, address, size, have, False))
    return Plan(collection, folder, tuple(steps), _free(folder))


def get(plan: Plan, *, progress: Progress | None = None, patience: Patience | None = None) -> list[Path]:
    """Carry out a plan.

    Files appear in their place one by one, each whole and checked; a folder of pictures appears when all its
    archives are unpacked.

    Returns:
        The files and folders of the data set.

    Raises:
        InputError: something cannot be had, is not what it should be, or does not fit on the disk. What is
            complete stays; the same call goes on from there.
    """
    if plan.needed > plan.free:
        raise InputError(
            f"{plan.folder}: {plan.collection.name} needs {shown(plan.needed)}, {shown(plan.free)} are free; "
            "free some or choose another --root"
        )
    with _alone(plan.folder):
        for step in plan.missing:
            _fetch(plan, step, progress, patience)
            if step.file.folder is not None:
                _unpack(plan.folder, step.file, progress)
        for name in dict.fromkeys(step.file.folder for step in plan.steps if step.file.folder is not None):
            _show(plan, name)
    return sorted({_shown_path(plan.folder, step.file) for step in plan.steps})


def verify(collection: Collection, root: Path, *, progress: Progress | None = None) -> list[str]:
    """Read all downloaded files again and name those whose content differs from the recorded checksum."""
    folder = root / collection.name
    wrong = []
    for number, (name, entry) in enumerate(entries := list(record.read_record(folder).items())):
        path = folder / name
        if progress is not None:
            progress(number, len(entries), name)
        if not entry.unpacked and path.is_file() and record.sha256_of(path) != entry.sha256:
            wrong.append(str(path))
    return wrong


def is_here(folder: Path, file: File, entries: dict[str, record.Entry]) -> bool:
    """Whether a file is in place; one put there by hand counts as well."""
    if file.folder is not None:
        if (folder / file.folder).is_dir():
            return True
        entry = entries.get(file.name)
        return entry is not None and entry.unpacked and _growing(folder, file.folder).is_dir()
    path = folder / file.name
    if not path.is_file():
        return False
    entry = entries.get(file.name)
    if entry is not None and path.stat().st_size != entry.size:
        raise InputError(
            f"{path}: has {path.stat().st_size} bytes, {entry.size} were downloaded; "
            "remove it to get it again"
        )
    return True


def shown(size: int | None) -> str:
    """Bytes as people read them.

    Example:
        >>> shown(1_938_238_004)
        '1.9 GB'
    """
    if size is None:
        return "unknown"
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _ask(address: str, timeout: float) -> int | None:
    for tries_left in (2, 1, 0):
        try:
            return ask(address, timeout).total
        except TemporaryError as error:
            if not tries_left:
                raise InputError(f"{address}: {error}; check the connection or try later") from None
            time.sleep(error.wait if error.wait is not None else 0.5)
    return None


def _fetch(plan: Plan, step: Step, progress: Progress | None, patience: Patience | None) -> None:
    file, folder = step.file, plan.folder
    known = record.read_record(folder).get(file.name)
    target = _target(folder, file)
    if known is not None and target.is_file():
        return  # an archive that waits to be unpacked
    recorded = known is not None and not file.sha256
    try:
        fetched = download(
            step.address,
            target,
            size=file.size,
            sha256=known.sha256 if known is not None else file.sha256,
            check=check_content,
            progress=progress,
            patience=patience,
        )
    except InputError as error:
        if recorded and "SHA-256" in str(error):
            raise InputError(
                f"{error}; that checksum was recorded at the first download: if the owner has published "
                f"a new file, remove its entry from {folder / record.NAME}"
            ) from None
        raise
    entry = record.Entry(redacted(step.address), fetched.size, fetched.sha256, bool(file.sha256))
    record.write_entry(folder, file.name, entry)


def _unpack(folder: Path, file: File, progress: Progress | None) -> None:
    if file.folder is None:
        return
    archive = _archive(folder, file)
    try:
        unpack(archive, _growing(folder, file.folder), flat=file.flat, progress=progress)
    except InputError as error:
        if "cannot be written" not in str(error):
            # Neither the archive nor its checksum is worth keeping.
            archive.unlink(missing_ok=True)
            record.write_entry(folder, file.name, None)
        raise
    entry = record.read_record(folder)[file.name]
    record.write_entry(
        folder,
        file.name,
        record.Entry(entry.address, entry.size, entry.sha256, entry.published, unpacked=True),
    )
    archive.unlink()


def _show(plan: Plan, name: str) -> None:
    """Give a folder of pictures its name once every archive of it is unpacked."""
    growing, final = _growing(plan.folder, name), plan.folder / name
    if final.is_dir() or not growing.is_dir():
        return
    if hasattr(os, "sync"):
        os.sync()  # cheaper than flushing a million small files one by one
    growing.rename(final)
    with suppress(OSError):
        (plan.folder / _ARCHIVES / PARTIAL).rmdir()
        (plan.folder / _ARCHIVES).rmdir()


def _target(folder: Path, file: File) -> Path:
    return folder / file.name if file.folder is None else _archive(folder, file)


def _archive(folder: Path, file: File) -> Path:
    return folder / _ARCHIVES / file.name


def _growing(folder: Path, name: str) -> Path:
    return folder / f".{name}.part"


def _shown_path(folder: Path, file: File) -> Path:
    return folder / (file.name if file.folder is None else file.folder)


def _free(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
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
