"""Files that are not on a disk of this machine, by fsspec: s3://bucket/base.npy, gs://..., http://..."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from gqe.errors import InputError
from gqe.formats.checks import one_line
from gqe.redaction import redact, secrets_of

_REMEDY = "check the address, the network and the credentials, then run it again"


def is_address(place: object) -> bool:
    """Whether a place is an address of fsspec and no name of a file.

    Example:
        >>> is_address("s3://bucket/base.npy"), is_address("base.npy")
        (True, False)
    """
    return isinstance(place, str) and "://" in place


def open_filesystem(address: str) -> tuple[Any, str]:
    """The file system of an address, and the name there."""
    try:
        fsspec = import_module("fsspec")
    except ImportError as error:
        shown = redact(address, secrets_of(address))
        raise InputError(f"{shown}: addresses need fsspec: pip install 'gqe[cluster]'") from error
    with wrap_address_errors(address):
        system, name = fsspec.core.url_to_fs(address)
    return system, str(name).rstrip("/")


@contextmanager
def wrap_address_errors(address: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever a file system says into one line that names the address, without secrets."""
    secrets = secrets_of(str(address))
    shown = redact(address, secrets)

    def describe(error: Exception) -> str:
        return one_line(Exception(redact(error, secrets) or type(error).__name__))

    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:  # not as a cause: messages of file systems hold the address with its secrets
        raise InputError(f"{shown}: nothing is there; check the address") from None
    except ImportError as error:  # fsspec says which package
        raise InputError(f"{shown}: {describe(error)}") from None
    except Exception as error:
        raise InputError(f"{shown}: cannot be reached: {describe(error)}; {_REMEDY}") from None
