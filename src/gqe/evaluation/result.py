"""The numbers of one evaluation, in percent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Percent = float | dict[str, float]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Quality of a ranking, in percent.

    With the Revisited ground truth every number is a dict with `easy`, `medium` and `hard`; with labels it is
    a plain float. A mean over no query at all is nan (None in `to_dict`).

    Attributes:
        map: mean average precision, by the trapezoid rule; with judgements the plain one, as of trec_eval.
        mp: {k: mean precision of the first k}, where k is lowered to the rank of the query's last positive;
            empty with judgements.
        recall: {k: share of queries with a relevant item among the first k} with labels, as metric learning
            counts it; {k: share of the relevant items among the first k} with judgements, as trec_eval does;
            else empty.
        map_at: {k: mean average precision of the first k, plain precision}; labels only, else empty.
        ndcg: {k: nDCG of the first k}; with labels and judgements, else empty.
        precision: {k: share of relevant items among the first k}; with labels and judgements, else empty.
        mrr: mean reciprocal rank of the first relevant item; with labels and judgements, else None.
        values: (m,) of each query, by the names of `to_dict` ("map", "ndcg@10"), of Revisited "map medium".
        per_query: (m,) average precision of each query, nan where it has no positive; a dict for Revisited.
        queries: number of queries that have positives, over which the means run; a dict for Revisited.
    """

    map: Percent
    mp: dict[int, Percent]
    recall: dict[int, float]
    map_at: dict[int, float]
    per_query: NDArray[np.float64] | dict[str, NDArray[np.float64]]
    queries: int | dict[str, int]
    ndcg: dict[int, float] = field(default_factory=dict)
    precision: dict[int, float] = field(default_factory=dict)
    mrr: float | None = None
    values: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def main(self) -> float:
        """The one number to compare by: mAP, and of the Revisited protocols Medium."""
        return self.map["medium"] if isinstance(self.map, dict) else self.map

    @property
    def left_out(self) -> int | dict[str, int]:
        """Number of queries without positives, left out of the means."""
        if isinstance(self.per_query, dict):
            return {name: int(np.isnan(ap).sum()) for name, ap in self.per_query.items()}
        return int(np.isnan(self.per_query).sum())

    def to_dict(self) -> dict[str, Any]:
        """Give what was measured, "map", "ndcg@10" and so on, and "queries"; for JSON: None for nan."""
        numbers = {key: _without_nan(value) for key, _, value in self._rows()}
        return numbers | {"queries": self.queries}

    def __repr__(self) -> str:
        # The numbers of each query alone may be tens of thousands of characters.
        queries = max(_values(self.queries))
        return f"<Evaluation of {queries} queries: mAP {_format_value(self.main)}; print() shows all>"

    def __str__(self) -> str:
        columns = list(self.map) if isinstance(self.map, dict) else [""]
        lines = [_line("", columns)] if isinstance(self.map, dict) else []
        lines += [
            _line(title, [_format_value(number) for number in _values(value)])
            for _, title, value in self._rows()
        ]
        lines.append(_line("queries", [str(count) for count in _values(self.queries)]))
        if any(_values(self.left_out)):
            lines.append(_line("left out", [str(count) for count in _values(self.left_out)]))
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[str, str, Percent]]:
        yield "map", "mAP", self.map
        if self.mrr is not None:
            yield "mrr", "MRR", self.mrr
        for key, title, family in (
            ("ndcg", "nDCG", self.ndcg),
            ("mp", "mP", self.mp),
            ("p", "P", self.precision),
            ("recall", "recall", self.recall),
            ("map", "mAP", self.map_at),
        ):
            for k, value in family.items():
                yield f"{key}@{k}", f"{title}@{k}", value


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else [value]


def _without_nan(value: Percent) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(number) for name, number in value.items()}
    return None if math.isnan(value) else value


def _format_value(number: float) -> str:
    return "-" if math.isnan(number) else f"{number:.1f}"


def _line(title: str, cells: list[str]) -> str:
    return f"{title:<10}" + "".join(f"{cell:>8}" for cell in cells)
