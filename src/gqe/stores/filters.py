"""Filters on fields, in one form for all engines.

`{"year": 2024}`, `{"year": [2023, 2024]}`, `{"year": {"gte": 2020, "lt": 2025}}`: all conditions must hold.
Each engine compiles them to its own; values never become part of a query's text unescaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gqe.errors import InputError

BOUNDS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
Value = str | int | float | bool


class Condition(NamedTuple):
    """One field: it must be one of `values`, or lie within `bounds` ("gte" and the like to a value)."""

    field: str
    values: tuple[Value, ...] | None
    bounds: dict[str, Value]


Filter = Sequence[Condition]


def conditions(given: object) -> list[Condition]:
    """Check what the user gave.

    Example:
        >>> conditions({"year": {"gte": 2020}})
        [Condition(field='year', values=None, bounds={'gte': 2020})]
    """
    if given is None:
        return []
    if not isinstance(given, Mapping) or not all(isinstance(field, str) and field for field in given):
        raise InputError(f'filter: expected {{"field": value}}, got {given!r}')
    return [_condition(field, wanted) for field, wanted in given.items()]


def unknown_field(field: str, known: Sequence[str]) -> InputError:
    """What to say of a field that is not there."""
    there = f"; there are {', '.join(sorted(known))}" if known else ""
    return InputError(f"filter: no field {field!r}{there}")


def _condition(field: str, wanted: Any) -> Condition:
    if isinstance(wanted, Mapping):
        if not wanted or not set(wanted) <= set(BOUNDS):
            raise InputError(f"filter: {field}: bounds can be {', '.join(BOUNDS)}, got {wanted!r}")
        return Condition(field, None, {name: _value(field, value) for name, value in wanted.items()})
    listed = list(wanted) if isinstance(wanted, list | tuple | set | frozenset | np.ndarray) else [wanted]
    return Condition(field, tuple(_value(field, value) for value in listed), {})


def _value(field: str, value: Any) -> Value:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, str | int | float | bool) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise InputError(f"filter: {field}: expected texts, numbers or truth values, got {value!r}")
    return value
