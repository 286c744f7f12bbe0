"""What a pickle may ask to be made: a handful of plain values and NumPy arrays, built here and nowhere else.

A pickle names functions and has them called. None of the named functions is ever imported or called: each
name known below stands for a function of this file that checks its arguments and builds the value from bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gqe.formats.checks import Array

_DEEPEST = 100


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
            raise Refused(f"it holds an array of type {text!r:.60}, only numbers and text are read")
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
    try:
        return _KNOWN[module, name]
    except (KeyError, TypeError):
        raise Refused(f"it asks to run {module!s:.60}.{name!s:.60}, only plain data is read") from None


def hashable(value: Any) -> Any:
    """Return a key of a dictionary or member of a set: a plain value or a flat tuple of them.

    Deeper tuples are refused because hashing them can exhaust the stack of the interpreter.
    """
    simple = (str, bytes, int, float, complex, type(None), np.generic)
    if isinstance(value, simple) or (
        type(value) is tuple and all(isinstance(part, simple) for part in value)
    ):
        return value
    raise Refused(f"it uses a {type(value).__name__} as a key")


def finished(value: Any, depth: int, done: dict[int, Any]) -> Any:
    """Put arrays in the place of what stood for them; `done` keeps the outcome for objects met again."""
    if isinstance(value, PendingArray):
        if value.value is None:
            raise ValueError("it holds an array without data")
        return value.value
    if isinstance(value, Named | PendingDtype | Mark):
        raise Refused("it holds a function or a type, only plain data is read")
    if type(value) not in (list, tuple, dict):
        return value
    if depth > _DEEPEST:
        raise Refused(f"it is nested more than {_DEEPEST} deep")
    if id(value) in done:
        if done[id(value)] is None:
            raise Refused("it contains itself")
        return done[id(value)]
    done[id(value)] = None  # begun
    result: Any = value
    if type(value) is list:
        value[:] = [finished(item, depth + 1, done) for item in value]
    elif type(value) is dict:
        for key in value:
            value[key] = finished(value[key], depth + 1, done)
    else:
        result = tuple(finished(item, depth + 1, done) for item in value)
    done[id(value)] = result
    return result


def _array(data: object, dtype: object, shape: object, order: Any) -> Array:
    if isinstance(data, str):  # text of Python 2, where bytes and text were one
        data = data.encode("latin-1")
    if not isinstance(dtype, PendingDtype) or not isinstance(data, bytes | bytearray):
        raise Refused("it holds an array of Python objects, only numbers and text are read")
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError("the shape of an array is broken")
    count = 1
    for length in shape:
        count *= length
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


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise Refused(f"it asks for the encoding {encoding!r:.60}")
    return text.encode("latin-1")


def _bytes(data: object = b"", encoding: str = "latin-1") -> bytes:
    if isinstance(data, str):
        return _encode(data, encoding)
    # A number here would be a length to allocate, a list would be iterated.
    if not isinstance(data, bytes):
        raise Refused("it makes bytes out of something else")
    return data


def _set(members: Iterable[Any] = ()) -> set[Any]:
    if not isinstance(members, list | tuple):
        raise Refused("it makes a set out of something that is not a list")
    return {hashable(member) for member in members}


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
