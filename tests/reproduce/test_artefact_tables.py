"""Sentences follow the numbers."""

from __future__ import annotations

from gqe.reproduce.artefact_tables import order_of_methods
from gqe.reproduce.cells import Cell
from gqe.reproduce.rows import MethodRow, RowResult
from gqe.reproduce.tables import Column, Columns

COLUMNS = Columns(*2 * [[Column("a", "A", "map"), Column("b", "B", "map")]])


def filled(title: str, a: float | None, b: float | None, *, grid: str = "") -> RowResult:
    cells = {name: None if n is None else Cell({"map": n}) for name, n in (("a", a), ("b", b))}
    return RowResult(MethodRow(title, grid=grid), cells, "")


def sentences(gqe: tuple[float | None, float | None], dba: float) -> list[str]:
    query = [
        filled("none", 50, 50, grid="none"),
        filled("AQE", 60, 49, grid="AQE"),
        filled("αQE", 56, 50, grid="αQE"),
        filled("EGT", 99, 99, grid="EGT"),
        filled("LAttQE", 60, 60),
        filled("GQE", *gqe),
    ]
    return order_of_methods(query, [filled("DBA + GQE", dba, dba)], COLUMNS)


def test_the_whole_order() -> None:
    found = sentences((62, 59), 100)
    assert "4 of 5 statements hold" in found[0]
    assert found[1].startswith("Holds: the best hand-crafted method, AQE, is above none")
    assert "in 1 of 2 columns, not in B" in found[1]
    assert found[3] == (
        "Holds: GQE is above LAttQE in the mean (60.5 against 60.0), in 1 of 2 columns, not in B."
    )


def test_a_broken_order_is_told() -> None:
    found = sentences((59, 60), 70)
    assert "2 of 5" in found[0]
    assert found[3].startswith("Does not hold: GQE is not above LAttQE in the mean (59.5 against 60.0)")
    assert found[4].startswith("Does not hold: GQE the best of all rows without DBA; it has 59.5")
    assert found[4].endswith("above it: EGT 99.0, LAttQE 60.0.")
    assert found[5].startswith("Does not hold: DBA + GQE the best of all rows; it has 70.0 in the mean")


def test_a_missing_model_decides_nothing() -> None:
    found = sentences((None, None), 100)
    assert found[3].startswith("Not decided: LAttQE < GQE")


def test_whether_training_gave_anything() -> None:
    query = [filled("GQE", 60, 60), filled("GQE, untrained", 61, 61), filled("none", 1, 1, grid="none")]
    found = order_of_methods(query, [], COLUMNS)
    assert "Does not hold: GQE is not above GQE, untrained in the mean (60.0 against 61.0)" in " ".join(found)
