"""Bringing an index from an address to this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from gqe.cluster.storage import download
from gqe.errors import DamagedError, InputError, StorageError
from gqe.formats.addresses import is_address
from gqe.formats.atomic import flush, flush_folder, replacing
from gqe.index.files import FileRecord, create, explained, only_writer, record_of
from gqe.index.leftovers import begin, read_note, try_to_clean
from gqe.index.manifest import BUILDING, MANIFEST, Manifest, parse_manifest, read_manifest

# A manifest of an index of a hundred thousand shards is not as large.
_MOST_BYTES = 256 << 20


def fetch_index(
    address: str, folder: str | os.PathLike[str], *, progress: Callable[[int, int, str], None] | None = None
) -> None:
    """Copy an index; files that an earlier fetch has brought and that are sound are kept.

    An index that is there already is replaced by its newer version, in one step.

    Args:
        address: where the index is, such as "s3://bucket/my-index".
        folder: where it shall be.
        progress: called with files done, files in all, and the file's name.

    Raises:
        InputError: nothing is at the address, or the folder holds something else.
        DamagedError: what is at the address is damaged, or arrives so.
    """
    if not is_address(address):
        raise InputError(f"{address}: is no address; open the folder as it is")
    content = _manifest_at(address)
    manifest = parse_manifest(content, f"{address}/{MANIFEST}")
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError.of(error, target, "made") from error
    with only_writer(target), explained(target):
        _Fetch(address, target, manifest).run(progress)
        with replacing(target / MANIFEST, follow=False) as beside:
            beside.write_bytes(content)
        try_to_clean(target)


class _Fetch:
    """The files of one index on their way to a folder.

    Args:
        address: where they are.
        folder: where they shall be.
        manifest: of the index at the address.
    """

    def __init__(self, address: str, folder: Path, manifest: Manifest) -> None:
        self.address = address
        self.folder = folder
        self.files = manifest.files
        new = not (folder / MANIFEST).exists()
        if new and (folder / BUILDING).exists():
            raise InputError(f"{folder}: holds an interrupted build; fetch into another folder")
        # Files of the version that is there must not change, since it stays the index until the end.
        self.present = {} if new else read_manifest(folder).files
        note = read_note(folder)
        self.own = {*self.present, *(note.names if note else ())}
        if note is not None:
            for path in folder.iterdir():
                if note.token in path.name and path.name not in self.present:
                    path.unlink()
        self.missing = [name for name in self.files if not self._is_there(name)]
        self.token = begin(folder, {*self.own, *self.files}, new=new)

    def run(self, progress: Callable[[int, int, str], None] | None) -> None:
        """Bring what is missing, and make sure that it is on the disk."""
        done = len(self.files) - len(self.missing)
        for number, name in enumerate(self.missing):
            if progress is not None:
                progress(done + number, len(self.files), name)
            self._bring(name, self.files[name])
        for part in {(self.folder / name).parent for name in self.files}:
            flush_folder(part)

    def _is_there(self, name: str) -> bool:
        """Whether a file need not be brought; refuses what must not be replaced."""
        path, record = self.folder / name, self.files[name]
        if path.parent.is_symlink():
            raise InputError(f"{path.parent}: is a link; fetch into a new folder")
        if self.present.get(name, record) != record:
            raise InputError(f"{self.folder}: holds another index; fetch into a new folder")
        if not path.exists() and not path.is_symlink():
            return False
        if path.is_file() and record_of(path) == record:
            return True
        if name not in self.own:
            raise InputError(f"{path}: is not of this index; move it, or fetch into a new folder")
        return False

    def _bring(self, name: str, record: FileRecord) -> None:
        beside = self.folder / f"fetch.{self.token}.part"
        create(beside)
        try:
            download(self.address, name, beside, record.bytes)
            if record_of(beside) != record:
                raise DamagedError(f"{self.address}/{name}: arrived damaged; fetch it again")
            flush(beside)
            (self.folder / name).parent.mkdir(exist_ok=True)
            beside.replace(self.folder / name)
        finally:
            beside.unlink(missing_ok=True)


def _manifest_at(address: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / MANIFEST
        download(address, MANIFEST, copy, _MOST_BYTES)
        return copy.read_bytes()
