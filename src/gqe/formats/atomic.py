"""Write beside, then rename: a file is either the old one or the whole new one, never half of either."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gqe.errors import InputError

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; on success it takes the place of `path`.

    The temporary file exists (empty) and has the ending of `path`. It is flushed to the disk before the
    rename. After any error, an interrupt included, it is removed and whatever stood at `path` is untouched.
    A link is followed, and the permissions of a file that is replaced are kept.

    Args:
        path: the file to write.

    Raises:
        InputError: the folder is missing or not writable, `path` is a folder or device, or the disk is full.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with replacing(folder / "notes.txt") as temporary:
        ...     _ = temporary.write_text("whole")
        >>> (folder / "notes.txt").read_text()
        'whole'
    """
    target = _checked_target(path)
    temporary = _create_beside(target)
    try:
        yield temporary
        flush(temporary)
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
        flush_folder(target.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            raise InputError(f"{path}: no space left to write it; free some or write elsewhere") from error
        raise


def _checked_target(path: str | os.PathLike[str]) -> Path:
    try:
        # The file behind a link is replaced, not the link.
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise InputError(f"{path}: is a folder; give the name of a file")
        if target.exists() and not target.is_file():
            raise InputError(f"{path}: is not a regular file; write to another name")
        if not target.parent.is_dir():
            raise InputError(f"{path}: the folder {target.parent} does not exist; create it first")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        if isinstance(error, InputError):
            raise
        raise InputError(f"{str(path)!r}: cannot be written: {error}; choose another name") from error
    return target


def _create_beside(target: Path) -> Path:
    # Part of the name tells whose leftover it is should the machine stop; all of it might be too long.
    temporary = target.with_name(f".{target.stem[:40]}.{secrets.token_hex(8)}.tmp{target.suffix}")
    try:
        # Unlike tempfile, this gives the file the permissions any new file of this user gets.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}; choose another folder") from error
    return temporary


def flush(path: Path) -> None:
    """Bring a file onto the disk."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Make new names in a folder durable; not every system lets a folder be opened for that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
