"""`gqe.connect`: expanded search in a vector database, seen like an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

from gqe.aggregators.base import MOST, positive_int
from gqe.embeddings import as_table, like
from gqe.errors import InputError
from gqe.hierarchy import Asked
from gqe.index.items import checked_ids
from gqe.index.searching import Explanation
from gqe.models import Expander, SearchResult
from gqe.models import expander as expander_by_name
from gqe.neighbors.rescoring import SPARE
from gqe.neighbors.search import checked_k
from gqe.stores.around import Around, closure, different, nearest_of, without
from gqe.stores.attaching import Progress, Work, attach
from gqe.stores.attachment import Attachment, unattached
from gqe.stores.base import INT, Array, Store, no_ids
from gqe.stores.claims import claimed
from gqe.stores.embedded import EmbeddedStore
from gqe.stores.filters import conditions
from gqe.stores.syncing import Synced, stale, sync


class Connection:
    """A vector database with levels attached, made by `gqe.connect`.

    Both searches and filters run in the engine, L aggregator calls a query here. It sees the attachment that
    was there when it was opened; `reopen` looks again.

    Args:
        store: the engine.
        device: where aggregators run.
    """

    def __init__(self, store: Store, device: torch.device) -> None:
        self.store = store
        self.device = device
        self._attachment: Attachment | None = None
        self._looked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.store.count()

    def __repr__(self) -> str:
        return f"<Connection {self.address}: dimension {self.dimension}>"

    @property
    def address(self) -> str:
        """Where it is, without secrets."""
        return self.store.address

    @property
    def dimension(self) -> int:
        """Of the vectors."""
        return self.store.dimension

    @property
    def id_kind(self) -> str:
        """What items are named by: "int" or "text"."""
        return self.store.id_kind

    @property
    def expander(self) -> Expander:
        """The expander that is attached."""
        return self._attached().expander

    def close(self) -> None:
        """Give the connection back."""
        self.store.close()

    def reopen(self) -> None:
        """See what is attached now."""
        self._looked = False

    def search(
        self,
        queries: Any,
        k: int,
        *,
        expand: bool = True,
        exclude: Any = None,
        filter: Mapping[str, Any] | None = None,
        exact: bool = False,
        expander: Expander | None = None,
    ) -> SearchResult:
        """First search in the engine, expansion here, second search in the engine.

        Args:
            queries: (m, d) embeddings, or one (d,).
            k: how many results; at most a million, or as many as there are items.
            expand: False for a plain search with the queries as they are.
            exclude: one id for each query that it must neither listen to nor find; None among them excludes
                nothing.
            filter: which items may be found: {field: value, list of values, or {"gte": ..., "lt": ...}}.
                Expansion listens to all.
            exact: compare with every item instead of using the engine's index.
            expander: another one than the attached one, of a single level such as `gqe.expander("alpha")`.

        Returns:
            (scores, ids): (m, k) each, or (k,) for one query, best first. Where there are fewer than k items,
            scores are -inf and ids -1 (None for texts).
        """
        asked, single = self._checked(queries)
        count = positive_int("k", k)
        if count > MOST:  # only then: some engines take long to count
            checked_k(count, len(self))
        omit = self._omitted(exclude, len(asked), single)
        wanted = conditions(filter)
        if expand:
            asked = self._expanded(asked, omit, exact, expander)
        found = self.store.search(
            asked.cpu().numpy(), count + int(omit is not None), filter=wanted, exact=exact
        )
        found = without(found, omit, count, self.id_kind)
        scores = like(torch.from_numpy(found.scores), queries)
        ids: Any = found.ids
        if isinstance(queries, torch.Tensor) and self.id_kind == INT:
            ids = torch.from_numpy(ids).to(queries.device)
        return SearchResult(scores[0], ids[0]) if single else SearchResult(scores, ids)

    def expand(self, queries: Any, *, exclude: Any = None, exact: bool = False) -> Any:
        """Expanded queries (m, d), or one (d,). See `search` for the arguments."""
        asked, single = self._checked(queries)
        expanded = like(self._expanded(asked, self._omitted(exclude, len(asked), single), exact), queries)
        return expanded[0] if single else expanded

    def explain(
        self, queries: Any, *, top: int = 10, exclude: Any = None, exact: bool = False
    ) -> Explanation:
        """The items with the largest weights in each expanded query, through all levels.

        Args:
            queries: (m, d) embeddings.
            top: how many items to name, at most a million.
            exclude: see `search`.
            exact: see `search`.
        """
        _, single = self._checked(queries)
        top = positive_int("top", top, most=MOST)
        around, asked, near, _ = self.asked(queries, exclude=exclude, exact=exact)
        assert isinstance(around, Around)
        ids, heaviest = no_ids((len(asked), top), self.id_kind), np.zeros((len(asked), top), dtype=np.float32)
        own = np.ones(len(asked), dtype=np.float32)
        if len(around.ids):
            weights = around.weights(asked, near)
            own, ends = weights.own, weights.items.indptr
            for i in range(len(asked)):
                data = weights.items.data[ends[i] : ends[i + 1]]
                order = np.argsort(-np.abs(data), kind="stable")[:top]
                ids[i, : len(order)] = around.ids[weights.items.indices[ends[i] : ends[i + 1]][order]]
                heaviest[i, : len(order)] = data[order]
        return Explanation(own[0], ids[0], heaviest[0]) if single else Explanation(own, ids, heaviest)

    def asked(
        self, queries: Any, *, exclude: Any = None, exact: bool = False, expander: Expander | None = None
    ) -> Asked:
        """Queries (m, d) with their neighbours and the levels above them, for a look at each level's weights.

        The database of its hierarchy holds the items around the queries only. See `search` for the arguments.
        """
        asked, single = self._checked(queries)
        attachment = self._attachment_of(expander)
        near = self._candidates(asked, self._omitted(exclude, len(asked), single), exact, attachment)
        attached = expander is None
        hops = max(1, attachment.depth - 1) if attached else 0
        listened, beyond = self._parted(near, attachment)
        known = closure(self.store, listened, hops, self.id_kind)
        levels = attachment.depth - 1
        around = Around(
            self.store, attachment, known, self.device, levels=levels, whole_lists=attached, beyond=beyond
        )
        nearest = nearest_of(around, asked, near, attachment.query_k)
        return Asked(around, asked, nearest, lambda rows: around.ids[rows])

    def fetch(self, ids: Any) -> Array:
        """Vectors (p, d) of items, all of which must be there."""
        names = checked_ids(ids, None, self.id_kind)
        found = self.store.fetch(names)
        self._refuse_missing(names, found.ids)
        return found.vectors

    def upsert(self, vectors: Any, ids: Any, *, fields: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Write items, new ones or in the place of those with the same ids; `sync` brings levels up to date.

        Args:
            vectors: (m, d) embeddings.
            ids: (m,) whole numbers or texts, as the store has them.
            fields: values to filter by, one for each vector.
        """
        names, table = self._checked_items(vectors, ids, fields)
        if len(table):
            self.store.upsert(names, table, fields)

    def add(self, vectors: Any, ids: Any, *, fields: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Write new items, none of which may be there, whoever else adds at the same time; see `upsert`."""
        names, table = self._checked_items(vectors, ids, fields)
        if len(table):
            self.store.insert(names, table, fields)

    def remove(self, ids: Any) -> None:
        """Remove items, all of which must be there; `sync` brings levels up to date."""
        names = checked_ids(ids, None, self.id_kind)
        self._refuse_missing(names, self.store.existing(names))
        self._refuse_missing(names, self.store.delete(names))

    def attach(
        self,
        expander: Expander | str = "universal",
        *,
        exact: bool = False,
        anew: bool = False,
        progress: Progress = None,
    ) -> None:
        """Write neighbour lists and levels beside the vectors; the same call goes on where one was stopped.

        Args:
            expander: an Expander or its name.
            exact: find neighbours exactly instead of by the engine's index.
            anew: start from nothing, whatever is attached.
            progress: called with items done, items in all, and what is being done.
        """
        chosen = expander_by_name(expander) if isinstance(expander, str) else expander
        if not isinstance(chosen, Expander):
            raise InputError(f"expander: expected an Expander or its name, got {type(expander).__name__}")
        self._looked = False
        attach(self.store, chosen, exact=exact, anew=anew, device=self.device, progress=progress)

    def sync(self, *, progress: Progress = None) -> Synced:
        """Find what was added, changed or deleted since, and compute what that made stale."""
        self._attached(unfinished=True)  # refuses where nothing is attached
        self._looked = False
        if isinstance(self.store, EmbeddedStore):  # an index knows itself what is stale
            return Synced(0, 0, 0, self.store.refresh(progress))
        with claimed(self.store) as claim:
            work = Work(self.store, self._attached(unfinished=True), self.device, progress, claim)
            self._looked = False
            return sync(work)

    def stats(self) -> dict[str, Any]:
        """Numbers about the store and what is attached, ready for JSON.

        `stale` counts records with levels out of date, `unsynced` the items that came, changed or went since
        the last sync: None where only a sync, which compares every vector, can tell.
        """
        self._looked = False
        about = {"store": self.address, "items": len(self), "dimension": self.dimension, "ids": self.id_kind}
        attachment = self._attachment_now()
        if attachment is None:
            return about | {"attached": None}
        expander = attachment.expander
        return about | {
            "attached": expander.name,
            "k": max(level.k for level in expander.stack),
            "levels": attachment.depth,
            "neighbors_stored": attachment.width,
            "exact": attachment.exact,
            "stage": attachment.stage,
            "stale": self._stale(attachment),
            "unsynced": self.store.unsynced(),
        }

    def _stale(self, attachment: Attachment) -> int:
        if isinstance(self.store, EmbeddedStore):
            return self.store.stale_rows()
        return stale(self.store, attachment)

    def _checked_items(
        self, vectors: Any, ids: Any, fields: Mapping[str, Sequence[Any]] | None
    ) -> tuple[Array, Array]:
        table = as_table(vectors, "vectors", dim=self.dimension)
        names = checked_ids(ids, len(table), self.id_kind)
        for field, values in (fields or {}).items():
            if len(values) != len(table):
                raise InputError(
                    f"fields: {len(values)} values of {field!r} for {len(table)} vectors; give one each"
                )
        return names, table.cpu().to(torch.float32).numpy()

    def _refuse_missing(self, ids: Array, there: Array) -> None:
        missing = sorted(set(ids.tolist()) - set(there.tolist()))
        if missing:
            raise InputError(f"ids: no item {missing[0]!r} in {self.address}; check the ids")

    def _attachment_now(self) -> Attachment | None:
        if not self._looked:
            self._attachment, self._looked = self.store.attachment(), True
        return self._attachment

    def _attached(self, *, unfinished: bool = False) -> Attachment:
        attachment = self._attachment_now()
        if attachment is None:
            raise InputError(f"{self.address}: nothing is attached yet; run gqe store attach")
        if not unfinished and not attachment.complete:
            raise InputError(f"{self.address}: the attachment is not finished; run gqe store attach again")
        if attachment.dimension != self.dimension:
            raise InputError(
                f"{self.address}: levels of dimension {attachment.dimension} are attached to vectors of"
                f" {self.dimension}; attach again with --anew"
            )
        return attachment

    def _attachment_of(self, expander: Expander | None) -> Attachment:
        return self._attached() if expander is None else unattached(expander, self.dimension)

    def _expanded(
        self, asked: torch.Tensor, omit: Array | None, exact: bool, expander: Expander | None = None
    ) -> torch.Tensor:
        attachment = self._attachment_of(expander)
        near = self._candidates(asked, omit, exact, attachment)
        listened, beyond = self._parted(near, attachment)
        levels = attachment.depth - 1
        around = Around(self.store, attachment, listened, self.device, levels=levels, beyond=beyond)
        if not len(around.ids):
            return asked
        return around.expand(asked, nearest_of(around, asked, near, attachment.query_k))

    def _parted(self, near: Array, attachment: Attachment) -> tuple[Array, Array | None]:
        """The items that queries may listen to, and those that are only told apart from them."""
        listened = attachment.graph_k + SPARE
        if attachment.query_k == attachment.graph_k:
            return different(near), None
        return different(near[:, :listened]), different(near[:, listened:])

    def _candidates(
        self, asked: torch.Tensor, omit: Array | None, exact: bool, attachment: Attachment
    ) -> Array:
        """(m, c) ids that queries may read, nearest first: a few more than they do, to be scored here."""
        count = attachment.query_k + SPARE + int(omit is not None)
        found = self.store.search(asked.cpu().numpy(), count, exact=exact)
        return without(found, omit, count, self.id_kind).ids

    def _checked(self, queries: Any) -> tuple[torch.Tensor, bool]:
        single = np.ndim(queries) == 1 if not isinstance(queries, torch.Tensor) else queries.ndim == 1
        if single:
            queries = queries[None] if isinstance(queries, torch.Tensor) else np.asarray(queries)[None]
        return as_table(queries, "queries", dim=self.dimension).to(torch.float32), single

    def _omitted(self, exclude: Any, count: int, single: bool) -> Array | None:
        if exclude is None:
            return None
        given = [exclude] if single and (isinstance(exclude, str) or np.ndim(exclude) == 0) else list(exclude)
        if len(given) != count:
            raise InputError(
                f"exclude: {len(given)} ids for {count} queries; give one for each, None for nothing"
            )
        omit = no_ids((count,), self.id_kind)
        for place, name in enumerate(given):
            if name is not None and name != -1:
                omit[place] = checked_ids([name], 1, self.id_kind, "exclude")[0]
        return omit
