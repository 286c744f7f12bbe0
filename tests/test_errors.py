"""A message is one line, whatever is quoted in it, and its remedy fits."""

from __future__ import annotations

import doctest
import errno
import os

import pytest

from gqe import errors
from gqe.errors import DamagedError, InputError, StorageError, short_repr


@pytest.mark.parametrize(
    ("code", "remedy", "full", "retryable"),
    [
        (errno.ENOSPC, "free some", True, True),
        (errno.EDQUOT, "free some", True, True),
        (errno.EFBIG, "free some", True, True),
        (errno.EMFILE, "ulimit -n", False, True),
        (errno.ENFILE, "ulimit -n", False, True),
        (errno.EROFS, "read-only", False, False),
        (errno.EACCES, "rights", False, False),
        (errno.EIO, "the disk fails", False, False),
        (errno.ENAMETOOLONG, "choose a shorter name", False, False),
        (errno.EXDEV, "check the disk", False, False),
    ],
)
def test_a_remedy_for_each(code: int, remedy: str, full: bool, retryable: bool) -> None:
    error = StorageError.of(OSError(code, os.strerror(code), "the/file"), "place", "written")
    assert str(error).startswith("the/file: no space left" if full else "the/file: cannot be written: ")
    assert remedy in str(error)
    assert ("space" in str(error)) == full
    assert (error.full, error.retryable) == (full, retryable)


def test_they_are_told_apart_and_still_input_errors() -> None:
    assert issubclass(StorageError, InputError)
    assert issubclass(DamagedError, StorageError)
    damaged = DamagedError("a: damaged")
    assert (damaged.full, damaged.retryable) == (False, False)
    assert "place: cannot be read: odd" in str(StorageError.of(OSError("odd"), "place", "read"))


def test_examples() -> None:
    outcome = doctest.testmod(errors)
    assert (outcome.attempted > 0, outcome.failed) == (True, 0)


def test_a_message_is_one_line_that_steers_no_terminal():
    error = InputError("a\nb.npy:\r\n is \x1b[31mred\x07 and \udcff;\ttry\x1c again\u2028 ")
    assert str(error) == r"a b.npy: is \x1b[31mred\x07 and \udcff; try again"


def test_values_are_shown_as_far_as_they_can_be():
    assert short_repr(3) == "3"
    assert short_repr(10**5000) == "a number of 16610 bits"
    assert len(short_repr("x" * 1000)) == 200
