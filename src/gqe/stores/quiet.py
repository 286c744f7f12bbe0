"""Calls of clients without their logs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

# That of Milvus logs a traceback of all that it raises, too; psycopg what a lost connection leaves undone.
_NOISY = ("pymilvus", "pymilvus.decorators", "milvus_lite", "grpc._server", "psycopg")


class _Calls:
    """How many calls are under way, in all threads, and how the loggers were before the first."""

    lock = threading.Lock()
    count = 0
    levels: ClassVar[list[int]] = []


@contextmanager
def quiet() -> Iterator[None]:
    """Without what clients log beside their exceptions."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    with _Calls.lock:
        _Calls.count += 1
        if _Calls.count == 1:
            _Calls.levels = [logger.level for logger in loggers]
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        with _Calls.lock:
            _Calls.count -= 1
            if not _Calls.count:
                for logger, level in zip(loggers, _Calls.levels, strict=True):
                    logger.setLevel(level)
