"""Expander: a stack of aggregators with a name, bound to a database by `fit`."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from scipy import sparse

from gqe.aggregators import Aggregator, Identity
from gqe.aggregators.base import positive_int
from gqe.contrast import checked_contrast
from gqe.embeddings import as_table, like
from gqe.errors import InputError
from gqe.hierarchy import Asked, Hierarchy, Weights
from gqe.methods import PRETRAINED, Method, method
from gqe.model_files import Model, load_model, save_model, with_side
from gqe.neighbors import NeighborGraph, knn
from gqe.neighbors.search import check_approximation, checked_k, excluded_ids, nearest, resolve_device
from gqe.query_options import MAX_ROUNDS, QueryOptions
from gqe.rerank import Reranking
from gqe.rerank.base import Reranker, without
from gqe.rounds import Find, expand_in_rounds, weights_in_rounds


class SearchResult(NamedTuple):
    """Results of a search, best first: scores (m, k) float32 and ids (m, k) int64, -1 = missing."""

    scores: Any
    ids: Any


class Expander:
    """Expands queries, augments the database, and tells who gave how much weight.

    Made by name with `gqe.expander`, or from any stack of aggregators: `Expander([Mean(10), Alpha(5)])`.

    Args:
        stack: the aggregators, first level first. As many levels as hops.
        name: how it is called in tables and errors.
        database_stack: another stack for `augment` and `search(dba=True)`; None uses the same.
        then: what reorders the results of `search`, such as `gqe.methods.parse_method("none+egt").then`.
        rounds: how often queries are expanded; each round searches again with what came of the one before.
        contrast: how much of its surroundings is taken away from an expanded query, see `gqe.contrast`.
    """

    def __init__(
        self,
        stack: Iterable[Aggregator],
        name: str = "custom",
        *,
        database_stack: Iterable[Aggregator] | None = None,
        then: Reranking | None = None,
        rounds: int = 1,
        contrast: float = 0.0,
    ) -> None:
        levels = list(stack) if isinstance(stack, Iterable) else []
        if not levels or not all(isinstance(level, Aggregator) for level in levels):
            raise InputError(f"stack: expected a list of aggregators, such as [Mean(10)], got {stack!r}")
        self.stack = levels
        self.database_stack = levels if database_stack is None else list(database_stack)
        self.name = name
        self.then = then
        self.rounds = positive_int("rounds", rounds, most=MAX_ROUNDS)
        self.contrast = checked_contrast(contrast)
        self.about: dict[str, Any] = {}
        self._hierarchy: Hierarchy | None = None
        self._augmented: torch.Tensor | None = None
        self._rerankers: dict[bool, Reranker] = {}

    def fit(
        self,
        database: Any,
        graph: NeighborGraph | None = None,
        *,
        recall: float | None = None,
        device: str | torch.device = "auto",
        seed: int = 0,
    ) -> Self:
        """Bind to a database. Nothing is learned; what the stack needs of it is computed when first used.

        Args:
            database: (n, d) embeddings, NumPy (also memory-mapped) or torch. n may be 0: queries then stay
                as they are.
            graph: its neighbours (`gqe.knn`), if you have them; a larger K serves a smaller one.
            recall: build the graph approximately, with at least this recall (see `gqe.knn`).
            device: "auto", "cpu", "cuda"...
            seed: for the approximate graph.
        """
        check_approximation(recall, seed)
        table = as_table(database, "database")
        place = resolve_device(device, table)
        self._hierarchy = Hierarchy(
            self.stack, table, graph, device=place, recall=recall, seed=seed, contrast=self.contrast
        )
        self._given = database
        self._augmented = None
        self._rerankers = {}
        return self

    def expand(self, queries: Any, *, exclude: Any = None) -> Any:
        """Expanded queries (m, d), the same kind of array as given, float32 and of unit length.

        Args:
            queries: (m, d) embeddings; m may be 0.
            exclude: (m,) the database id of each query's own item, kept out of its neighbours; -1 for none.

        Example:
            >>> database = np.eye(4, dtype=np.float32)
            >>> expander("aqe", k=1).fit(database).expand(database[:1]).round(2)
            array([[1., 0., 0., 0.]], dtype=float32)
        """
        return like(self._expanded(queries, exclude), queries)

    def augment(self) -> Any:
        """Database-side augmentation (n, d): the whole stack run on every database item, computed once."""
        return like(self._augmented_database(), self._given)

    def weights(self, queries: Any, *, exclude: Any = None) -> sparse.csr_array:
        """Sparse (m, n) weights of the database items in each expanded query, through all levels.

        They are scaled so that the query itself has weight 1: the expanded query is the unit vector along
        `queries + weights @ database`. For DQE the query has weight 0 where it is no support vector; use
        `explain` to see both parts.
        """
        return self.explain(queries, exclude=exclude).items

    def explain(self, queries: Any, *, exclude: Any = None) -> Weights:
        """Weights of the database items (m, n) and of the query itself (m,) in each expanded query."""
        table, find = self._checked(queries, exclude)
        return weights_in_rounds(self.hierarchy, table, find, self.rounds)

    def asked(self, queries: Any, *, exclude: Any = None) -> Asked:
        """Queries with their neighbours and the levels above them, for a look at each level's weights.

        Of several rounds this is the first.
        """
        table, find = self._checked(queries, exclude)
        return Asked(self.hierarchy, table, find(table), np.asarray)

    def search(self, queries: Any, k: int, *, dba: bool = False, exclude: Any = None) -> SearchResult:
        """Expand the queries and search again; reorder the results if a re-ranker belongs to the method.

        Args:
            queries: (m, d) embeddings.
            k: how many results; at most the size of the database, or a million where it is smaller.
            dba: search the augmented database instead of the plain one.
            exclude: (m,) database ids that must not be found; -1 for none.

        Returns:
            (scores, ids): (m, k) each, best first; -inf and -1 where there are fewer.
        """
        expanded = self._expanded(queries, exclude)
        database = self._augmented_database() if dba else self.hierarchy.database
        excluded = excluded_ids(exclude, len(expanded), len(database))
        count = checked_k(k, len(database))
        reranker = None if self.then is None else self.reranker(dba)
        # One more than wanted, in the place of an excluded item that the re-ranker may bring in.
        wanted = count if reranker is None else max(count, reranker.num_candidates) + 1
        wanted = min(wanted, max(1, len(database)))
        found = nearest(database, expanded, wanted, excluded, device=self.hierarchy.device)
        if reranker is not None:
            ranking = without(reranker.rerank(expanded.cpu(), found), excluded, count)
            found = NeighborGraph(ranking.ids, ranking.scores)
        found = found.widened(count)
        scores, ids = torch.from_numpy(found.similarities), torch.from_numpy(found.ids.astype(np.int64))
        return SearchResult(like(scores, queries), like(ids, queries))

    def followed_by(self, then: Reranking | None) -> Expander:
        """The same expander, bound to the same database, with another re-ranker or none.

        What was computed of the database so far (neighbours, levels, augmentation) is shared.
        """
        other = copy.copy(self)
        other.then = then
        other._rerankers = {}
        return other

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> Expander:
        """Load a saved model by its folder, or one that ships with the package by its name."""
        places = (Path(folder), PRETRAINED / folder)
        model = load_model(next((place for place in places if (place / "config.json").is_file()), places[0]))
        tuned = model.about.get("dba")
        database_stack = with_side(model.stack, tuned["k"], tuned["temperatures"]) if tuned else None
        loaded = cls(model.stack, model.name, database_stack=database_stack, **vars(model.query_options))
        loaded.about = model.about
        return loaded

    def save_pretrained(self, folder: str | os.PathLike[str], about: dict[str, Any] | None = None) -> None:
        """Write config.json, model.safetensors and README.md (the model card) into a folder.

        The rounds and a re-ranker are no part of a model; give them when it is loaded.

        Args:
            folder: made if it is not there.
            about: what to record, such as training data, settings, validation history and results; None
                for what was recorded of the model it was loaded from.
        """
        known = self.about if about is None else about
        save_model(folder, Model(self.stack, self.name, known, QueryOptions(self.contrast)))

    @property
    def hierarchy(self) -> Hierarchy:
        """The stack bound to the database given to `fit`."""
        if self._hierarchy is None:
            raise InputError(f"{self.name}: not bound to a database yet; call fit(database) first")
        return self._hierarchy

    def reranker(self, dba: bool = False) -> Reranker:
        """What reorders results, bound to the plain or the augmented database; computed once."""
        if self.then is None:
            raise InputError(
                f"{self.name}: no re-ranker belongs to it; name one, as in {self.name}+reciprocal"
            )
        if dba not in self._rerankers:
            reranker, hierarchy = self.then.make(), self.hierarchy
            database = hierarchy.database
            width = max(1, min(reranker.graph_k, len(database) - 1))
            if dba:
                database = self._augmented_database()
                graph = knn(database, width, device=hierarchy.device)
            else:
                graph = hierarchy.graph_of(width)
            self._rerankers[dba] = reranker.fit(database.cpu(), graph, device=hierarchy.device)
        return self._rerankers[dba]

    def _augmented_database(self) -> torch.Tensor:
        if self._augmented is None:
            self._augmented = self.hierarchy.augment(self.database_stack)
        return self._augmented

    def _expanded(self, queries: Any, exclude: Any) -> torch.Tensor:
        table, find = self._checked(queries, exclude)
        # No need to look for neighbours. With a temperature, even an identity listens to them.
        still = all(isinstance(level, Identity) and level.temperature is None for level in self.stack)
        if still and not self.contrast:
            return table.to(self.hierarchy.device, torch.float32)
        return expand_in_rounds(self.hierarchy, table, find, self.rounds)

    def _checked(self, queries: Any, exclude: Any) -> tuple[torch.Tensor, Find]:
        """Queries (m, d) through the door, and what finds the neighbours of them or of what comes of them."""
        hierarchy = self.hierarchy
        table = as_table(queries, "queries", dim=hierarchy.database.shape[1])
        excluded = excluded_ids(exclude, len(table), len(hierarchy.database))
        width = max(1, min(hierarchy.query_k, len(hierarchy.database)))

        def find(asked: torch.Tensor) -> NeighborGraph:
            return nearest(hierarchy.database, asked, width, excluded, device=hierarchy.device)

        return table, find

    def __repr__(self) -> str:
        fitted = "" if self._hierarchy is None else f", fitted to {tuple(self._hierarchy.database.shape)}"
        apart = "" if not self.contrast else f", contrast {self.contrast:g}"
        again = "" if self.rounds == 1 else f", {self.rounds} rounds"
        return f"<Expander {self.name}: {' -> '.join(map(repr, self.stack))}{apart}{again}{fitted}>"


def expander(name: str, /, **settings: Any) -> Expander:
    """Make an expander by name, such as "aqe", "jaccard" or "universal".

    Args:
        name: the method, a model that ships with the package, or the folder of a saved model.
        **settings: its hyper-parameters, such as `k` or `alpha`; the others keep their defaults.

    Example:
        >>> expander("alpha", k=6, alpha=1)
        <Expander alpha: Alpha(k=6, alpha=1.0)>
    """
    chosen = method(name, **settings)
    if chosen.dba:
        raise InputError(f"method: {name!r}: make {chosen.name!r} and use augment() or search(dba=True)")
    return from_method(chosen)


def from_method(chosen: Method) -> Expander:
    """The expander of a method with its settings."""
    stack = chosen.stack()
    name = chosen.name if chosen.then is None else f"{chosen.name}+{chosen.then.name}"
    database_stack = chosen.database_stack(stack)
    return Expander(
        stack,
        name,
        database_stack=database_stack,
        then=chosen.then,
        rounds=chosen.rounds,
        contrast=chosen.contrast,
    )
