"""Shards: consecutive rows of every table in files of their own, as a build on a cluster writes them.

To the manifest a shard is a segment like any other, so an index of shards is read, searched, changed and
verified like one of single files; only the names of its files differ. A table in several files is searched
one file after the other, with a merged top-K.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from gqe.index.approximate import Approximate
from gqe.index.manifest import Segment
from gqe.index.tables import Piece, Rows, Table
from gqe.neighbors.candidates import Candidates, Engine, exact_candidates, merge_candidates

Array = np.ndarray[Any, Any]
_NAME = re.compile(r"^(?P<table>[a-z0-9-]+)-shard-\d{5,}\.\d{8}\.")


def shard_file(table: str, number: int, ending: str = "npy") -> str:
    """The file of one shard of a table."""
    return f"{table}-shard-{number:05d}.{1:08d}.{ending}"


def table_of(file: str) -> str:
    """The table that a file belongs to, be it a shard of it or not."""
    found = _NAME.match(file)
    return found["table"] if found else file.split("/")[0].split(".")[0]


def count_built_segments(segments: Sequence[Segment]) -> int:
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


def has_pieces(table: object) -> bool:
    """Whether a table lies in several files whose rows follow each other."""
    return isinstance(table, Table) and table.rows.in_order and len(table.rows.pieces) > 1


def slice_rows(table: Table, start: int, stop: int) -> Table:
    """Consecutive rows of a table as a table of their own, mapped where they are.

    Args:
        table: (n, d), in one file or in files that follow each other.
        start: first row.
        stop: end.
    """
    assert table.rows.in_order
    pieces = []
    for piece in table.rows.pieces:
        content = piece.content[max(start - piece.start, 0) : max(stop - piece.start, 0)]
        if len(content):
            pieces.append(Piece(content, max(piece.start - start, 0)))
    rows = Rows(stop - start, table.rows.row_bytes, pieces)
    return Table(rows, table.storage, table.shape[1])


def candidates_by_piece(
    queries: Tensor, table: Table, count: int, allowed: Tensor | None = None
) -> Candidates:
    """`exact_candidates` of a table that lies in pieces, without joining any of them."""
    found = []
    for piece in table.rows.pieces:
        start, stop = piece.start, piece.start + len(piece.content)
        if start < stop:
            mask = None if allowed is None else allowed[start:stop]
            found.append(_exact(queries, table, start, stop, count, mask))
    return reduce(partial(merge_candidates, count=count), found)


class ShardedApproximate(NamedTuple):
    """The faiss indexes of shards; rows that none of them covers are compared one by one.

    Attributes:
        parts: the first row and the faiss index of each shard that has one, in the order of the rows.
    """

    parts: Sequence[tuple[int, Approximate]]

    def engine(self, table: Table, allowed: Array | None) -> Engine:
        """An engine over the table of all shards, for allowed rows (n,) only; see `Approximate.engine`."""
        engines: list[tuple[int, Engine]] = []
        for start, part in self.parts:
            rows = slice(start, start + part.rows)
            here = None if allowed is None else allowed[rows]
            engines.append((start, part.engine(slice_rows(table, rows.start, rows.stop), here)))
        gaps = list(self._gaps(len(table)))

        def candidates(queries: Tensor, wanted: int) -> Candidates:
            found = []
            for start, engine in engines:
                near = engine(queries, wanted)
                found.append(Candidates(torch.where(near.ids >= 0, near.ids + start, -1), near.similarities))
            for start, stop in gaps:
                mask = None if allowed is None else torch.from_numpy(allowed[start:stop])
                rest = _exact(queries, table, start, stop, wanted, mask)
                found.append(
                    Candidates(torch.where(torch.isinf(rest.similarities), -1, rest.ids), rest.similarities)
                )
            return reduce(partial(merge_candidates, count=wanted), found)

        return candidates

    def _gaps(self, rows: int) -> Iterator[tuple[int, int]]:
        """Rows that no faiss index covers."""
        at = 0
        for start, part in [*((start, part.rows) for start, part in self.parts), (rows, 0)]:
            if at < start:
                yield at, start
            at = start + part


def merge_lists(first: Candidates, second: Candidates, k: int) -> Candidates:
    """The k nearest of two lists of neighbours (m, .) that were scored one by one.

    Falling similarity, then rising id: what `nearest_rows` gives for two tables is what it would give for
    both as one, bit for bit. Missing ones, id -1, come last.

    Example:
        >>> near = Candidates(torch.tensor([[4, 2]]), torch.tensor([[0.9, 0.5]]))
        >>> other = Candidates(torch.tensor([[1, 7]]), torch.tensor([[0.5, 0.1]]))
        >>> merge_lists(near, other, 3).ids
        tensor([[4, 1, 2]])
    """
    ids, places = torch.sort(torch.cat([first.ids, second.ids], dim=1), dim=1)
    similarities = torch.cat([first.similarities, second.similarities], dim=1).gather(1, places)
    similarities, order = torch.sort(similarities, dim=1, descending=True, stable=True)
    return Candidates(ids.gather(1, order)[:, :k], similarities[:, :k])


def _exact(
    queries: Tensor, table: Table, start: int, stop: int, count: int, allowed: Tensor | None
) -> Candidates:
    part = cast(Tensor, slice_rows(table, start, stop))
    found = exact_candidates(queries, part, min(count, stop - start), allowed)
    return Candidates(found.ids + start, found.similarities)
