"""Shards: consecutive rows of every table in files of their own, as a build on a cluster writes them.

To the manifest a shard is a segment like any other, so an index of shards is read, searched, changed and
verified as one of single files is. Only its files' names tell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from gqe.index.manifest import Segment

_NAME = re.compile(r"^(?P<table>[a-z0-9-]+)-shard-\d{5,}\.\d{8}\.")


def shard_file(table: str, number: int, ending: str = "npy") -> str:
    """The file of one shard of a table."""
    return f"{table}-shard-{number:05d}.{1:08d}.{ending}"


def table_of(file: str) -> str:
    """The table that a file belongs to, be it a shard of it or not."""
    found = _NAME.match(file)
    return found["table"] if found else file.split("/")[0].split(".")[0]


def built_segments(segments: Sequence[Segment]) -> int:
    """How many of a table's segments were there when it was built: its shards, or one."""
    return max(1, sum(1 for part in segments if _NAME.match(part.file)))


def shard_bounds(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    """First row and end of each shard of a table; empty if it has none."""
    return [(part.start, part.start + part.count) for part in segments if _NAME.match(part.file)]


def even_bounds(rows: int, shards: int) -> list[tuple[int, int]]:
    """First row and end of each of some shards, as even as they can be.

    Example:
        >>> even_bounds(10, 3)
        [(0, 4), (4, 7), (7, 10)]
    """
    size, more = divmod(rows, shards)
    starts = [number * size + min(number, more) for number in range(shards + 1)]
    return list(pairwise(starts))
