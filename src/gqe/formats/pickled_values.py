"""What a pickle may ask to be made: a handful of plain values and NumPy arrays, built here and nowhere else.

A pickle names functions and has them called. None of the named functions is ever imported or called: each
name known below stands for a function of this file that checks its arguments and builds the value from bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gqe.formats.checks import Array

_DEEPEST = 100
# Of keys whose hashes a file can choose.
_MOST_ODD_KEYS = 10_000


class Refused(Exception):
    """The pickle asks for something that is not plain data; the message says what."""


class Mark:
    """Where on the machine's stack the items of a container begin."""


@dataclass(frozen=True, slots=True)
class Named:
    """A name the pickle mentioned, and what calling it builds here."""

    name: str
    build: Callable[..., Any] | None


class PendingDtype:
    """A NumPy type whose byte order is still to come."""

    # Numbers and fixed-length text only: no objects, no fields, no sub-arrays.
    _PLAIN = re.compile(r"[<>|=]?(\?|b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[SU][1-9][0-9]{0,8})")

    def __init__(self, text: object) -> None:
        if not isinstance(text, str) or not self._PLAIN.fullmatch(text):
            shown = repr(text[:60]) if isinstance(text, str) else type(text).__name__
            raise Refused(f"it holds an array of type {shown}, only numbers and text are read")
        self.value = np.dtype(text)

    def set_state(self, state: object) -> None:
        """Take the byte order; anything beyond it makes the type one of fields or sub-arrays."""
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "|", "="):
            raise ValueError("the description of an array's type is broken")
        if any(part is not None for part in state[2:5]):
            raise Refused("it holds an array with named fields, only numbers and text are read")
        self.value = self.value.newbyteorder(state[1])


class PendingArray:
    """An array whose shape, type and bytes are still to come."""

    value: Array | None = None

    def set_state(self, state: object) -> None:
        """Take shape, type and bytes."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("the description of an array is broken")
        _, shape, dtype, fortran, data = state
        self.value = _array(data, dtype, shape, "F" if fortran else "C")


def named(module: object, name: object) -> Named:
    """Look up a name the pickle mentions; anything that is not plain data is refused here."""
    # Anything but text is neither hashed nor shown: a small file can make that endless.
    if not isinstance(module, str) or not isinstance(name, str):
        raise Refused("it asks to run something without a name, only plain data is read")
    if (module, name) not in _KNOWN:
        raise Refused(f"it asks to run {module[:60]}.{name[:60]}, only plain data is read")
    return _KNOWN[module, name]


def hashable(value: Any, size: int) -> Any:
    """Return a key of a dictionary or member of a set of this size: a plain value or a flat tuple of them.

    Deeper tuples are refused because hashing them can exhaust the stack of the interpreter. Many numbers can
    be made to have the same hash, by which a small file would take hours.
    """
    if isinstance(value, str | bytes | None) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    simple = (str, bytes, int, float, complex, type(None), np.generic)
    if not isinstance(value, simple) and not (
        type(value) is tuple and all(isinstance(part, simple) for part in value)
    ):
        raise Refused(f"it uses a {type(value).__name__} as a key")
    if size > _MOST_ODD_KEYS:
        raise Refused(f"it has more than {_MOST_ODD_KEYS} keys that are neither text nor whole numbers")
    return value


class Finishing:
    """Puts arrays in the place of what stood for them.

    Lists in a pickle can hold the same list many times over, and so on: a few hundred bytes then stand for
    more than any memory holds, once they are walked through. So what is walked through is counted.

    Args:
        most: values in all, counted as often as they occur.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._done: dict[int, tuple[Any, int] | None] = {}

    def of(self, value: Any) -> Any:
        """The finished value."""
        return self._finished(value, 0)[0]

    def _finished(self, value: Any, depth: int) -> tuple[Any, int]:
        """The finished value, and how many values it holds."""
        if isinstance(value, PendingArray):
            if value.value is None:
                raise ValueError("it holds an array without data")
            return value.value, 1
        if isinstance(value, Named | PendingDtype | Mark):
            raise Refused("it holds a function or a type, only plain data is read")
        if type(value) not in (list, tuple, dict):
            return value, 1
        if depth > _DEEPEST:
            raise Refused(f"it is nested more than {_DEEPEST} deep")
        if id(value) in self._done:
            known = self._done[id(value)]
            if known is None:
                raise Refused("it contains itself")
            return known
        self._done[id(value)] = None  # begun
        held = value.values() if type(value) is dict else value
        parts = [self._finished(part, depth + 1) for part in held]
        count = 1 + sum(size for _, size in parts)
        if count > self._most:
            raise Refused("it uses the same data over and over")
        result: Any = value
        if type(value) is list:
            value[:] = [part for part, _ in parts]
        elif type(value) is dict:
            value.update(zip(value, [part for part, _ in parts], strict=True))
        else:
            result = tuple(part for part, _ in parts)
        self._done[id(value)] = result, count
        return result, count


