"""Table 1: every method as query expansion and with the database augmented."""

from __future__ import annotations

from gqe.reproduce.artefact import Artefact
from gqe.reproduce.findings import order_of_methods
from gqe.reproduce.measuring import Measurer
from gqe.reproduce.rows import UNIVERSAL, Filled, Row, fill, missing_rows
from gqe.reproduce.tables import Table, columns_of, compared, line

HAND_CRAFTED = ("AQE", "AQEwD", "DQE", "αQE")
QE = [
    Row("none", grid="none"),
    *(Row(name, grid=name) for name in HAND_CRAFTED),
    Row("EGT", grid="EGT"),
    Row("LAttQE", model="lattqe"),
    Row("GQE", model="gqe"),
    Row("universal", model=UNIVERSAL),
    Row("GQE, untrained", model="gqe", change="untrained"),
    Row("universal, untrained", model=UNIVERSAL, change="untrained"),
    Row("AQE, the model's K", same_k="aqe"),
    Row("AQE-G, the model's K", same_k="aqe-g"),
]
DBA = [
    *(Row(f"DBA + {name}", grid=f"DBA + {name}") for name in HAND_CRAFTED),
    Row("DBA + LAttQE", model="lattqe", dba=True),
    Row("DBA + GQE", model="gqe", dba=True),
    Row("DBA + universal", model=UNIVERSAL, dba=True),
    Row("DBA + GQE, untrained", model="gqe", change="untrained", dba=True),
    Row("DBA + AQE, the model's K", same_k="dba-aqe"),
    Row("DBA + AQE-G, the model's K", same_k="dba-aqe-g"),
]
_TUNED = [row for row in QE + DBA if row.title.removeprefix("DBA + ") in HAND_CRAFTED]
_TRAINED = ("LAttQE", "GQE")


def rows(measurer: Measurer) -> int:
    """How many rows will be measured."""
    return len(QE) + len(DBA) + (len(_TUNED) if measurer.suite.tuned_on_test else 0)


def make(measurer: Measurer) -> Artefact:
    """Measure and arrange it."""
    suite = measurer.suite
    query = [fill(measurer, row, suite.tests) for row in QE]
    database = [fill(measurer, row, suite.tests) for row in DBA]
    columns = columns_of(suite.tests, query)
    over = compared(columns, query, _TRAINED)
    notes = [] if len(over) == len(columns) else [f"Mean: over {', '.join(c.heading for c in over)}."]
    notes += missing_rows(query + database)

    def table(name: str, title: str, sections: dict[str, list[Filled]], notes: list[str]) -> Table:
        lines = {
            head: [line(row, columns, suite, "table1", over) for row in group]
            for head, group in sections.items()
        }
        heads = [*(column.heading for column in columns), "Mean"]
        return Table(name, title, heads, lines, suite.paper, notes)

    tables = [
        table(
            "table1",
            "Table 1: mAP, settings chosen on validation data",
            {"QE": query, "DBA": database},
            notes,
        )
    ]
    if suite.tuned_on_test:
        tuned = [fill(measurer, row, suite.tests, on_test=True) for row in _TUNED]
        sections = {"QE": [r for r in tuned if r.row in QE], "DBA": [r for r in tuned if r.row in DBA]}
        told = "Settings with the highest mean over the test sets themselves: an advantage over the models."
        tables.append(
            table("table1-tuned-on-test", "Hand-crafted methods tuned on the test sets", sections, [told])
        )
    return Artefact(
        "table1",
        "Table 1: all methods",
        "mAP in percent by the revisited protocol. The untrained models and plain averaging with as many"
        " neighbours show what training itself gives.",
        tables,
        findings=order_of_methods(query, database, over, columns),
    )
