from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gqe import InputError
from gqe.reproduce.cells import Cell, CellStore
from gqe.reproduce.suite import checksum
from reproduce.worlds import planted


def test_a_cell_comes_back_bit_for_bit(tmp_path: Path) -> None:
    store = CellStore(tmp_path / "r.json")
    cell = Cell(
        {"easy": math.nan, "medium": 100 / 3, "hard": 0.1}, agreement=2 / 3, diversity=1.0, seconds=0.5
    )
    store.put("α | k=3", cell)
    back = CellStore(tmp_path / "r.json").get("α | k=3")
    assert back is not None
    assert math.isnan(back.scores["easy"])
    assert back.main == 100 / 3
    assert back._replace(scores={}) == cell._replace(scores={})
    assert store.get("other") is None


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "gqe-reproduce", "version": 9, "cells": {}}'])
def test_a_broken_or_foreign_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(InputError, match=r"r\.json") as refused:
        CellStore(tmp_path / "r.json")
    assert "\n" not in str(refused.value)


def test_a_damaged_cell_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(
        '{"format": "gqe-reproduce", "version": 1, "cells": {"x": {"scores": 3}}}'
    )
    with pytest.raises(InputError, match="'x' is damaged"):
        CellStore(tmp_path / "r.json").get("x")


def test_any_change_of_data_changes_the_checksum() -> None:
    data = planted("a", 0)
    known = checksum(data)
    assert checksum(planted("another name", 0)) == known
    vectors = data.database.copy()
    vectors[7, 3] += 1e-3
    truth = {**data.ground_truth, "gnd": [dict(entry) for entry in data.ground_truth["gnd"]]}
    truth["gnd"][2]["hard"] = truth["gnd"][2]["hard"][:-1]
    changed = [
        replace(data, database=vectors),
        replace(data, queries=data.queries[::-1]),
        replace(data, ground_truth=truth),
        replace(data, ground_truth=(np.arange(6), np.zeros(60, int))),
    ]
    sums = {checksum(each) for each in changed}
    assert len(sums | {known}) == 5
