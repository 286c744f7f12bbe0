"""Archives of pictures: unpacked beside, never outside, and shown only when complete."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Self

from gqe.errors import InputError
from gqe.formats.checks import one_line
from gqe.formats.names import stays_inside

# Pictures are packed already; an archive of them hardly gets smaller.
_GROWTH, _GROWTH_BYTES = 20, 64 << 20
# Of the parts of an archive that are no files: long names and the like.
_LONGEST_HEADER = 1 << 20


def unpack(
    archive: Path,
    folder: Path,
    *,
    flat: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> int:
    """Unpack the files of a tar archive into a folder; the same call goes on after a stop.

    Files that are there already in full size are left. Folders within the archive are made, or left out if
    `flat`. An archive that names anything outside the folder, or holds links or devices, is refused.

    Args:
        archive: .tar, .tar.gz or .tgz file.
        folder: where to; made if missing.
        flat: put every file right into `folder`.
        progress: called with (bytes of the archive read, its bytes, name).

    Returns:
        The number of files of the archive.

    Raises:
        InputError: the archive is broken or refused, or the disk is full.
    """
    size = archive.stat().st_size
    places: list[Path] = []
    unpacked = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with archive.open("rb") as stream, tarfile.open(fileobj=stream, mode="r:*", tarinfo=_Member) as tar:
            for member in tar:
                unpacked += member.size + tarfile.BLOCKSIZE
                if unpacked > _GROWTH * size + _GROWTH_BYTES:
                    raise InputError(
                        f"{archive}: refused: its files take more than {_GROWTH} times its own size"
                    )
                place = _find_place(archive, member, folder, flat)
                if place is not None:
                    places.append(place)
                    _write(tar, member, place)
                    if progress is not None:
                        progress(min(stream.tell(), size), size, archive.name)
            _read_to_the_end(tar)
    except Exception as error:  # tarfile lets through whatever a broken header makes of it
        if isinstance(error, OSError) and error.errno is not None:  # gzip reports a wrong checksum without
            raise InputError(
                f"{folder}: cannot be written: {error.strerror}; free some space or choose another --root: "
                "the same command then goes on from here"
            ) from None
        # What came of a bad archive may be wrong, and must not be taken for complete by the next try.
        for place in places:
            place.unlink(missing_ok=True)
        if isinstance(error, InputError):
            raise
        raise InputError(f"{archive}: is a damaged archive ({one_line(error)}); get it again") from None
    if not places:
        raise InputError(f"{archive}: holds no files; get it again")
    return len(places)


class _Member(tarfile.TarInfo):
    """A member whose long name or other particulars are not read into memory whatever their length."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read one header."""
        member = super().frombuf(buf, encoding, errors)
        if member.type not in (*tarfile.SUPPORTED_TYPES, b"D") and member.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


def _read_to_the_end(tar: tarfile.TarFile) -> None:
    """The checksum of a compressed archive stands behind the end of the tar within it.

    A broken header also ends a tar, without a word, and then there is more than zeros behind it.
    """
    while tar.fileobj is not None and (block := tar.fileobj.read(1 << 20)):
        if any(block):
            raise tarfile.ReadError("it goes on behind its end")


def _find_place(archive: Path, member: tarfile.TarInfo, folder: Path, flat: bool) -> Path | None:
    """Where a member goes; None for a folder."""
    name = PurePosixPath(member.name)
    if member.name not in ("", ".") and not stays_inside(member.name):
        raise InputError(f"{archive}: refused: {member.name!r:.200} would be written outside its folder")
    if member.isdir():
        return None
    if not member.isreg() or member.issparse():
        raise InputError(f"{archive}: refused: {member.name!r:.200} is a link or a device, not a file")
    # Hidden files are what some systems add to archives; they are no pictures.
    if name.name.startswith("."):
        return None
    place = folder / (name.name if flat else name)
    if not place.resolve().is_relative_to(folder.resolve()):  # by a link that lies there already
        raise InputError(f"{archive}: refused: {member.name!r:.200} would be written outside its folder")
    return place


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    if place.is_file() and place.stat().st_size == member.size:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    if source is None:
        raise tarfile.ReadError(f"{member.name} has no content")
    with source, place.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    if place.stat().st_size != member.size:
        raise tarfile.ReadError(f"{member.name} ends early")
