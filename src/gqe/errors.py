"""Errors that are shown to users: mistakes in what was given, and disks that fail."""

from __future__ import annotations

import errno

from gqe.redaction import redact

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BUSY = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.EBUSY}
_REMEDIES = {
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EROFS: "the file system is read-only; choose another place or have it made writable",
    errno.EACCES: "check the rights of the folder",
    errno.EPERM: "check the rights of the folder",
    errno.EIO: "the disk fails; check it and restore the file",
    errno.ENOENT: "check the name",
    errno.ENOTDIR: "check the name",
    errno.ELOOP: "it is a link that leads nowhere; remove it",
}


class InputError(ValueError):
    """Something given by the user cannot be used.

    The message is one line, whatever is quoted in it: it names the argument or file, the row where there is
    one, and the remedy. Secrets in it are masked. The command line prints it and exits with status 2.
    """

    def __init__(self, message: str = "") -> None:
        line = " ".join(redact(str(message)).split())
        # Names from files and networks may hold what steers a terminal, or what it cannot print.
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line))


class StorageError(InputError):
    """The system would not read or write a file; the input of the user is not to blame.

    Args:
        message: one line, see `InputError`.
        full: whether the disk, a quota or the size allowed for a file is used up.
        retryable: whether the same call may succeed later without anything being repaired: space may be
            freed, and files that are open may be closed.
    """

    def __init__(self, message: str = "", *, full: bool = False, retryable: bool = False) -> None:
        super().__init__(message)
        self.full = full
        self.retryable = retryable

    @classmethod
    def of(cls, error: OSError, place: object, verb: str) -> StorageError:
        """What the system said, as one line whose remedy fits.

        Args:
            error: what was raised.
            place: the file or folder, where the error itself names none.
            verb: what could not be done to it, such as "written".

        Example:
            >>> error = StorageError.of(OSError(errno.ENOSPC, "No space left on device"), "index", "written")
            >>> str(error), error.full, error.retryable
            ('index: no space left; free some and run it again', True, True)
        """
        full = error.errno in _FULL
        what = f"cannot be {verb}: {error.strerror or error}"
        remedy = _REMEDIES.get(error.errno or 0, "check the disk and the folder")
        if full:
            what, remedy = "no space left", "free some and run it again"
        elif error.errno in _BUSY:
            remedy = "try again when fewer files are open (ulimit -n) and other programs have finished"
        retryable = full or error.errno in _BUSY
        return cls(f"{error.filename or place}: {what}; {remedy}", full=full, retryable=retryable)


class DamagedError(StorageError):
    """A file of ours is missing, or is not what was written; it must be restored."""


def short_repr(value: object) -> str:
    """A value in a message: the beginning of what it looks like."""
    if isinstance(value, int) and value.bit_length() > 128:  # Python shows no number of 5000 digits
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
