"""The part of a database that some queries read, fetched from a store and numbered from 0.

A query with K neighbours reads K vectors, their levels and the similarities of their own neighbours. That is
all an expansion needs of the database: L aggregator calls run here on a few rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators.context import list_profiles
from gqe.embeddings import blocks
from gqe.expansion import compute_level
from gqe.neighbors import NeighborGraph
from gqe.neighbors.candidates import Candidates
from gqe.neighbors.rescoring import cosines
from gqe.source import LevelSource
from gqe.statistics import SpaceStatistics
from gqe.stores.attachment import Attachment
from gqe.stores.base import (
    Records,
    Store,
    Unreachable,
    as_ids,
    no_records,
    numbers_of,
    unique_ids,
    unit_rows,
)

Array = np.ndarray[Any, Any]


class PartialSource(LevelSource):
    """Some items of a store.

    An item without a record (added since the last sync) has its own embedding on all levels.

    Args:
        store: where they are.
        attachment: what was attached there.
        ids: (u,) different items; those that are not there are missing.
        device: where aggregators run.
        levels: fetch levels, too, up to this one.
        lists: neighbour lists for `lists`: True fetches them, records already hold them.
        beyond: (v,) further items of which the vectors alone are fetched: the negatives of queries.
    """

    def __init__(
        self,
        store: Store,
        attachment: Attachment,
        ids: Array,
        device: torch.device,
        *,
        levels: int,
        lists: bool | Records = False,
        beyond: Array | None = None,
    ) -> None:
        statistics = SpaceStatistics(attachment.quantiles or None, attachment.backgrounds)
        super().__init__(attachment.expander.stack, store.dimension, device, statistics)
        found = store.fetch(ids if beyond is None else unique_ids(ids, beyond))
        vectors = unit_rows(store, found)
        self.ids = found.ids
        # Where only vectors are read there need not be any records.
        fetch = levels or lists is True or attachment.needs_context
        wanted = found.ids if fetch else found.ids[:0]
        if beyond is not None:
            wanted = wanted[np.isin(wanted, ids)]
        records = store.read(wanted, levels=levels > 0) if len(wanted) else no_records(store)
        if len(records.ids) and records.levels.shape[1] < levels:
            raise Unreachable(
                f"{store.address}: something else was attached since this connection was opened; open it anew"
            )
        places = self.numbers(records.ids)
        self._levels = [torch.from_numpy(vectors)]
        for i in range(1, levels + 1):
            level = vectors.copy()
            if len(places):
                computed = records.levels[:, i - 1].any(axis=1)
                level[places[computed]] = records.levels[computed, i - 1]
            self._levels.append(torch.from_numpy(level))
        self._read = self._by_number(records)
        self._given = self._by_number(lists) if isinstance(lists, Records) else self._read

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, level: int, ids: Tensor) -> Tensor:
        """See `LevelSource`."""
        return self._levels[level].index_select(0, ids.cpu())

    def lists(self, ids: Tensor) -> Candidates:
        """See `LevelSource`; neighbours that were not fetched are missing."""
        similarities, names = _lists_of(self._given, ids.cpu().numpy())
        neighbors = self.numbers(names[:, : self.graph_k])
        absent = neighbors < 0
        order = np.argsort(absent, axis=1, kind="stable")
        similarities = np.where(absent, np.float32(-np.inf), similarities[:, : self.graph_k])
        return Candidates(
            torch.from_numpy(np.take_along_axis(neighbors, order, 1)),
            torch.from_numpy(np.take_along_axis(similarities, order, 1)),
        )

    def profiles(self, ids: Tensor) -> Tensor:
        """See `LevelSource`; whether the neighbours were fetched plays no part."""
        similarities, _ = _lists_of(self._read, ids.cpu().numpy().reshape(-1))
        profiles = list_profiles(torch.from_numpy(similarities))
        return profiles.reshape(*ids.shape, profiles.shape[1])

    def _by_number(self, records: Records) -> tuple[Array, Records]:
        """(n,) the record of each item, -1 where it has none, and the records."""
        numbers = self.numbers(records.ids)
        record_of = np.full(len(self.ids), -1, dtype=np.int64)
        record_of[numbers[numbers >= 0]] = np.flatnonzero(numbers >= 0)
        return record_of, records

    def numbers(self, ids: Array) -> Array:
        """Numbers of ids of any shape, -1 for what is not there."""
        return numbers_of(self.ids, ids)

    def nearest(self, queries: Tensor, candidates: Array, k: int) -> NeighborGraph:
        """The nearest k of the candidates (m, c), scored from the vectors, ties by rising number."""
        if not len(self):
            none = np.full((len(queries), k), -1, dtype=np.int64)
            return NeighborGraph(none, np.full(none.shape, -np.inf, dtype=np.float32))
        numbers = torch.sort(torch.from_numpy(self.numbers(candidates)), dim=1).values
        scores = cosines(queries.cpu(), self._levels[0], numbers).masked_fill(numbers < 0, float("-inf"))
        scores, order = torch.sort(scores, dim=1, descending=True, stable=True)
        ids = numbers.gather(1, order).masked_fill(torch.isinf(scores), -1)
        found = NeighborGraph(ids[:, :k].numpy(), scores[:, :k].numpy())
        return found.widen(k)


def _lists_of(by_number: tuple[Array, Records], ids: Array) -> tuple[Array, Array]:
    """Similarities and names (p, width) in the lists of items; empty ones for items without a record."""
    record_of, records = by_number
    rows = record_of[ids]
    known = rows >= 0
    similarities = np.full((len(rows), records.similarities.shape[1]), -np.inf, dtype=np.float32)
    similarities[known] = records.similarities[rows[known]]
    names = np.full(similarities.shape, None if records.neighbors.dtype == object else -1)
    names = names.astype(records.neighbors.dtype)
    names[known] = records.neighbors[rows[known]]
    return similarities, names


def next_level(
    store: Store, attachment: Attachment, records: Records, level: int, device: torch.device
) -> Records:
    """The same records with a level >= 1, computed from the level below."""
    result = []
    width = attachment.graph_k
    # So many neighbours are fetched that they take about as much room as a batch of items.
    for part in blocks(len(records.ids), width, max(width, 8 * store.batch)):
        some = records.at(part)
        ids = unique_ids(some.neighbors[:, :width], some.ids)
        source = PartialSource(store, attachment, ids, device, levels=level - 1, lists=some)
        own = source.numbers(some.ids)
        some, own = some.at(own >= 0), own[own >= 0]  # deleted since: the next sync removes the record
        levels = some.levels.copy()
        if len(own):
            levels[:, level - 1] = compute_level(source, level, torch.from_numpy(own)).cpu().numpy()
        result.append(some._replace(levels=levels, valid=np.full(len(some.ids), level)))
    return Records(*(np.concatenate(parts) for parts in zip(*result, strict=True)))


def closure(store: Store, ids: Array, hops: int, kind: str) -> Array:
    """These items, the neighbours in their lists, those of these, and so on."""
    known, edge = ids, ids
    for _ in range(hops):
        if not len(edge):
            break
        further = unique_ids(store.read(edge, levels=False).neighbors)
        seen = set(known.tolist())
        edge = as_ids([name for name in further.tolist() if name not in seen], kind)
        known = unique_ids(known, edge)
    return known
