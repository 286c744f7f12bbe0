"""Queries whose results GQE repaired, as pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from gqe.datasets.base import Benchmark
from gqe.evaluation.base import GroundTruth
from gqe.evaluation.benchmark import Bench, Outcome
from gqe.methods import Method, parse_method
from gqe.reproduce.artefact import Artefact, Example, Result
from gqe.reproduce.measuring import Measurer
from gqe.reproduce.rows import Row, choose

ROW = Row("GQE", model="gqe")
HELPED, SHOWN = 5, 8


def rows(measurer: Measurer) -> int:
    """How many rows will be measured."""
    return 1


def make(measurer: Measurer) -> Artefact:
    """Search once more with the GQE of Table 1; only for a suite whose first benchmark has pictures."""
    place = measurer.suite.tests[0]
    measurer.start_row("pictures")
    choice = choose(measurer, ROW, place)
    examples: list[Example] = []
    findings = ["Not decided: there is no trained GQE here."]
    if choice is not None:
        benchmark, bench = measurer.opened(place)
        examples, findings = _examples(benchmark, bench, choice.method)
    return Artefact(
        "repaired",
        "Queries that GQE repaired",
        f"The {HELPED} queries of {place.title} that gained most, and the one that lost most, each with its"
        f" first {SHOWN} results. Green frames show the same landmark, red ones something else; dotted ones"
        " show so little of it that the protocol does not count them.",
        findings=findings,
        examples=examples,
    )


def _examples(data: Benchmark, bench: Bench, method: Method) -> tuple[list[Example], list[str]]:
    """The queries of the largest gains and of the largest loss, and how many there were of each."""
    none = parse_method("none")
    old, new = _per_query(bench.run(none)), _per_query(bench.run(method))
    gain = np.nan_to_num(new - old)
    order = np.argsort(-gain, kind="stable")
    picked = [int(query) for query in order[:HELPED] if gain[query] > 0]
    if gain[order[-1]] < 0:
        picked.append(int(order[-1]))
    before, after = bench.first(none, SHOWN), bench.first(method, SHOWN)
    examples = [
        Example(
            f"Query {query}",
            _picture(data, "query", query),
            (float(old[query]), float(new[query])),
            _results(data, bench.truth, query, before[query]),
            _results(data, bench.truth, query, after[query]),
        )
        for query in picked
    ]
    better, worse = int((gain > 0.05).sum()), int((gain < -0.05).sum())
    return examples, [f"Of {len(gain)} queries {better} are better with GQE and {worse} worse."]


def _results(data: Benchmark, truth: GroundTruth, query: int, ids: np.ndarray[Any, Any]) -> list[Result]:
    n = len(data.database)
    states = dict.fromkeys(truth.ignored(n)[[query]].indices.tolist(), "ignored")
    states |= dict.fromkeys(truth.relevance(n)[[query]].indices.tolist(), "relevant")
    found = [int(item) for item in ids if item >= 0]
    return [Result(_picture(data, "database", item), states.get(item, "other")) for item in found]


def _picture(data: Benchmark, kind: str, index: int) -> Any:
    assert data.picture is not None
    return data.picture(kind, index)


def _per_query(outcome: Outcome) -> np.ndarray[Any, Any]:
    per_query = outcome.evaluation.per_query
    return per_query["medium"] if isinstance(per_query, dict) else per_query
