"""One grammar of filters: what it means on a table is what a plain loop over the rows finds."""

from __future__ import annotations

import datetime
import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gqe
from gqe.errors import InputError
from gqe.filters import filter_mask, parse_filter

pa = pytest.importorskip("pyarrow")
OPERATORS = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
COLUMNS: dict[str, list[Any]] = {
    "year": [1999, 2000, None, 2001, 2003, 2000],
    "stars": [-1, 0, 1, 2, 100, None],
    "price": [0.5, 2.5, 1.0, None, 7.25, 2.0],
    "kind": ["a", "b", "c", "a", None, "ba"],
}
TABLE = pa.table(COLUMNS | {"stars": pa.array(COLUMNS["stars"], pa.int8())})
VALUES = {
    "year": st.integers(1998, 2004) | st.floats(1998, 2004),
    "stars": st.integers(-200, 1000) | st.floats(-2, 3),
    "price": st.floats(0, 8) | st.integers(0, 8),
    "kind": st.sampled_from(["a", "b", "ba", "z"]),
}


def expected(chosen: dict[str, dict[str, Any]]) -> list[bool]:
    marks = []
    for row in range(6):
        mark = True
        for field, bounds in chosen.items():
            value = COLUMNS[field][row]
            for name, bound in bounds.items():
                mark = mark and value is not None and OPERATORS[name](value, bound)
        marks.append(mark)
    return marks


@given(
    st.fixed_dictionaries(
        {},
        optional={
            field: st.dictionaries(st.sampled_from(sorted(OPERATORS)), values, min_size=1)
            for field, values in VALUES.items()
        },
    )
)
def test_bounds_are_those_of_a_loop(chosen: dict[str, dict[str, Any]]) -> None:
    mask = filter_mask(parse_filter(chosen), TABLE)
    assert mask.tolist() == expected(chosen)


def test_values_and_bounds_of_several_columns() -> None:
    chosen = {"kind": ["a", "b"], "year": {"gte": np.int64(2000)}, "price": 2.5}
    assert filter_mask(parse_filter(chosen), TABLE).tolist() == [False, True, *[False] * 4]
    assert not filter_mask(parse_filter({"year": []}), TABLE).any()
    assert filter_mask(parse_filter(None), TABLE).all()


def test_an_index_may_have_columns_that_json_has_not() -> None:
    days = [datetime.date(2020, 1, day) for day in (1, 2, 3)]
    table = pa.table({"day": days})
    later = parse_filter({"day": {"gt": days[0]}}, scalars=False)
    assert filter_mask(later, table).tolist() == [False, True, True]
    assert filter_mask(parse_filter({"day": {"lte": "2020-01-02"}}), table).tolist() == [True, True, False]
    with pytest.raises(InputError, match="day: expected texts, numbers or truth values"):
        parse_filter({"day": days[0]})


def test_an_index_takes_bounds(tmp_path: Path) -> None:
    table = np.eye(8)
    index = gqe.Index.build(table, "aqe-g", tmp_path / "index", metadata={"year": 1996 + np.arange(8)})
    found = index.search(table[0], 8, filter={"year": {"gte": 2000, "lt": 2003}})
    assert sorted(found.ids[found.ids >= 0].tolist()) == [4, 5, 6]


def test_examples() -> None:
    import doctest

    import gqe.filters

    assert doctest.testmod(gqe.filters) == (0, 1)
