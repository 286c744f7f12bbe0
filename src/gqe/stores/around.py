"""The part of a database that some queries read, fetched from a store and numbered from 0.

A query with K neighbours reads K vectors, their levels and how near their own neighbours are. That is all an
expansion needs of the database: L aggregator calls run here on a few rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gqe.aggregators.base import Aggregation
from gqe.embeddings import blocks
from gqe.hierarchy import Hierarchy
from gqe.neighbors import NeighborGraph
from gqe.neighbors.rescoring import cosines
from gqe.stores.attachment import Attachment
from gqe.stores.base import (
    Found,
    Records,
    Store,
    Unreachable,
    as_ids,
    no_ids,
    no_records,
    present,
    unit_rows,
)

Array = np.ndarray[Any, Any]


class Around(Hierarchy):
    """Algorithm 2 over some items of a store.

    An item without a record (added since the last sync) takes part with its own embedding on all levels.

    Args:
        store: where they are.
        attachment: what was attached there.
        ids: (u,) different items; those that are not there are missing.
        device: where aggregators run.
        levels: fetch levels, too, up to this one.
        whole_lists: also number the neighbours in the items' lists, for `weights`.
        beyond: (v,) further items of which the vectors alone are fetched: the surroundings of queries.
    """

    def __init__(
        self,
        store: Store,
        attachment: Attachment,
        ids: Array,
        device: torch.device,
        *,
        levels: int,
        whole_lists: bool = False,
        beyond: Array | None = None,
    ) -> None:
        found = store.fetch(ids if beyond is None else different(ids, beyond))
        vectors = unit_rows(store, found)
        self.ids = found.ids
        self._numbers = {name: place for place, name in enumerate(found.ids.tolist())}
        # Where only vectors are listened to there need not be any records.
        wanted = found.ids if levels or whole_lists or attachment.needs_context else found.ids[:0]
        if beyond is not None:
            wanted = wanted[np.isin(wanted, ids)]
        records = store.read(wanted, levels=levels > 0) if len(wanted) else no_records(store)
        if len(records.ids) and records.levels.shape[1] < levels:
            raise Unreachable(
                f"{store.address}: something else was attached since this connection was opened; open it anew"
            )
        places = self.numbers(records.ids)
        lists = np.full((len(vectors), attachment.width), -np.inf, dtype=np.float32)
        if len(places):
            lists[places] = records.similarities
        table = torch.from_numpy(vectors)
        expander = attachment.expander
        super().__init__(expander.stack, table, None, device=device, contrast=expander.contrast)
        for i in range(1, levels + 1):
            level = vectors.copy()
            if len(places):
                made = records.levels[:, i - 1].any(axis=1)
                level[places[made]] = records.levels[made, i - 1]
            self._levels.append(torch.from_numpy(level))
        near = np.full(lists.shape, -1, dtype=np.int64)
        if whole_lists and len(places):
            near[places] = self.numbers(records.neighbors)
        self._graph = NeighborGraph(near, lists)
        self._backgrounds = [torch.tensor(pair, dtype=torch.float32) for pair in attachment.backgrounds]
        if attachment.landscape:
            self._landscape = torch.tensor(attachment.landscape, dtype=torch.float32)

    def numbers(self, ids: Array) -> Array:
        """Numbers of ids of any shape, -1 for what is not there."""
        flat = [self._numbers.get(name, -1) for name in ids.reshape(-1).tolist()]
        return np.array(flat, dtype=np.int64).reshape(ids.shape)

    def aggregated(self, i: int, nodes: Array, originals: Array, neighbors: NeighborGraph) -> Array:
        """(p, d) level i >= 1 of nodes, from their level below (p, d) and their embeddings (p, d)."""
        if not len(self.ids) or not len(nodes):
            return nodes
        parts: list[Aggregation] = list(
            self._aggregate(i - 1, torch.from_numpy(nodes), torch.from_numpy(originals), neighbors)
        )
        return torch.cat([part.embeddings for part in parts]).cpu().numpy()


def different(*ids: Array) -> Array:
    """Every id of some arrays once, without the missing ones."""
    flat = np.concatenate([part[present(part)].reshape(-1) for part in ids])
    if flat.dtype != object:
        return np.unique(flat)
    return as_ids(sorted(set(flat.tolist())), "text")


def next_level(
    store: Store, attachment: Attachment, records: Records, i: int, device: torch.device
) -> Records:
    """The same records with level i, computed from the level below."""
    result = []
    width = attachment.graph_k
    # So many neighbours are fetched that they take about as much room as a batch of items.
    for part in blocks(len(records.ids), width, max(width, 8 * store.batch)):
        some = records.at(part)
        around = Around(
            store, attachment, different(some.neighbors[:, :width], some.ids), device, levels=i - 1
        )
        own = around.numbers(some.ids)
        some, own = some.at(own >= 0), own[own >= 0]  # deleted since: the next sync removes the record
        near = around.numbers(some.neighbors[:, :width])
        gone = near < 0
        order = np.argsort(gone, axis=1, kind="stable")
        sims = np.where(gone, -np.inf, some.similarities[:, :width]).astype(np.float32)
        graph = NeighborGraph(np.take_along_axis(near, order, 1), np.take_along_axis(sims, order, 1))
        originals = around.database.numpy()[own]
        below = around.level(i - 1).numpy()[own]
        levels = some.levels.copy()
        levels[:, i - 1] = around.aggregated(i, below, originals, graph)
        result.append(some._replace(levels=levels, valid=np.full(len(some.ids), i)))
    return Records(*(np.concatenate(parts) for parts in zip(*result, strict=True)))


def closure(store: Store, ids: Array, hops: int, kind: str) -> Array:
    """These items, the neighbours in their lists, those of these, and so on."""
    known, edge = ids, ids
    for _ in range(hops):
        if not len(edge):
            break
        further = different(store.read(edge, levels=False).neighbors)
        seen = set(known.tolist())
        edge = as_ids([name for name in further.tolist() if name not in seen], kind)
        known = different(known, edge)
    return known


def without(found: Found, omit: Array | None, k: int, kind: str) -> Found:
    """Results (m, k) without the omitted ids (m,)."""
    if omit is None:
        return found
    gone = (found.ids == omit[:, None]) & present(omit)[:, None]
    order = np.argsort(gone, axis=1, kind="stable")[:, :k]
    ids = np.where(gone, no_ids((1,), kind), found.ids)
    scores = np.where(gone, -np.inf, found.scores).astype(np.float32)
    return Found(np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1))


def nearest_of(around: Around, asked: torch.Tensor, candidates: Array, k: int) -> NeighborGraph:
    """The nearest k of the candidates (m, c), scored from the vectors; numbers follow the order of ids."""
    if not len(around.ids):
        nobody = np.full((len(asked), k), -1, dtype=np.int64)
        return NeighborGraph(nobody, np.full(nobody.shape, -np.inf, dtype=np.float32))
    numbers = torch.sort(torch.from_numpy(around.numbers(candidates)), dim=1).values
    scores = cosines(asked.cpu(), around.database, numbers).masked_fill(numbers < 0, float("-inf"))
    scores, order = torch.sort(scores, dim=1, descending=True, stable=True)
    ids = numbers.gather(1, order).masked_fill(torch.isinf(scores), -1)
    short = max(0, k - ids.shape[1])
    ids = torch.nn.functional.pad(ids[:, :k], (0, short), value=-1)
    scores = torch.nn.functional.pad(scores[:, :k], (0, short), value=float("-inf"))
    return NeighborGraph(ids.numpy(), scores.numpy())
