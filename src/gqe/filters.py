"""Filters on metadata: one grammar for indexes and vector databases.

`{"year": 2024}`, `{"year": [2023, 2024]}`, `{"year": {"gte": 2020, "lt": 2025}}`: all conditions must hold.
An index evaluates them on its metadata; each vector database compiles them to a query of its own, in which
values are never part of the text unescaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gqe.errors import InputError, short_repr
from gqe.formats.checks import one_line, optional_module

BOUNDS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_ARROW_FUNCTIONS = {"gt": "greater", "gte": "greater_equal", "lt": "less", "lte": "less_equal"}


class Condition(NamedTuple):
    """One field: it must be one of `values`, or lie within `bounds` ("gte" and the like to a value)."""

    field: str
    values: tuple[Any, ...] | None
    bounds: dict[str, Any]


Conditions = Sequence[Condition]


def parse_filter(filter: object, *, scalars: bool = True) -> list[Condition]:
    """Check a filter as users write it.

    Args:
        filter: {field: value, list of values, or bounds by name}; None for no filter.
        scalars: refuse values that are no texts, finite numbers or truth values, as not every database has
            others.

    Example:
        >>> parse_filter({"year": {"gte": 2020}})
        [Condition(field='year', values=None, bounds={'gte': 2020})]
    """
    if filter is None:
        return []
    if not isinstance(filter, Mapping) or not all(isinstance(field, str) and field for field in filter):
        raise InputError(f'filter: expected {{"field": value}}, got {short_repr(filter)}')
    conditions = [_condition(field, wanted) for field, wanted in filter.items()]
    for field, values, bounds in conditions if scalars else ():
        for value in (*(values or ()), *bounds.values()):
            finite = not isinstance(value, float) or math.isfinite(value)
            if not isinstance(value, str | int | float | bool) or not finite:
                raise InputError(
                    f"filter: {field}: expected texts, numbers or truth values, got {short_repr(value)}"
                )
    return conditions


def _condition(field: str, wanted: Any) -> Condition:
    if isinstance(wanted, Mapping):
        if not wanted or not set(wanted) <= set(BOUNDS):
            raise InputError(f"filter: {field}: bounds can be {', '.join(BOUNDS)}, got {short_repr(wanted)}")
        return Condition(field, None, {name: _python_value(value) for name, value in wanted.items()})
    several = isinstance(wanted, list | tuple | set | frozenset | np.ndarray)
    return Condition(field, tuple(_python_value(value) for value in (wanted if several else [wanted])), {})


def _python_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def unknown_field(field: str, known: Sequence[str]) -> InputError:
    """The error for a field that does not exist."""
    there = f"; there are {', '.join(sorted(known))}" if known else ""
    return InputError(f"filter: no field {field!r}{there}")


def filter_mask(conditions: Conditions, table: Any) -> np.ndarray[Any, Any]:
    """(n,) bool, the rows of a pyarrow Table on which all conditions hold; a missing value meets no bound."""
    pa, pc = optional_module("pyarrow", "metadata"), optional_module("pyarrow.compute", "metadata")
    mask = np.ones(table.num_rows, dtype=bool)
    for field, values, bounds in conditions:
        if field not in table.column_names:
            raise unknown_field(field, table.column_names)
        column, kind = table.column(field), table.schema.field(field).type
        try:
            if values is not None:
                options = pa.array(list(values)).cast(kind) if values else pa.array([], kind)
                mask &= np.asarray(pc.is_in(column, value_set=options)).astype(bool)
            for name, bound in bounds.items():
                scalar = pa.scalar(bound)
                number = pa.types.is_integer(scalar.type) or pa.types.is_floating(scalar.type)
                if not (number and pa.types.is_integer(kind)):  # else 2.5 and 1000 would not fit an int8
                    scalar = scalar.cast(kind)
                within = pc.call_function(_ARROW_FUNCTIONS[name], [column, scalar])
                mask &= np.asarray(pc.fill_null(within, False)).astype(bool)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            wanted = bounds or (values[0] if values and len(values) == 1 else list(values or ()))
            problem = f"{short_repr(wanted)} does not fit the column {field!r}"
            raise InputError(f"filter: {problem} ({one_line(error)})") from None
    return mask
