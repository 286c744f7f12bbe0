"""`gqe.connect`: expanded search in a vector database, seen like an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch

from gqe.embeddings import as_table
from gqe.errors import InputError
from gqe.index.items import check_ids
from gqe.models import Expander
from gqe.models import expander as expander_by_name
from gqe.progress import Progress, reporting
from gqe.results import SearchResult
from gqe.retrieval import Explanation, QueryContext, Searchable
from gqe.stores.attaching import AttachJob, attach
from gqe.stores.attachment import Attachment, is_same_stack, reads_levels, single_level_attachment
from gqe.stores.base import Array, Store, as_ids
from gqe.stores.embedded import EmbeddedStore
from gqe.stores.leases import hold_lease
from gqe.stores.syncing import SyncResult, stale, sync
from gqe.stores.target import StoreTarget
from gqe.targets import BoundReranker


class Connection(Searchable):
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
        self._target: StoreTarget | None = None
        self._rerankers: dict[tuple[str, bool], BoundReranker] = {}

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
        return self._require_attachment().expander

    def close(self) -> None:
        """Give the connection back."""
        self.store.close()

    def reopen(self) -> None:
        """See what is there and attached now."""
        self._looked = False
        self._rerankers.clear()

    def search(
        self,
        queries: Any,
        k: int,
        *,
        expand: bool = True,
        exclude: Any = None,
        filter: Mapping[str, Any] | None = None,
        exact: bool | None = None,
        rounds: int | None = None,
        rerank: str | None = None,
        dba: bool | None = None,
        with_metadata: bool = False,
        expander: Expander | str | None = None,
    ) -> SearchResult:
        """First search in the engine, expansion here, second search in the engine, and re-ranking if named.

        Args:
            queries: (m, d) embeddings, or one (d,).
            k: see `Searchable.search`, as for the other arguments.
            expand: False needs nothing attached.
            exclude: one id for each query.
            filter: by fields.
            exact: without the engine's index.
            rounds: None as attached.
            rerank: finds the neighbours of all items, once.
            dba: refused if True.
            with_metadata: the fields of each result: payloads, columns.
            expander: the attached one with other options of queries, such as "universal:rounds=2", or another
                one of a single level such as "alpha:k=8".
        """
        return self._with_expander(expander if expand else "none").search(
            queries,
            k,
            expand=expand,
            exclude=exclude,
            filter=filter,
            exact=exact,
            rounds=rounds,
            rerank=rerank,
            dba=dba,
            with_metadata=with_metadata,
        )

    def expand(
        self,
        queries: Any,
        *,
        exclude: Any = None,
        exact: bool | None = None,
        rounds: int | None = None,
        expander: Expander | str | None = None,
    ) -> Any:
        """Expanded queries (m, d), or one (d,). See `search` for the arguments."""
        return self._with_expander(expander).expand(queries, exclude=exclude, exact=exact, rounds=rounds)

    def explain(
        self,
        queries: Any,
        *,
        top: int = 10,
        exclude: Any = None,
        exact: bool | None = None,
        rounds: int | None = None,
        expander: Expander | str | None = None,
    ) -> Explanation:
        """The `top` items with the largest weights in each expanded query. See `search` for the arguments."""
        return self._with_expander(expander).explain(
            queries, top=top, exclude=exclude, exact=exact, rounds=rounds
        )

    def context(
        self,
        queries: Any,
        *,
        exclude: Any = None,
        exact: bool | None = None,
        expander: Expander | str | None = None,
    ) -> QueryContext:
        """Queries with their neighbours and levels, of the items around the queries only."""
        return self._with_expander(expander).context(queries, exclude=exclude, exact=exact)

    def fetch(self, ids: Any) -> Array:
        """Vectors (p, d) of items, all of which must be there."""
        names = check_ids(ids, None, self.id_kind)
        found = self.store.fetch(names)
        self._refuse_missing(names, found.ids)
        return found.vectors

    def get(self, ids: Any) -> list[dict[str, Any]]:
        """The fields of items, all of which must be there: one dictionary (payload, columns) for each."""
        names = check_ids(ids, None, self.id_kind)
        known = self.store.fields(names)
        self._refuse_missing(names, as_ids(list(known), self.id_kind))
        return [known[name] for name in names.tolist()]

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
            self._rerankers.clear()

    def add(self, vectors: Any, ids: Any, *, fields: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Write new items, none of which may be there, whoever else adds at the same time; see `upsert`."""
        names, table = self._checked_items(vectors, ids, fields)
        if len(table):
            self.store.insert(names, table, fields)
            self._rerankers.clear()

    def remove(self, ids: Any) -> None:
        """Remove items, all of which must be there; `sync` brings levels up to date."""
        names = check_ids(ids, None, self.id_kind)
        self._refuse_missing(names, self.store.existing_ids(names))
        self._refuse_missing(names, self.store.delete(names))
        self._rerankers.clear()

    def attach(
        self,
        expander: Expander | str = "universal",
        *,
        exact: bool = False,
        anew: bool = False,
        progress: Progress = False,
    ) -> None:
        """Write neighbour lists and levels beside the vectors; the same call goes on where one was stopped.

        Args:
            expander: an Expander or its name.
            exact: find neighbours exactly instead of by the engine's index.
            anew: start from nothing, whatever is attached.
            progress: True shows a bar on a terminal and a line every ten seconds elsewhere; or a function
                that is called with items done, items in all, and what is being done.
        """
        chosen = expander_by_name(expander) if isinstance(expander, str) else expander
        if not isinstance(chosen, Expander):
            raise InputError(f"expander: expected an Expander or its name, got {type(expander).__name__}")
        self._looked = False
        with reporting(progress, "store") as report:
            attach(self.store, chosen, exact=exact, anew=anew, device=self.device, progress=report)

    def sync(self, *, progress: Progress = False) -> SyncResult:
        """Find what was added, changed or deleted since, and compute what that made stale."""
        self._require_attachment(unfinished=True)  # refuses where nothing is attached
        self._looked = False
        if isinstance(self.store, EmbeddedStore):  # an index knows itself what is stale
            return SyncResult(0, 0, 0, self.store.refresh(progress))
        with reporting(progress, "store") as report, hold_lease(self.store) as lease:
            work = AttachJob(
                self.store, self._require_attachment(unfinished=True), self.device, report, lease
            )
            self._looked = False
            return sync(work)

    def stats(self) -> dict[str, Any]:
        """Numbers about the store and what is attached, ready for JSON.

        `stale` counts records with levels out of date, `unsynced` the items that came, changed or went since
        the last sync: None where only a sync, which compares every vector, can tell.
        """
        self._looked = False
        about = {"store": self.address, "items": len(self), "dimension": self.dimension, "ids": self.id_kind}
        attachment = self._current_attachment()
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
            "unsynced": self.store.count_unsynced(),
        }

    def _stale(self, attachment: Attachment) -> int:
        if isinstance(self.store, EmbeddedStore):
            return self.store.stale_rows()
        return stale(self.store, attachment)

    def _checked_items(
        self, vectors: Any, ids: Any, fields: Mapping[str, Sequence[Any]] | None
    ) -> tuple[Array, Array]:
        table = as_table(vectors, "vectors", dim=self.dimension)
        names = check_ids(ids, len(table), self.id_kind)
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

    def _current_attachment(self) -> Attachment | None:
        if not self._looked:
            self._attachment, self._looked = self.store.attachment(), True
        return self._attachment

    def _require_attachment(self, *, unfinished: bool = False) -> Attachment:
        attachment = self._current_attachment()
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

    @property
    def target(self) -> StoreTarget:
        """The store with what is attached, as a search sees it."""
        attachment = self._require_attachment()
        if self._target is None or self._target.attachment is not attachment:
            self._target = StoreTarget(self.store, attachment, self.device)
            self._target.rerankers = self._rerankers
        return self._target

    def _with_expander(self, expander: Expander | str | None) -> Searchable:
        """The store with what is attached, with other options of it, or with another expander."""
        if expander is None:
            return _BoundStore(self.target)
        chosen = expander_by_name(expander) if isinstance(expander, str) else expander
        own = self._current_attachment() if reads_levels(chosen) else None
        if own is not None and is_same_stack(chosen, own.expander):
            target = StoreTarget(self.store, self._require_attachment().replace(expander=chosen), self.device)
        else:
            target = StoreTarget(
                self.store, single_level_attachment(chosen, self.dimension), self.device, attached=False
            )
        target.reranking, target.rerankers = chosen.reranking, self._rerankers
        return _BoundStore(target)


class _BoundStore(Searchable):
    """A store with an expander."""

    def __init__(self, target: StoreTarget) -> None:
        self._target = target

    @property
    def target(self) -> StoreTarget:
        """See `Searchable`."""
        return self._target
