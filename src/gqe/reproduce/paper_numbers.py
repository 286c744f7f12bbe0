"""The numbers printed in the paper: mAP in percent.

Klein and Wolf, "Learning Query Expansion over the Nearest Neighbor Graph", BMVC 2021, Tables 1 and 2. They
belong to descriptors of ResNet-101 with GeM pooling and whitening, 2048 dimensions. The paper took the rows
of AQE, AQEwD, DQE, αQE and LAttQE from Gordo et al., ECCV 2020; their settings were chosen on the test sets
themselves, those of EGT, LAttQE and GQE on the validation data of rSfM120k.
"""

from __future__ import annotations

CITATION = "Klein and Wolf, Learning Query Expansion over the Nearest Neighbor Graph, BMVC 2021"

# (benchmark, protocol) of each column.
COLUMNS = tuple(
    (name, protocol)
    for name in ("roxford5k", "roxford5k+r1m", "rparis6k", "rparis6k+r1m")
    for protocol in ("medium", "hard")
)

# Row: the columns in the order above, and the printed mean; None where the paper prints a dash.
TABLE1: dict[str, tuple[float | None, ...]] = {
    "none": (67.3, 44.3, 49.5, 25.7, 80.6, 61.5, 57.3, 29.8, 52.0),
    "AQE": (72.3, 49.0, 57.3, 30.5, 82.7, 65.1, 62.3, 36.5, 56.9),
    "AQEwD": (72.0, 48.7, 56.9, 30.0, 83.3, 65.9, 63.0, 37.1, 57.1),
    "DQE": (72.7, 48.8, 54.5, 26.3, 83.7, 66.5, 64.2, 38.0, 56.8),
    "αQE": (69.3, 44.5, 52.5, 26.1, 86.9, 71.7, 66.5, 41.6, 57.4),
    "EGT": (66.1, 44.5, None, None, 82.5, 68.4, None, None, None),
    "LAttQE": (73.4, 49.6, 58.3, 31.0, 86.3, 70.6, 67.3, 42.4, 59.8),
    "GQE": (74.1, 51.0, 59.4, 32.7, 87.4, 72.4, 69.5, 45.3, 61.4),
    "DBA + AQE": (71.9, 53.6, 55.3, 32.8, 83.9, 68.0, 65.0, 39.6, 58.8),
    "DBA + AQEwD": (73.2, 53.2, 57.9, 34.0, 84.3, 68.7, 65.6, 40.8, 59.7),
    "DBA + DQE": (72.0, 50.7, 56.9, 32.9, 83.2, 66.7, 65.4, 39.1, 58.4),
    "DBA + αQE": (71.7, 50.7, 56.0, 31.5, 87.5, 73.5, 70.6, 48.5, 61.3),
    "DBA + LAttQE": (74.0, 54.1, 60.0, 36.3, 87.8, 74.1, 70.5, 48.3, 63.1),
    "DBA + GQE": (75.3, 56.1, 60.3, 36.4, 88.6, 75.2, 72.9, 51.6, 64.5),
}

# Without the distractors: ROxford Medium, Hard, RParis Medium, Hard.
TABLE2: dict[str, tuple[float, ...]] = {
    "LAttQE": (73.4, 49.6, 86.3, 70.6),
    "GQE, collapsed": (72.0, 49.3, 86.3, 70.5),
    "GQE": (74.1, 51.0, 87.4, 72.4),
}

_TABLE2_COLUMNS = tuple(column for column in COLUMNS if not column[0].endswith("+r1m"))


def paper_number(table: str, row: str, benchmark: str, protocol: str) -> float | None:
    """A number of "table1" or "table2", None where the paper has none.

    Example:
        >>> paper_number("table1", "GQE", "rparis6k", "hard")
        72.4
    """
    rows, columns = (TABLE1, COLUMNS) if table == "table1" else (TABLE2, _TABLE2_COLUMNS)
    column = (benchmark, protocol)
    if row not in rows or column not in columns:
        return None
    return rows[row][columns.index(column)]


def paper_mean(row: str) -> float | None:
    """The mean that Table 1 prints for a row."""
    return TABLE1[row][-1] if row in TABLE1 else None
