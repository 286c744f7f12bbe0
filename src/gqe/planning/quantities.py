"""Numbers as people write them: 100M items in, 410 GB and 3.6 h out."""

from __future__ import annotations

import math
import re

from gqe.errors import InputError

_SCALES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def parse_count(name: str, text: str) -> int:
    """A whole number such as 1200, 20k, 100M or 1.5B.

    Example:
        >>> parse_count("--items", "1.5B")
        1500000000
    """
    plain = text.replace(",", "").replace("_", "")
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]?)\s*", plain, re.ASCII)
    scale = None if found is None else _SCALES.get(found[2].upper())
    if found is None or scale is None:
        raise InputError(f"{name}: {text!r} is no number; write it as 1200, 20k, 100M or 1.5B")
    whole, _, part = found[1].partition(".")
    digits, unit = int(whole + part) * scale, int("1" + "0" * len(part))
    if digits % unit:
        raise InputError(f"{name}: {text!r} is not a whole number")
    value = digits // unit
    if not 1 <= value <= 10**13:
        raise InputError(f"{name}: {text!r} is out of range; give a number from 1 to 10T")
    return value


def as_bytes(value: float) -> str:
    """Bytes to three digits.

    Example:
        >>> as_bytes(409.6e9)
        '410 GB'
    """
    power = 0
    while value >= 999.5 and power < len(_BYTES) - 1:
        value, power = value / 1000, power + 1
    return f"{_digits(value)} {_BYTES[power]}"


def as_time(seconds: float) -> str:
    """Seconds in the unit that reads best.

    Example:
        >>> as_time(12_960)
        '3.60 h'
    """
    for unit, size, most in (("ms", 1e-3, 1), ("s", 1, 180), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 86_400)} days"


def as_operations(value: float) -> str:
    """A large number of operations to two digits, as a power of ten."""
    return "0" if value == 0 else f"{value:.1e}".replace("e+", "e")


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value) * 1.0005)))
    return f"{value:,.{min(places, 3)}f}"
