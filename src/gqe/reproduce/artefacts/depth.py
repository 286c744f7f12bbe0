"""Depth: models of one, two and three hops."""

from __future__ import annotations

from gqe.reproduce.artefact import Artefact
from gqe.reproduce.measuring import Measurer
from gqe.reproduce.rows import Filled, Row, fill, missing_rows
from gqe.reproduce.tables import Column, Table, columns_of, compared, line, mean

_MODELS = {"L = 1 (LAttQE)": "lattqe", "L = 2 (GQE)": "gqe", "L = 3": "gqe3"}
QE = [Row(title, model=model) for title, model in _MODELS.items()]
DBA = [Row(f"DBA + {title}", model=model, dba=True) for title, model in _MODELS.items()]


def rows(measurer: Measurer) -> int:
    """How many rows will be measured."""
    return len(QE) + len(DBA)


def make(measurer: Measurer) -> Artefact:
    """Measure and arrange it."""
    suite = measurer.suite
    places = suite.small(suite.main_space)
    query = [fill(measurer, row, places) for row in QE]
    database = [fill(measurer, row, places) for row in DBA]
    columns = columns_of(places, query)
    over = compared(columns, query, ("L = 2 (GQE)",))
    sections = {
        head: [line(row, columns, suite, "depth", over) for row in group]
        for head, group in (("QE", query), ("DBA", database))
    }
    heads = [*(column.heading for column in columns), "Mean"]
    return Artefact(
        "depth",
        "Depth: one, two and three hops",
        "The paper reports that L = 3, with K of at most 36, came close to L = 2 without surpassing it.",
        [Table("depth", "mAP over the number of hops", heads, sections, "", missing_rows(query + database))],
        findings=[_finding({row.row.title: row for row in query}, over)],
    )


def _finding(known: dict[str, Filled], over: list[Column]) -> str:
    means = {title: number for title, row in known.items() if (number := mean(row, over)) is not None}
    if len(means) < 2:
        return "Not decided: fewer than two depths are here."
    order = sorted(means, key=lambda title: -means[title])
    return "In the mean: " + " > ".join(f"{title} {means[title]:.1f}" for title in order) + "."
