"""Write beside, then rename: a file is either the old one or the whole new one, never half of either."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gqe.errors import InputError, StorageError

# What a write says that names no file; a network says other things.
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
# A file system that cannot do this with folders says so; anything else is a failure.
_UNSUPPORTED = {
    errno.EINVAL,
    errno.EBADF,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTSUP,
    errno.ENOSYS,
    errno.EISDIR,
}


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; on success it takes the place of `path`.

    The temporary file exists (empty) and has the ending of `path`. It is flushed to the disk before the
    rename. After any error, an interrupt included, it is removed, and `path` is either what it was or, if the
    error came after the rename, the whole new file. The permissions of a file that is replaced are kept.

    Args:
        path: the file to write.
        follow: replace the file behind a link; otherwise the link itself.

    Raises:
        InputError: the folder is missing, or `path` is a folder or device.
        StorageError: the system refuses to write: no space, no rights, a failing disk.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with atomic_path(folder / "notes.txt") as temporary:
        ...     _ = temporary.write_text("whole")
        >>> (folder / "notes.txt").read_text()
        'whole'
    """
    target = _check_target(path, follow)
    # Part of the name shows whose leftover it is if the machine stops; all of it might be too long.
    temporary = target.with_name(f".{target.stem[:40]}.{secrets.token_hex(8)}.tmp{target.suffix}")
    try:
        # Unlike tempfile, this gives the file the permissions any new file of this user gets.
        os.close(os.open(str(temporary), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        flush(temporary)
        if target.exists() and not target.is_symlink():
            temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
        flush_folder(target.parent)
    except BaseException as error:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and _is_about(error, temporary):
            error.filename = None
            raise StorageError.of(error, path, "written") from error
        raise


def _check_target(path: str | os.PathLike[str], follow: bool) -> Path:
    try:
        target = Path(os.path.realpath(path)) if follow else Path(path)
        if target.is_dir():
            raise InputError(f"{path}: is a folder; give the name of a file")
        if target.exists() and not target.is_file():
            raise InputError(f"{path}: is not a regular file; write to another name")
        if not target.parent.is_dir():
            raise InputError(f"{path}: the folder {target.parent} does not exist; create it first")
    except OSError as error:
        raise StorageError.of(error, path, "written") from error
    except ValueError as error:  # a null character in the name
        if isinstance(error, InputError):
            raise
        raise InputError(f"{str(path)!r}: cannot be written: {error}; choose another name") from error
    return target


def _is_about(error: OSError, temporary: Path) -> bool:
    """Whether an error is of writing this file, and not of something else that was done meanwhile."""
    if error.filename is None:
        return error.errno in DISK_ERRORS
    return error.filename in (str(temporary), str(temporary.parent))


def flush(path: Path) -> None:
    """Bring a file onto the disk."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Make new names in a folder durable; not every system lets a folder be opened for that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
