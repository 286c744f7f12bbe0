"""The errors a user is told about in one line."""

from __future__ import annotations


class InputError(ValueError):
    """Something given by the user cannot be used.

    The message is one line: it names the argument or file, the row where there is one, and the remedy.
    The command line prints it and exits with status 2.
    """


class StorageError(InputError):
    """Files cannot be read or written though nothing that was asked for is wrong.

    Args:
        message: One line, see `InputError`.
        retryable: Whether the same call may succeed later, unchanged.
        full: Whether there is no room left.
    """

    def __init__(self, message: str = "", *, retryable: bool = True, full: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.full = full


class DamagedError(StorageError):
    """A file does not hold what was written into it."""

    def __init__(self, message: str = "", *, retryable: bool = False, full: bool = False) -> None:
        super().__init__(message, retryable=retryable, full=full)
