"""Relevance judgements and runs as the field exchanges them: TREC files and BEIR folders."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gqe.errors import InputError, short_repr
from gqe.formats.atomic import atomic_path
from gqe.formats.checks import existing_file, wrap_parse_errors

Qrels = dict[str, dict[str, int]]
Run = dict[str, dict[str, float]]

_BEIR_HEADER = ["query-id", "corpus-id", "score"]


def read_qrels(path: str | os.PathLike[str]) -> Qrels:
    """Read relevance judgements: the grade of each judged item of each query; above 0 is relevant.

    Args:
        path: a TREC file (`query 0 item grade` in each line), a BEIR file (`query-id corpus-id score` with
            tabs and that header), or a BEIR folder, of which `qrels/test.tsv` is read.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "some.qrels"
        >>> _ = file.write_text("q1 0 d3 2")
        >>> read_qrels(file)
        {'q1': {'d3': 2}}
    """
    found = Path(path)
    if found.is_dir():
        found = found / "qrels" / "test.tsv"
        if not found.is_file():
            raise InputError(f"{path}: a BEIR folder has qrels/test.tsv, this one has not; name the file")
    found = existing_file(found)
    result: Qrels = {}
    for number, fields in _lines(found):
        if fields == _BEIR_HEADER and not result:
            continue
        if len(fields) not in (3, 4):
            raise InputError(
                f"{found}: line {number} has {len(fields)} fields; expected 'query 0 item grade', or BEIR's"
                " 'query-id corpus-id score'"
            )
        query, item, text = fields[0], fields[-2], fields[-1]
        try:
            grade = int(text)
        except ValueError:
            raise InputError(
                f"{found}: line {number}: grade {short_repr(text)} is no whole number; repair it"
            ) from None
        if abs(grade) > 1_000_000:
            raise InputError(f"{found}: line {number}: grade {grade} is beyond a million; repair it")
        if item in result.setdefault(query, {}):
            raise InputError(f"{found}: line {number} judges {item!r} of query {query!r} again; keep one")
        result[query][item] = grade
    if not result:
        raise InputError(f"{found}: holds no judgements; write or download it again")
    return result


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read a TREC run (`query Q0 item rank score tag` in each line): the score of each item of each query.

    As for trec_eval only scores count, not the ranks that stand beside them.
    """
    found = existing_file(path)
    result: Run = {}
    for number, fields in _lines(found):
        if len(fields) != 6:
            raise InputError(
                f"{found}: line {number} has {len(fields)} fields; expected 'query Q0 item rank score tag'"
            )
        query, _, item, _, text, _ = fields
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if math.isnan(score):
            raise InputError(f"{found}: line {number}: score {short_repr(text)} is no number; repair it")
        if item in result.setdefault(query, {}):
            raise InputError(f"{found}: line {number} names {item!r} of query {query!r} again; keep one")
        result[query][item] = score
    if not result:
        raise InputError(f"{found}: holds no results; write it again")
    return result


def write_run(
    path: str | os.PathLike[str],
    found: Any,
    *,
    query_ids: Sequence[Any] | None = None,
    database_ids: Sequence[Any] | None = None,
    tag: str = "gqe",
) -> int:
    """Write results as a TREC run; returns the number of lines.

    Args:
        path: the file.
        found: a `SearchResult` of a table of queries.
        query_ids: how each query is called; by default its row number.
        database_ids: how the items are called that the results name by row numbers; by default as there.
        tag: name of the run.
    """
    scores, ids = found.scores, found.ids
    if getattr(ids, "ndim", 0) != 2:
        raise InputError("found: expected the results of a table of queries; search with queries (m, d)")
    queries = [str(i) for i in (range(len(ids)) if query_ids is None else query_ids)]
    if len(queries) != len(ids):
        raise InputError(f"query_ids: {len(queries)} ids for {len(ids)} queries; give one for each")
    for text in (tag, *queries):
        _check_word(text)
    lines = 0
    with atomic_path(Path(path)) as temporary, Path(temporary).open("w", encoding="utf-8") as file:
        for query, row, values in zip(queries, ids.tolist(), scores.tolist(), strict=True):
            there = [(item, score) for item, score in zip(row, values, strict=True) if item not in (None, -1)]
            for rank, (item, score) in enumerate(there, 1):
                name = str(item if database_ids is None else database_ids[item])
                _check_word(name)
                file.write(f"{query} Q0 {name} {rank} {score:.9g} {tag}\n")
                lines += 1
    return lines


def read_names(path: str | os.PathLike[str]) -> list[str]:
    """The ids of texts, one in each line: JSON objects with `_id` (BEIR's .jsonl), or the id itself."""
    found = existing_file(path)
    with wrap_parse_errors(found, "file of ids"):
        with found.open(encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.strip()]
        if found.suffix == ".jsonl":
            lines = [str(json.loads(line)["_id"]) for line in lines]
    return lines


def beir_names(path: str | os.PathLike[str]) -> tuple[list[str], list[str]] | None:
    """The ids of corpus and queries of the BEIR folder that holds these judgements, if one does."""
    place = Path(path)
    folder = place if place.is_dir() else place.parent.parent
    files = folder / "corpus.jsonl", folder / "queries.jsonl"
    if not all(file.is_file() for file in files):
        return None
    return read_names(files[0]), read_names(files[1])


def as_run(run: Mapping[Any, Mapping[Any, float]]) -> dict[str, list[str]]:
    """The items of each query, best first; ties as trec_eval orders them, by falling id."""
    return {
        str(query): sorted(map(str, items), key=lambda item: (scores[item], item), reverse=True)
        for query, items in run.items()
        for scores in [{str(item): score for item, score in items.items()}]
    }


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line that is not empty, with its number."""
    with wrap_parse_errors(path, "text file"), path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            fields = line.split()
            if fields:
                yield number, fields


def _check_word(text: str) -> None:
    if not text or text.split() != [text]:
        raise InputError(f"run: {short_repr(text)} cannot stand in a TREC file, whose fields end at blanks")
