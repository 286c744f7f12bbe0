"""A connected store, as a search sees it: both searches and filters run in the engine, expansion here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators import Aggregator
from gqe.errors import InputError
from gqe.filters import parse_filter
from gqe.index.items import check_ids
from gqe.neighbors import NeighborGraph, knn
from gqe.neighbors.candidates import Candidates
from gqe.neighbors.rescoring import SPARE
from gqe.query_options import QueryOptions
from gqe.results import SearchResult, remove_excluded
from gqe.source import LevelSource
from gqe.stores.attachment import Attachment
from gqe.stores.base import INT, Array, Store, as_ids, is_present, no_ids, unique_ids, unit_rows
from gqe.stores.partial import PartialSource, closure
from gqe.targets import SearchTarget, WholeDatabase


class StoreTarget(SearchTarget):
    """A store with what is attached to it, or with an expander of a single level. Keys are ids.

    Args:
        store: the engine.
        attachment: the expander and the statistics.
        device: where aggregators run.
        attached: whether the store holds lists and levels of the attachment.
    """

    def __init__(
        self, store: Store, attachment: Attachment, device: torch.device, *, attached: bool = True
    ) -> None:
        super().__init__()
        self.store = store
        self.attachment = attachment
        self.dim, self.device = store.dimension, device
        self.no_key = -1 if store.id_kind == INT else None
        self._attached = attached

    @property
    def stack(self) -> list[Aggregator]:
        """See `SearchTarget`."""
        return self.attachment.expander.stack

    @property
    def options(self) -> QueryOptions:
        """See `SearchTarget`."""
        return self.attachment.expander.query_options

    def resolve_exclude(self, ids: Any, count: int) -> Array:
        """See `SearchTarget`."""
        values = list(ids)
        if len(values) != count:
            raise InputError(
                f"exclude: {len(values)} ids for {count} queries; give one for each, None for nothing"
            )
        keys = no_ids((count,), self.store.id_kind)
        for place, value in enumerate(values):
            if value is not None and value != -1:
                keys[place] = check_ids([value], 1, self.store.id_kind, "exclude")[0]
        return keys

    def resolve_filter(self, filter: Any) -> Any:
        """See `SearchTarget`."""
        return parse_filter(filter)

    def metadata_of(self, keys: list[Any]) -> list[dict[str, Any] | None]:
        """See `SearchTarget`."""
        known = self.store.fields(as_ids(keys, self.store.id_kind)) if keys else {}
        return [known.get(key) for key in keys]

    def resolve_dba(self, dba: bool | None) -> bool:
        """See `SearchTarget`."""
        if dba:
            raise InputError(
                "dba: a store holds no augmented database; build an Index with dba=True or by gqe index build"
                " --dba"
            )
        return False

    def neighbors(
        self, queries: Tensor, k: int, exclude: Array | None, exact: bool | None, *, lists: bool = False
    ) -> tuple[LevelSource, NeighborGraph | Candidates]:
        """See `SearchTarget`."""
        # A few more than are read, to be scored here.
        count = k + SPARE + int(exclude is not None)
        found = self.store.search(queries.cpu().float().numpy(), count, exact=bool(exact))
        candidates = remove_excluded(found, exclude, count).ids
        graph_k, depth = self.attachment.graph_k, self.attachment.depth
        read, beyond = unique_ids(candidates), None
        if k > graph_k:
            read, beyond = (unique_ids(part) for part in np.split(candidates, [graph_k + SPARE], axis=1))
        if lists:
            hops = max(1, depth - 1) if self._attached else 0
            read = closure(self.store, read, hops, self.store.id_kind)
        source = PartialSource(
            self.store,
            self.attachment,
            read,
            self.device,
            levels=depth - 1,
            lists=lists and self._attached,
            beyond=beyond,
        )
        return source, source.nearest(queries, candidates, k)

    def nearest(
        self, queries: Tensor, k: int, exclude: Array | None, allowed: Any, exact: bool | None, dba: bool
    ) -> SearchResult:
        """See `SearchTarget`."""
        count = k + int(exclude is not None)
        found = self.store.search(queries.cpu().numpy(), count, filter=allowed or (), exact=bool(exact))
        return remove_excluded(found, exclude, k)

    def keys_of(self, source: LevelSource, rows: Array) -> Array:
        """See `SearchTarget`."""
        assert isinstance(source, PartialSource)
        return source.ids[rows]

    def with_tensor_ids(self) -> bool:
        """See `SearchTarget`."""
        return self.store.id_kind == INT

    def whole_database(self, k: int, dba: bool) -> WholeDatabase:
        """See `SearchTarget`; reads all vectors into memory."""
        batches = list(self.store.iterate())
        if not batches:
            raise InputError("reorders results, and the store is empty; add items first")
        keys = np.concatenate([batch.ids for batch in batches])
        database = torch.from_numpy(np.concatenate([unit_rows(self.store, batch) for batch in batches]))
        return WholeDatabase(database, knn(database, max(1, min(k, len(keys) - 1)), device=self.device), keys)

    def is_allowed(self, keys: Array, allowed: Any, found: Array) -> Array:
        """See `SearchTarget`: with a filter, only what the engine has found is known to pass it."""
        there = is_present(keys)
        if not allowed:
            return there
        passed = [set(row.tolist()) for row in found]
        marks = [[key in some for key in row.tolist()] for row, some in zip(keys, passed, strict=True)]
        return np.asarray(there & np.array(marks, dtype=bool).reshape(there.shape))
