"""One thread reads the engine: searches that come together are one call, anything else one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gqe.errors import InputError
from gqe.server.engine import Engine, ItemId, Options
from gqe.server.queries import Queries

_MOST_RESULTS = 200_000


class Found(NamedTuple):
    """Results of one query, best first."""

    ids: list[ItemId]
    scores: list[float]


class Search(NamedTuple):
    """A search to be done.

    Attributes:
        ask: Gives the queries; called by the thread that reads.
        queries: How many there are.
        options: How to search.
        engine: What to search; None for the newest version.
    """

    ask: Callable[[Engine], Queries]
    queries: int
    options: Options
    engine: Engine | None = None


class Read(NamedTuple):
    """Anything else to be read, of an engine as in `Search`."""

    work: Callable[[Engine], Any]
    engine: Engine | None = None


Job = Search | Read


def size(job: Job) -> int:
    """How much of a batch a job takes."""
    return job.queries if isinstance(job, Search) else 1


def answer(engine: Engine, jobs: Sequence[Job]) -> list[Any]:
    """Answers to jobs; an exception where one cannot be answered.

    All that a job asks is asked of one version, whatever is written meanwhile.
    """
    answers: list[Any] = [None] * len(jobs)
    groups: dict[tuple[int, Options], list[tuple[int, Queries]]] = defaultdict(list)
    now = engine.fixed()
    for place, job in enumerate(jobs):
        try:
            seen = now if job.engine is None else job.engine
            if isinstance(job, Read):
                answers[place] = job.work(seen)
                continue
            queries = job.ask(seen)
            wanted = min(job.options.k + len(queries.drop), len(seen))
            check_amount(wanted, len(queries.vectors))
            groups[seen.version, job.options._replace(k=wanted)].append((place, queries))
        except Exception as error:
            answers[place] = error
    for (_, options), members in groups.items():
        first = jobs[members[0][0]].engine
        seen = now if first is None else first
        for place, found in _search(seen, options, members):
            answers[place] = found if isinstance(found, Exception) else _cut(found, jobs[place])
    return answers


def check_amount(results: int, queries: int) -> None:
    """Refuse more results than are given at once."""
    if results * queries > _MOST_RESULTS:
        raise InputError(
            f"k: {results} results for each of {queries} queries are more than {_MOST_RESULTS} in all;"
            " ask for less at once"
        )


def _cut(found: list[Found], job: Job) -> list[Found]:
    assert isinstance(job, Search)
    return [Found(ids[: job.options.k], scores[: job.options.k]) for ids, scores in found]


def _search(
    engine: Engine, options: Options, members: list[tuple[int, Queries]]
) -> list[tuple[int, list[Found] | Exception]]:
    """One call for all members; if it fails, one for each, so that only those fail that are to blame."""
    if options.k == 0:
        return [(place, [Found([], [])] * len(queries.vectors)) for place, queries in members]
    vectors = np.concatenate([queries.vectors for _, queries in members])
    exclude = [each for _, queries in members for each in queries.exclude]
    try:
        scores, ids = engine.search(vectors, exclude, options)
    except Exception as error:
        if len(members) == 1:
            return [(members[0][0], error)]
        return [each for member in members for each in _search(engine, options, [member])]
    result: list[tuple[int, list[Found] | Exception]] = []
    start = 0
    for place, queries in members:
        stop = start + len(queries.vectors)
        rows = zip(ids[start:stop].tolist(), scores[start:stop].tolist(), strict=True)
        result.append((place, [_found(*row, set(queries.drop)) for row in rows]))
        start = stop
    return result


def _found(ids: list[Any], scores: list[float], drop: set[ItemId]) -> Found:
    there = [place for place, each in enumerate(ids) if each is not None and each != -1 and each not in drop]
    return Found([ids[place] for place in there], [scores[place] for place in there])
