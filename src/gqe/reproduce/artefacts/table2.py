"""Table 2: GQE without its first level is no better than LAttQE."""

from __future__ import annotations

from gqe.reproduce.artefact import Artefact
from gqe.reproduce.measuring import Measurer
from gqe.reproduce.rows import Row, fill, missing_rows
from gqe.reproduce.tables import Table, columns_of, compared, line, mean

ROWS = [
    Row("LAttQE", model="lattqe"),
    Row("GQE, collapsed", model="gqe", change="collapsed"),
    Row("GQE", model="gqe"),
]


def rows(measurer: Measurer) -> int:
    """How many rows will be measured."""
    return len(ROWS)


def make(measurer: Measurer) -> Artefact:
    """Measure and arrange it."""
    suite = measurer.suite
    places = suite.small(suite.main_space)
    filled = [fill(measurer, row, places) for row in ROWS]
    columns = columns_of(places, filled)
    over = compared(columns, filled, ("GQE",))
    heads = [*(column.heading for column in columns), "Mean"]
    lines = [line(row, columns, suite, "table2", over) for row in filled]
    table = Table(
        "table2", "Table 2: mAP of collapsed GQE", heads, {"QE": lines}, suite.paper, missing_rows(filled)
    )
    collapsed, whole = mean(filled[1], over), mean(filled[2], over)
    findings = ["Not decided: there is no trained GQE here."]
    if collapsed is not None and whole is not None:
        verdict = "Holds" if whole > collapsed else "Does not hold"
        findings = [
            f"{verdict}: the neighbours of neighbours help; GQE {whole:.1f}, collapsed {collapsed:.1f}"
            " in the mean."
        ]
    return Artefact(
        "table2",
        "Table 2: what the second hop gives",
        "Collapsed GQE is the trained GQE whose first level gives each node back as it is, so that only the"
        " nearest neighbours of the query take part.",
        [table],
        findings=findings,
    )
