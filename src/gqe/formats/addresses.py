"""Files that are not on a disk of this machine, by fsspec: s3://bucket/base.npy, gs://..., http://..."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from gqe.errors import InputError
from gqe.formats.checks import one_line


def is_address(place: object) -> bool:
    """Whether a place is an address of fsspec and no name of a file.

    Example:
        >>> is_address("s3://bucket/base.npy"), is_address("base.npy")
        (True, False)
    """
    return isinstance(place, str) and "://" in place


def opened(address: str) -> tuple[Any, str]:
    """The file system of an address, and the name there."""
    try:
        fsspec = import_module("fsspec")
    except ImportError as error:
        raise InputError(f"{address}: addresses need fsspec: pip install 'gqe[cluster]'") from error
    with explaining_address(address):
        system, name = fsspec.core.url_to_fs(address)
    return system, str(name).rstrip("/")


@contextmanager
def explaining_address(address: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever a file system says into one line that names the address."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{address}: nothing is there; check the address") from error
    except ImportError as error:  # fsspec says which package
        raise InputError(f"{address}: {one_line(error)}") from error
    except Exception as error:
        raise InputError(f"{address}: cannot be reached: {one_line(error)}; check the address") from error
