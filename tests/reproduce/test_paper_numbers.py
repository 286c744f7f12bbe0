"""The paper's own numbers hold together."""

from __future__ import annotations

import pytest

from gqe.reproduce import artefact_tables
from gqe.reproduce.paper_numbers import COLUMNS, TABLE1, TABLE2, paper_mean, paper_number


def test_every_row_has_eight_columns_and_a_mean() -> None:
    assert len(COLUMNS) == 8
    assert all(len(row) == 9 for row in TABLE1.values())
    assert all(len(row) == 4 for row in TABLE2.values())


@pytest.mark.parametrize("row", [row for row in TABLE1 if row != "EGT"])
def test_the_printed_mean_is_that_of_the_columns(row: str) -> None:
    numbers = TABLE1[row][:-1]
    assert sum(numbers) / 8 == pytest.approx(paper_mean(row), abs=0.1)  # some are cut, not rounded


def test_both_tables_print_the_same_for_the_same_model() -> None:
    for row in ("LAttQE", "GQE"):
        for benchmark in ("roxford5k", "rparis6k"):
            for protocol in ("medium", "hard"):
                assert paper_number("table1", row, benchmark, protocol) == paper_number(
                    "table2", row, benchmark, protocol
                )


def test_single_numbers() -> None:
    assert paper_number("table1", "DBA + GQE", "rparis6k+r1m", "hard") == 51.6
    assert paper_number("table1", "αQE", "roxford5k+r1m", "medium") == 52.5
    assert paper_number("table1", "EGT", "roxford5k+r1m", "medium") is None
    assert paper_number("table2", "GQE, collapsed", "roxford5k", "medium") == 72.0
    assert paper_number("table2", "GQE", "roxford5k+r1m", "medium") is None
    assert paper_number("table1", "universal", "roxford5k", "medium") is None


def test_every_row_of_the_paper_is_measured() -> None:
    assert set(TABLE1) <= {row.title for row in artefact_tables.TABLE1_QE + artefact_tables.TABLE1_DBA}
    assert set(TABLE2) == {row.title for row in artefact_tables.TABLE2}