def _array(data: object, dtype: object, shape: object, order: Any) -> Array:
    if isinstance(data, str):  # text of Python 2, where bytes and text were one
        data = data.encode("latin-1")
    if not isinstance(dtype, PendingDtype) or not isinstance(data, bytes | bytearray):
        raise Refused("it holds an array of Python objects, only numbers and text are read")
    if not isinstance(shape, tuple) or len(shape) > 32:
        raise ValueError("the shape of an array is broken")
    if not all(type(length) is int and 0 <= length < 2**62 for length in shape):
        raise ValueError("the shape of an array is broken")
    count = math.prod(shape)
    if count * dtype.value.itemsize != len(data):
        raise ValueError(f"an array of shape {shape} and type {dtype.value} has {len(data)} bytes of data")
    # The copy owns its memory and can be written to.
    return np.ndarray(shape, dtype.value, buffer=data, order=order).copy(order="K")


def _reconstruct(kind: object, shape: object, code: object) -> PendingArray:
    if kind is not _NDARRAY:
        raise Refused("it holds a variant of an array, only plain arrays are read")
    return PendingArray()


def _dtype(text: object, align: object = False, copy: object = True) -> PendingDtype:
    return PendingDtype(text)


def _scalar(dtype: object, data: object = b"") -> Any:
    return _array(data, dtype, (), "C")[()]


def _frombuffer(data: object, dtype: object, shape: object, order: object) -> Array:
    return _array(data, dtype, shape, "F" if order == "F" else "C")


def _encode(text: object, encoding: object = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise Refused("it asks for another encoding than Latin-1")
    return text.encode("latin-1")


def _bytes(data: object = b"", encoding: object = "latin-1") -> bytes:
    if isinstance(data, str):
        return _encode(data, encoding)
    # A number here would be a length to allocate, a list would be iterated.
    if not isinstance(data, bytes):
        raise Refused("it makes bytes out of something else")
    return data


def _set(members: Iterable[Any] = ()) -> set[Any]:
    if not isinstance(members, list | tuple):
        raise Refused("it makes a set out of something that is not a list")
    return {hashable(member, len(members)) for member in members}


def _complex(real: float, imaginary: float) -> complex:
    return complex(float(real), float(imaginary))


_NDARRAY = Named("numpy.ndarray", None)

_BUILDERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}
for _core in ("numpy.core", "numpy._core"):  # the names of NumPy 1 and 2
    _BUILDERS[f"{_core}.multiarray", "_reconstruct"] = _reconstruct
    _BUILDERS[f"{_core}.multiarray", "scalar"] = _scalar
    _BUILDERS[f"{_core}.numeric", "_frombuffer"] = _frombuffer
for _builtins in ("builtins", "__builtin__"):  # the names of Python 3 and 2
    _BUILDERS[_builtins, "set"] = _set
    _BUILDERS[_builtins, "frozenset"] = lambda members=(): frozenset(_set(members))
    _BUILDERS[_builtins, "bytes"] = _bytes
    _BUILDERS[_builtins, "bytearray"] = lambda data=b"", encoding="latin-1": bytearray(_bytes(data, encoding))
    _BUILDERS[_builtins, "complex"] = _complex

_KNOWN: dict[tuple[object, object], Named] = {
    ("numpy", "ndarray"): _NDARRAY,
    **{(module, name): Named(f"{module}.{name}", build) for (module, name), build in _BUILDERS.items()},
}
