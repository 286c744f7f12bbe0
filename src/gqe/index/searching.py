"""Searching one version of an index."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gqe.aggregators.base import positive_int
from gqe.embeddings import as_table, like
from gqe.errors import DamagedError, InputError, StorageError
from gqe.hierarchy import Asked
from gqe.index.approximate import Approximate, read_approximate
from gqe.index.chains import Chains, open_chains
from gqe.index.files import explained
from gqe.index.finding import find, located
from gqe.index.items import INT
from gqe.index.metadata import Filter, allowed_by
from gqe.index.place import Place
from gqe.index.reordering import Reordering, named
from gqe.index.replay import Replay
from gqe.index.sharded import ShardedApproximate
from gqe.index.snapshot import Snapshot
from gqe.index.steps import AUGMENTER, EXPANDER
from gqe.model_files import Model, load_model
from gqe.models import Expander, SearchResult
from gqe.neighbors import NeighborGraph
from gqe.neighbors.candidates import Candidates, Engine
from gqe.transfer import to_device

Array = np.ndarray[Any, Any]
# More results than this are given only where there are so many items: their places take memory in any case.
MOST_RESULTS = 1_000_000


class Explanation(NamedTuple):
    """Who gave how much to expanded queries, heaviest first.

    Attributes:
        own: (m,) weight of the query itself: 1, or 0 where it plays no part.
        ids: (m, top) items; -1 or None where fewer have a weight.
        weights: (m, top) their weights, 0 where missing.
    """

    own: Array
    ids: Array
    weights: Array


class Searcher:
    """First search, expansion, second search in an opened version.

    Args:
        snapshot: the version.
        device: where to compute.
        loaded: the expander, if it has been loaded before.
    """

    def __init__(self, snapshot: Snapshot, device: torch.device, loaded: Expander | None = None) -> None:
        self.snapshot = snapshot
        self.device = device
        self.loaded = loaded
        self._reorderings: dict[str, Reordering] = {}

    @property
    def expander(self) -> Expander:
        """The expander the index was built with, loaded when first needed."""
        if self.loaded is None:
            folder = self.snapshot.folder
            with explained(folder, "read"):
                model = _model(folder / EXPANDER)
                other = _model(folder / AUGMENTER).stack if (folder / AUGMENTER).is_dir() else None
            self.loaded = Expander(model.stack, model.name, database_stack=other, contrast=model.contrast)
        return self.loaded

    def chains_of(self, snapshot: Snapshot) -> Chains:
        """The levels of any version of this index."""
        return open_chains(snapshot, self.expander, Place(self.device))

    def search(
        self,
        queries: Any,
        k: int,
        expand: bool,
        exclude: Any,
        chosen: Filter | None,
        exact: bool | None,
        rerank: str | None,
    ) -> SearchResult:
        """See `Index.search`."""
        snapshot = self.snapshot
        asked, count, omit, allowed = self._prepared(queries, k, expand, exclude, chosen, exact)
        if not count:
            return self._answer(queries, k, *nothing_found(len(asked)))
        if allowed is None and not snapshot.all_alive:
            allowed = snapshot.alive
        chains, engine = self.chains, None
        if chains.database is not None:
            table = chains.database.table(chains.database.depth)
        else:
            table, engine = chains.query.table(0), self._engine(exact, allowed)
        then = None if rerank is None else self._reordering(rerank)
        # One more than wanted, in the place of an omitted item that a re-ranker may bring in.
        wanted = count if then is None else min(max(count, then.num_candidates) + 1, len(table))
        found = find(table, asked, wanted, device=self.device, allowed=allowed, omit=omit, engine=engine)
        if then is not None:
            found = then(asked, found, count, allowed, omit)
        return self._answer(queries, k, torch.from_numpy(found.similarities), found.ids)

    def _prepared(
        self, queries: Any, k: int, expand: bool, exclude: Any, chosen: Filter | None, exact: bool | None
    ) -> tuple[Tensor, int, Tensor | None, Array | None]:
        """What is searched with, how many results there can be, what to omit, and what a filter allows."""
        asked, single = self._checked(queries)
        count, items = positive_int("k", k), self.snapshot.manifest.items
        if count > max(items, MOST_RESULTS):
            raise InputError(f"k: {count} results asked for, at most {max(items, MOST_RESULTS)} are given")
        omit = self._omitted(exclude, len(asked), single)
        allowed = None if chosen is None else self.snapshot.alive & self._filtered(chosen)
        expanded = self._expanded(asked, omit, exact) if expand and items else asked
        return expanded, min(count, items), omit, allowed

    def _answer(self, queries: Any, k: int, similarities: Tensor, rows: Any) -> SearchResult:
        """Scores and the users' ids in k columns, in the form in which the queries came."""
        found, missing = np.asarray(rows, dtype=np.int64), (0, k - similarities.shape[1])
        if missing[1]:
            similarities = functional.pad(similarities, missing, value=-torch.inf)
            found = np.pad(found, [(0, 0), missing], constant_values=-1)
        scores: Any = like(similarities, queries)
        ids: Any = self.snapshot.ids.take(found)
        if isinstance(queries, Tensor) and self.snapshot.manifest.id_kind == INT:
            ids = torch.from_numpy(ids).to(queries.device)
        return SearchResult(scores[0], ids[0]) if _alone(queries) else SearchResult(scores, ids)

    def expand(self, queries: Any, exclude: Any, exact: bool | None) -> Any:
        """See `Index.expand`."""
        asked, single = self._checked(queries)
        omit = self._omitted(exclude, len(asked), single)
        expanded = like(self._expanded(asked, omit, exact), queries)
        return expanded[0] if single else expanded

    def explain(self, queries: Any, top: int, exclude: Any) -> Explanation:
        """See `Index.explain`."""
        _, single = self._checked(queries)
        top = positive_int("top", top, most=MOST_RESULTS)
        hierarchy, asked, graph, _ = self.asked(queries, exclude)
        weights = hierarchy.weights(asked, graph)
        rows = np.full((len(asked), top), -1, dtype=np.int64)
        heaviest = np.zeros(rows.shape, dtype=np.float32)
        ends = weights.items.indptr
        for i in range(len(asked)):
            data = weights.items.data[ends[i] : ends[i + 1]]
            order = np.argsort(-np.abs(data), kind="stable")[:top]
            rows[i, : len(order)] = weights.items.indices[ends[i] : ends[i + 1]][order]
            heaviest[i, : len(order)] = data[order]
        ids = self.snapshot.ids.take(rows)
        if single:
            return Explanation(weights.own[0], ids[0], heaviest[0])
        return Explanation(weights.own, ids, heaviest)

    def asked(self, queries: Any, exclude: Any) -> Asked:
        """See `Index.asked`."""
        asked, single = self._checked(queries)
        near = self._neighbors(asked, self._omitted(exclude, len(asked), single), None)
        graph = NeighborGraph(near.ids.cpu().numpy(), near.similarities.cpu().numpy())
        return Asked(self.chains.query, asked, graph, self.snapshot.ids.take)

    def _reordering(self, text: str) -> Reordering:
        """A re-ranker bound to this version, kept from one search to the next."""
        if text not in self._reorderings:
            database, query = self.chains.database, self.chains.query
            table = query.table(0) if database is None else database.table(database.depth)
            chosen, augmented = named(text), database is not None
            self._reorderings[text] = Reordering(self.snapshot, table, chosen, augmented, self.device)
        return self._reorderings[text]

    def _expanded(self, asked: Tensor, omit: Tensor | None, exact: bool | None) -> Tensor:
        query = self.chains.query
        try:
            near = self._neighbors(asked, omit, exact)
            if len(asked) == 1 and query.steady:
                return self._replay(asked, *(to_device(part, asked.device) for part in near))
            return query.expand(asked, near)
        except IndexError as error:
            raise DamagedError(
                f"{self.snapshot.folder}: a list names an item that is not there; run `gqe index verify`"
            ) from error

    @cached_property
    def chains(self) -> Chains:
        """The levels of this version."""
        return self.chains_of(self.snapshot)

    @cached_property
    def _replay(self) -> Replay:
        """The expansion of a single query, given its neighbours."""
        query = self.chains.query  # and nothing of this object, which keeps it
        return Replay(lambda asked, ids, similarities: query.expand(asked, Candidates(ids, similarities)))

    @cached_property
    def _approximate(self) -> Approximate | ShardedApproximate | None:
        manifest, content = self.snapshot.manifest, self.snapshot.search_bytes
        search, files = manifest.search, manifest.files
        if search is not None and content is not None:
            return read_approximate(search, content, files[search.file])
        shards = zip(manifest.shard_searches, self.snapshot.shard_search_bytes, strict=True)
        parts = [(part.start, read_approximate(part, content, files[part.file])) for part, content in shards]
        return ShardedApproximate(parts) if parts else None

    def _engine(self, exact: bool | None, allowed: Array | None) -> Engine | None:
        if exact or self.device.type == "cuda" or self._approximate is None:
            return None
        return self._approximate.engine(self.snapshot.vectors, allowed)

    def _neighbors(self, asked: Tensor, omit: Tensor | None, exact: bool | None) -> Candidates:
        """What the queries listen to."""
        allowed = None if self.snapshot.all_alive else self.snapshot.alive
        engine = self._engine(exact, allowed)
        query = self.chains.query
        return located(
            query.table(0),
            asked,
            query.query_k,
            device=self.device,
            allowed=allowed,
            omit=omit,
            engine=engine,
        )

    def _checked(self, queries: Any) -> tuple[Tensor, bool]:
        """Queries (m, d) through the door, on the device, and whether one vector was given alone."""
        self.snapshot.check_sizes()
        single = _alone(queries)
        if single:
            queries = queries[None] if isinstance(queries, Tensor) else np.asarray(queries)[None]
        checked = as_table(queries, "queries", dim=self.snapshot.manifest.dimension)
        return checked.to(self.device), single

    def _omitted(self, exclude: Any, count: int, single: bool) -> Tensor | None:
        """(m,) rows that the queries must not find, -1 for none."""
        if exclude is None:
            return None
        given = [exclude] if single and (isinstance(exclude, str) or np.ndim(exclude) == 0) else exclude
        values = [None if value is None or value == -1 else value for value in _listed(given)]
        if len(values) != count:
            raise InputError(
                f"exclude: {len(values)} ids for {count} queries; give one for each, None for nothing"
            )
        rows = np.full(count, -1, dtype=np.int64)
        for name in {value for value in values if value is not None}:
            row = self.snapshot.ids.find([name], self.snapshot.alive, "exclude")[0]
            rows[[place for place, value in enumerate(values) if value == name]] = row
        return torch.from_numpy(rows)

    def _filtered(self, chosen: Filter) -> Array:
        if self.snapshot.metadata is None:
            raise InputError("filter: this index has no metadata; build it with metadata")
        return allowed_by(chosen, self.snapshot.metadata)


def _model(folder: Path) -> Model:
    """A model that was written with the index; whatever is wrong with it came later."""
    try:
        return load_model(folder)
    except StorageError:
        raise
    except InputError as error:
        raise DamagedError(str(error)) from error


def nothing_found(count: int) -> tuple[Tensor, Array]:
    """What `count` queries find where there is nothing."""
    return torch.empty((count, 0)), np.empty((count, 0), np.int64)


def _alone(queries: Any) -> bool:
    """Whether one vector was given, instead of a table of them."""
    return (queries.ndim if isinstance(queries, Tensor) else np.ndim(queries)) == 1


def _listed(values: Any) -> list[Any]:
    if isinstance(values, Tensor | np.ndarray):
        return list(values.tolist()) if values.ndim == 1 else []
    try:
        return [] if isinstance(values, str) else list(values)
    except TypeError:
        raise InputError(f"exclude: expected one id for each query, got {values!r}") from None
