"""What the two threads do: one reads the engine, one writes to it, each a batch of jobs at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import torch

from gqe.embeddings import LENGTH_TOLERANCE, as_table
from gqe.errors import InputError, StorageError
from gqe.results import plain_value
from gqe.server.batching import Busy
from gqe.server.engine import Array, Engine, ItemId, SearchOptions
from gqe.server.schemas import ChangeResponse, Hits, QueryExample, QueryParameters

_MAX_RESULTS = 200_000
# Metadata is of any size.
_MAX_METADATA = 10_000
# Sums of examples that are shorter have no direction.
_MIN_SUM = 1e-6
# Vectors shorter or longer take the slow path of `check_vectors`.
_MIN_LENGTH, _MAX_LENGTH = 1e-15, 1e30


class Queries(NamedTuple):
    """Queries of one request.

    Attributes:
        vectors: (m, d) float32 of unit length.
        exclude: (m,) for each query an item that is neither its neighbour nor its result, or None.
        drop: Items that are left out of all results, though they may be neighbours.
    """

    vectors: Array
    exclude: list[ItemId | None]
    drop: list[ItemId]


def resolve_queries(engine: Engine, request: QueryParameters) -> Queries:
    """Vectors of what is searched for; called by the thread that reads."""
    if request.ids is not None:
        return Queries(engine.vectors(request.ids), list(request.ids), [])
    if request.vectors is not None:
        vectors = check_vectors(request.vectors, engine.dimension)
        return Queries(vectors, [None] * len(vectors), [])
    assert request.like is not None
    query = _combine_examples(engine, request.like, request.dislike, request.dislike_weight)
    return Queries(query[None], [None], [each.id for each in request.dislike if each.id is not None])


def return_queries(queries: Queries, _: Engine) -> Queries:
    """Queries that need no engine, for `SearchJob.resolve`."""
    return queries


def check_vectors(vectors: Sequence[Sequence[float]], dimension: int, name: str = "vectors") -> Array:
    """Vectors (m, d) of a request, normalised to unit length."""
    for row, vector in enumerate(vectors):
        if len(vector) != dimension:
            raise InputError(f"{name}: row {row} has {len(vector)} numbers, the index {dimension} dimensions")
    table = np.asarray(vectors, dtype=np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", table, table))
    if not (lengths > _MIN_LENGTH).all() or not (lengths < _MAX_LENGTH).all():
        return np.asarray(as_table(table, name, dim=dimension).numpy())  # says what is wrong
    # As `as_table` does, which takes several times as long for a single vector.
    scale = np.where(np.abs(lengths - 1) <= LENGTH_TOLERANCE[torch.float32], 1.0, lengths)
    return np.asarray(table / scale[:, None], dtype=np.float32)


def _combine_examples(
    engine: Engine, like: Sequence[QueryExample], dislike: Sequence[QueryExample], dislike_weight: float
) -> Array:
    """One query (d,) of examples, after Rocchio (The SMART Retrieval System, 1971).

    With unit vectors x of liked examples of weights w, and y of disliked ones of weights v, it is the unit
    vector along  (Σ w x) / (Σ w)  -  dislike_weight · (Σ v y) / (Σ v).
    """
    query = _weighted_mean(engine, like, "like")
    if dislike:
        query = query - dislike_weight * _weighted_mean(engine, dislike, "dislike")
    length = float(np.linalg.norm(query))
    if length < _MIN_SUM:
        raise InputError("like, dislike: the examples cancel each other out; give others, or other weights")
    return np.asarray(query / length, dtype=np.float32)


def _weighted_mean(engine: Engine, examples: Sequence[QueryExample], name: str) -> Array:
    vectors = [
        check_vectors([each.vector or []], engine.dimension, name)[0]
        if each.id is None
        else engine.vectors([each.id])[0]
        for each in examples
    ]
    return np.asarray(np.average(vectors, axis=0, weights=[each.weight for each in examples]))


class SearchJob(NamedTuple):
    """A search.

    Attributes:
        resolve: Gives the queries; called by the thread that reads.
        options: How to search.
        size: How many queries there are.
        engine: What to search; None for the newest version.
    """

    resolve: Callable[[Engine], Queries]
    options: SearchOptions
    size: int = 1
    engine: Engine | None = None


class ReadJob(NamedTuple):
    """Anything else that is read, of an engine as in `SearchJob`."""

    work: Callable[[Engine], Any]
    engine: Engine | None = None
    size: int = 1


class _Part(NamedTuple):
    """The queries of one job in a call of the engine, its place in the batch, and its k."""

    queries: Queries
    place: int
    k: int


def run_reads(engine: Engine, jobs: Sequence[SearchJob | ReadJob]) -> list[Any]:
    """Results of jobs, searches with equal options by one call; an exception where a job failed.

    All that a job reads is of one version, whatever is written meanwhile.
    """
    results: list[Any] = [None] * len(jobs)
    calls: dict[tuple[int, SearchOptions], tuple[Engine, list[_Part]]] = {}
    newest = engine.snapshot()
    for place, job in enumerate(jobs):
        try:
            snapshot = newest if job.engine is None else job.engine
            if isinstance(job, ReadJob):
                results[place] = job.work(snapshot)
                continue
            queries = job.resolve(snapshot)
            k = min(job.options.k + len(queries.drop), len(snapshot))
            check_result_count(k, len(queries.vectors))
            if job.options.with_metadata and k * len(queries.vectors) > _MAX_METADATA:
                raise InputError(f"with_metadata: of at most {_MAX_METADATA} results in all; ask for fewer")
            options = job.options._replace(k=k)
            _, parts = calls.setdefault((snapshot.version, options), (snapshot, []))
            parts.append(_Part(queries, place, job.options.k))
        except Exception as error:
            results[place] = error
    for (_, options), (snapshot, parts) in calls.items():
        for part, hits in zip(parts, _search(snapshot, options, parts), strict=True):
            results[part.place] = hits
    return results


def check_result_count(k: int, queries: int) -> None:
    """Refuse more results than are given at once."""
    if k * queries > _MAX_RESULTS:
        raise InputError(
            f"k: {k} results for each of {queries} queries are more than {_MAX_RESULTS} in all;"
            " ask for less at once"
        )


def _search(engine: Engine, options: SearchOptions, parts: list[_Part]) -> list[list[Hits] | Exception]:
    """Results of each part by one call; if it fails, by one call per part, so that only wrong ones fail."""
    if options.k == 0:
        return [[Hits(ids=[], scores=[]) for _ in part.queries.vectors] for part in parts]
    vectors = np.concatenate([part.queries.vectors for part in parts])
    exclude = [item for part in parts for item in part.queries.exclude]
    try:
        found = engine.search(vectors, exclude, options)
    except Exception as error:
        if len(parts) == 1:
            return [error]
        return [hits for part in parts for hits in _search(engine, options, [part])]
    metadata = found.metadata or [None] * len(vectors)
    rows = zip(found.ids.tolist(), found.scores.tolist(), metadata, strict=True)
    return [[_hits(*next(rows), part) for _ in part.queries.vectors] for part in parts]


def _hits(ids: list[Any], scores: list[float], metadata: list[Any] | None, part: _Part) -> Hits:
    absent = {None, -1, *part.queries.drop}
    places = [place for place, item in enumerate(ids) if item not in absent][: part.k]
    hits = Hits(ids=[ids[place] for place in places], scores=[scores[place] for place in places])
    if metadata is not None:
        hits["metadata"] = [plain_value(metadata[place] or {}) for place in places]
    return hits


class AddItems(NamedTuple):
    """Items to add: checked vectors (m, d), their ids, and columns of metadata."""

    vectors: Array
    ids: list[ItemId] | None
    metadata: dict[str, list[Any]] | None

    @property
    def size(self) -> int:
        """How many items there are."""
        return len(self.vectors)


class RemoveItems(NamedTuple):
    """Items to remove."""

    ids: list[ItemId]

    @property
    def size(self) -> int:
        """How many items there are."""
        return len(self.ids)


class Reload(NamedTuple):
    """Read again what other processes changed."""

    size: int = 0


Change = AddItems | RemoveItems | Reload


def run_writes(engine: Engine, changes: Sequence[Change]) -> list[ChangeResponse | Exception]:
    """Store changes in their order; those of one kind that follow each other as one, if that is possible."""
    results: list[ChangeResponse | Exception] = []
    for _, group in groupby(changes, _kind):
        members = list(group)
        try:
            ids = iter(_store(engine, members))
        except (Busy, StorageError, OSError) as error:  # no fault of any change
            results += [error] * len(members)
        except Exception as error:
            # Nothing was changed. One by one, only the wrong ones fail.
            results += [error] if len(members) == 1 else [run_writes(engine, [each])[0] for each in members]
        else:
            items, version = len(engine), engine.version
            for member in members:
                own = list(islice(ids, member.size))
                results.append(ChangeResponse(ids=own, items=items, version=version))
    return results


def _kind(change: Change) -> tuple[Any, ...]:
    """What changes must share to be stored as one."""
    if not isinstance(change, AddItems):
        return (type(change),)
    columns = None if change.metadata is None else tuple(sorted(change.metadata))
    return (AddItems, change.ids is None, columns)


def _store(engine: Engine, members: list[Change]) -> list[ItemId]:
    """Store changes of one kind as one, and return the ids of all their items."""
    adds = [member for member in members if isinstance(member, AddItems)]
    if adds:
        given = None if adds[0].ids is None else [item for add in adds for item in add.ids or []]
        tables = [add.metadata or {} for add in adds]
        columns = {name: [value for table in tables for value in table[name]] for name in tables[0]}
        vectors = np.concatenate([add.vectors for add in adds])
        return engine.add(vectors, given, None if adds[0].metadata is None else columns)
    if isinstance(members[0], Reload):
        engine.reload()
        return []
    ids = [item for member in members if isinstance(member, RemoveItems) for item in member.ids]
    engine.remove(ids)
    return ids
