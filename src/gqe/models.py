"""Expander: a stack of aggregators with a name, bound to a database by `fit`."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import torch

from gqe.aggregators import Aggregator
from gqe.embeddings import as_table, like
from gqe.errors import InputError
from gqe.methods import PRETRAINED, Method, method, model_folder, parse_method
from gqe.model_files import Model, load_model, save_model, with_side
from gqe.neighbors import NeighborGraph
from gqe.neighbors.search import check_approximation, resolve_device
from gqe.progress import Progress, reporting
from gqe.query_options import QueryOptions
from gqe.rerank import Reranking
from gqe.retrieval import Searchable
from gqe.source import MemorySource
from gqe.targets import MemoryTarget


class Expander(Searchable):
    """Expands queries, augments the database, searches, and gives the weight of every item.

    Made by name with `gqe.expander`, or from any stack of aggregators: `Expander([Mean(10), Alpha(5)])`.

    Args:
        stack: the aggregators, first level first. As many levels as hops.
        name: how it is called in tables and errors.
        database_stack: another stack for `augment` and `search(dba=True)`; None uses the same.
        query_options: contrast and rounds of query expansion.
        reranking: what reorders the results of `search`, such as `parse_method("none+egt").reranking`.
        dba: whether `search` goes to the augmented database unless told otherwise.
    """

    def __init__(
        self,
        stack: Iterable[Aggregator],
        name: str = "custom",
        *,
        database_stack: Iterable[Aggregator] | None = None,
        query_options: QueryOptions | None = None,
        reranking: Reranking | None = None,
        dba: bool = False,
    ) -> None:
        levels = list(stack) if isinstance(stack, Iterable) else []
        if not levels or not all(isinstance(level, Aggregator) for level in levels):
            raise InputError(f"stack: expected a list of aggregators, such as [Mean(10)], got {stack!r}")
        self.stack = levels
        self.database_stack = levels if database_stack is None else list(database_stack)
        self.name = name
        self.query_options = query_options or QueryOptions()
        self.reranking = reranking
        self.dba = dba
        self.about: dict[str, Any] = {}
        self._target: MemoryTarget | None = None

    def fit(
        self,
        database: Any,
        graph: NeighborGraph | tuple[Any, Any] | None = None,
        *,
        recall: float | None = None,
        device: str | torch.device = "auto",
        seed: int = 0,
        progress: Progress = False,
    ) -> Self:
        """Bind to a database. Nothing is learned; what the stack needs of it is computed when first used.

        Args:
            database: (n, d) embeddings, NumPy (also memory-mapped) or torch. n may be 0: queries then stay
                as they are.
            graph: its neighbours (`gqe.knn`), if you have them; a larger K serves a smaller one. Or the lists
                (D, I) of a FAISS index of this database, searched with the database.
            recall: build the graph approximately, with at least this recall (see `gqe.knn`).
            device: "auto", "cpu", "cuda"...
            seed: for the approximate graph.
            progress: of finding the neighbours, when they are first needed: True shows a bar on a terminal
                and a line every ten seconds elsewhere; or a function that is called with items done, items in
                all, and what is being done.
        """
        check_approximation(recall, seed)
        table = as_table(database, "database")
        place = resolve_device(device, table)
        source = MemorySource(
            self.stack, table, graph, device=place, recall=recall, seed=seed, progress=progress
        )
        self._target = MemoryTarget(
            source, self.query_options, self.reranking, self.database_stack, dba=self.dba
        )
        filename = getattr(database, "filename", None)
        self._target.filename = None if filename is None else str(filename)
        self._database = database
        return self

    def augment(self, *, progress: Progress = False) -> Any:
        """Database-side augmentation (n, d): the whole stack run on every database item, computed once.

        Args:
            progress: see `fit`; of everything that is computed.
        """
        with reporting(progress, "augment") as report:
            return like(self.target.augment(report), self._database)

    def with_reranker(self, reranking: Reranking | None) -> Expander:
        """The same expander, bound to the same database, with another re-ranker or none.

        What was computed of the database so far (neighbours, levels, augmentation) is shared.
        """
        other = copy.copy(self)
        other.reranking = reranking
        if self._target is not None:
            other._target = copy.copy(self._target)
            other._target.reranking = reranking
        return other

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> Expander:
        """Load a saved model by its folder, or one that ships with the package by its name."""
        places = (Path(folder), PRETRAINED / folder)
        model = load_model(next((place for place in places if (place / "config.json").is_file()), places[0]))
        tuned = model.about.get("dba")
        database_stack = with_side(model.stack, tuned["k"], tuned["temperatures"]) if tuned else None
        loaded = cls(
            model.stack, model.name, database_stack=database_stack, query_options=model.query_options
        )
        loaded.about = model.about
        return loaded

    def save_pretrained(self, folder: str | os.PathLike[str], about: dict[str, Any] | None = None) -> None:
        """Write config.json, model.safetensors and README.md (the model card) into a folder.

        A re-ranker is no part of a model; give it when the model is loaded.

        Args:
            folder: made if it is not there.
            about: what to record, such as training data, settings, validation history and results; None
                for what was recorded of the model it was loaded from.
        """
        known = self.about if about is None else about
        save_model(folder, Model(self.stack, self.name, known, self.query_options))

    @property
    def target(self) -> MemoryTarget:
        """The database given to `fit`, as a search sees it."""
        if self._target is None:
            raise InputError(f"{self.name}: not bound to a database yet; call fit(database) first")
        return self._target

    def __repr__(self) -> str:
        fitted = "" if self._target is None else f", fitted to {tuple(self._target.source.database.shape)}"
        options = f", {self.query_options}" if str(self.query_options) else ""
        return f"<Expander {self.name}: {' -> '.join(map(repr, self.stack))}{options}{fitted}>"


def expander(name: str, /, **settings: Any) -> Expander:
    """Make an expander by name, such as "aqe", "jaccard", "universal" or "universal:rounds=2+reciprocal".

    Args:
        name: the method, a model that ships with the package, or the folder of a saved model; with settings
            and a re-ranker as on the command line. "dba-" before it makes `search` augment the database.
        **settings: its hyper-parameters, such as `k` or `alpha`; the others keep their defaults.

    Example:
        >>> expander("alpha", k=6, alpha=1)
        <Expander alpha: Alpha(k=6, alpha=1.0)>
    """
    typed = isinstance(name, str) and ":" in name and model_folder(name) is None
    if not typed:
        return from_method(method(name, **settings))
    parsed = parse_method(name)
    chosen = method(parsed.expansion, **parsed.settings | settings)
    return from_method(chosen if parsed.reranking is None else chosen.with_reranker(parsed.reranking))


def from_method(chosen: Method) -> Expander:
    """The expander of a method with its settings."""
    stack = chosen.stack()
    return Expander(
        stack,
        chosen.name if chosen.reranking is None else f"{chosen.name}+{chosen.reranking.name}",
        database_stack=chosen.database_stack(stack),
        query_options=chosen.query_options,
        reranking=chosen.reranking,
        dba=chosen.dba,
    )
