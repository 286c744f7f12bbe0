"""Read pickle files as data.

A pickle is a list of instructions for a small stack machine, some of which call any function the file names.
This is such a machine without those: it knows the instructions for plain values and containers, and builds
NumPy arrays itself. Each function name it accepts stands for a function of this file that checks its
arguments and builds the value from bytes. Whatever a file contains, nothing of it is imported or run, and the
memory it takes is in proportion to its size. (Python's own machine, even restricted, reserves memory by
numbers in the file. Only its decoding of single instructions is used, from `pickletools`.)
"""

from __future__ import annotations

import codecs
import math
import mmap
import os
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats.checks import Array, existing_file, wrap_parse_errors

_MAX_DEPTH = 100
# Keys other than text and small integers: a file can choose their hashes.
_MAX_UNUSUAL_KEYS = 10_000
# Values in all, counted as often as they occur, per byte of the file.
_VALUES_PER_BYTE = 8
_MISFIT = "its instructions do not fit together"


def load(path: str | os.PathLike[str]) -> Any:
    """Read a pickle of plain containers, numbers, text and NumPy arrays; refuse any other.

    Text written by Python 2 is taken as Latin-1, the convention for pickles that hold NumPy arrays.

    Args:
        path: a pickle file of any protocol.

    Returns:
        The object, made of dict, list, tuple, set, frozenset, str, bytes, bytearray, numbers, None and NumPy
        arrays and scalars of numbers or text.

    Raises:
        InputError: the file is missing or broken, or asks for anything else. Nothing in it has been run.

    Example:
        >>> import pickle, tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "names.pkl"
        >>> _ = path.write_bytes(pickle.dumps({"imlist": ["a", "b"]}))
        >>> load(path)
        {'imlist': ['a', 'b']}
    """
    found = existing_file(path)
    with wrap_parse_errors(found, "pickle"):
        try:
            with found.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _ArrayFiller(_VALUES_PER_BYTE * len(data)).fill(_Machine(data).run())[0]
        except UnsafePickleError as error:
            raise InputError(f"{path}: this pickle is refused: {error}; store it as .json or .npz") from error


class UnsafePickleError(Exception):
    """The pickle asks for something that is not plain data; the message says what."""


class _Mark:
    """Where on the stack the items of a container begin."""


@dataclass(frozen=True, slots=True)
class _Function:
    """A function the pickle names; `build` is what calling it does here, None if it cannot be called."""

    build: Callable[..., Any] | None


class _Machine:
    """Runs the harmless instructions of one pickle."""

    def __init__(self, data: Any) -> None:
        self.data = data  # mapped file
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.bytes_used = 0

    def run(self) -> Any:
        while (code := self.data.read(1)) != b".":
            if not code:
                raise ValueError("it ends too early")
            opcode = _OPCODES.get(code)
            execute = _INSTRUCTIONS.get(opcode.name) if opcode is not None else None
            if opcode is None or execute is None:
                raise UnsafePickleError(f"it holds the instruction {code!r}, which is not for plain data")
            if opcode.name == "STRING":  # pickletools takes only ASCII
                execute(self, _python_2_text(self.data.readline()))
            else:
                execute(self, opcode.arg.reader(self.data) if opcode.arg is not None else None)
        return self.pop()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or isinstance(self.stack[-1], _Mark):
            raise ValueError(_MISFIT)
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise ValueError(f"{_MISFIT}: a {kind.__name__} was expected")
        return self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        for place in range(len(self.stack) - 1, -1, -1):
            if isinstance(self.stack[place], _Mark):
                items = self.stack[place + 1 :]
                del self.stack[place:]
                return items
        raise ValueError(_MISFIT)

    def pop_last(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def memoize(self, index: int) -> None:
        value = self.pop()
        self.memo[index] = value
        self.push(value)

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise ValueError(_MISFIT)
        self.push(self.memo[index])

    def extend_list(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def extend_set(self, items: list[Any]) -> None:
        target = self.top(set)
        target.update(_check_key(item, len(target) + len(items)) for item in items)

    def extend_dict(self, items: list[Any]) -> None:
        target = self.top(dict)
        target.update(_pairs(items, len(target)))

    def push_function(self, module: object, name: object) -> None:
        # Anything but text is neither hashed nor shown: a small file can make that endless.
        if not isinstance(module, str) or not isinstance(name, str):
            raise UnsafePickleError("it asks to run something without a name, only plain data is read")
        if (module, name) not in _FUNCTIONS:
            raise UnsafePickleError(f"it asks to run {module[:60]}.{name[:60]}, only plain data is read")
        self.push(_FUNCTIONS[module, name])

    def call(self) -> None:
        function, arguments = self.pop_last(2)
        if not isinstance(function, _Function) or function.build is None or type(arguments) is not tuple:
            raise UnsafePickleError("it calls something that is not a function for plain data")
        self.count_bytes(arguments)
        self.push(function.build(*arguments))

    def set_state(self) -> None:
        pending, state = self.pop_last(2)
        if not isinstance(pending, _PendingArray | _PendingDtype):
            raise UnsafePickleError("it sets the state of an object that is not an array")
        self.count_bytes(state)
        pending.set_state(state)
        self.push(pending)

    def count_bytes(self, arguments: object) -> None:
        """Stop a small file that builds value after value from the same long text until memory is full."""
        if isinstance(arguments, tuple):
            self.bytes_used += sum(
                len(part) for part in arguments if isinstance(part, str | bytes | bytearray | list | tuple)
            )
        if self.bytes_used > _VALUES_PER_BYTE * len(self.data):
            raise UnsafePickleError("it uses the same data over and over")


def _python_2_text(line: bytes) -> str:
    line = line.strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError("it holds text without quotes")
    return codecs.escape_decode(line[1:-1])[0].decode("latin-1")


def _check_protocol(machine: _Machine, version: int) -> None:
    if version > 5:
        raise ValueError(f"it is of protocol {version}, 0 to 5 are known")


def _pairs(items: list[Any], already: int = 0) -> dict[Any, Any]:
    if len(items) % 2:
        raise ValueError(f"{_MISFIT}: a key has no value")
    size = already + len(items) // 2
    return {_check_key(key, size): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _check_key(value: Any, size: int) -> Any:
    """Return a key of a dictionary or member of a set of this size: a plain value or a flat tuple of them.

    Deeper tuples are refused because hashing them can exhaust the stack of the interpreter. Many numbers can
    be made to have the same hash, by which a small file would take hours.
    """
    if isinstance(value, str | bytes | None) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    simple = (str, bytes, int, float, complex, type(None), np.generic)
    parts = value if type(value) is tuple else (value,)
    if not all(isinstance(part, simple) for part in parts):
        raise UnsafePickleError(f"it uses a {type(value).__name__} as a key")
    if size > _MAX_UNUSUAL_KEYS:
        raise UnsafePickleError(
            f"it has more than {_MAX_UNUSUAL_KEYS} keys that are neither text nor whole numbers"
        )
    return value


_OPCODES = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}
_VALUES = (  # their argument is the value
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
)
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], object]] = {
    "PROTO": _check_protocol,
    "FRAME": lambda m, size: None,
    **dict.fromkeys(_VALUES, _Machine.push),
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "EMPTY_SET": lambda m, _: m.push(set()),
    "MARK": lambda m, _: m.push(_Mark()),
    "LIST": lambda m, _: m.push(m.pop_to_mark()),
    "DICT": lambda m, _: m.push(_pairs(m.pop_to_mark())),
    "TUPLE": lambda m, _: m.push(tuple(m.pop_to_mark())),
    "TUPLE1": lambda m, _: m.push(tuple(m.pop_last(1))),
    "TUPLE2": lambda m, _: m.push(tuple(m.pop_last(2))),
    "TUPLE3": lambda m, _: m.push(tuple(m.pop_last(3))),
    "FROZENSET": lambda m, _: m.push(frozenset(_set(m.pop_to_mark()))),
    "APPEND": lambda m, _: m.extend_list(m.pop_last(1)),
    "APPENDS": lambda m, _: m.extend_list(m.pop_to_mark()),
    "SETITEM": lambda m, _: m.extend_dict(m.pop_last(2)),
    "SETITEMS": lambda m, _: m.extend_dict(m.pop_to_mark()),
    "ADDITEMS": lambda m, _: m.extend_set(m.pop_to_mark()),
    "POP": lambda m, _: m.pop(),
    "POP_MARK": lambda m, _: m.pop_to_mark(),
    "DUP": lambda m, _: m.push(m.stack[-1]),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.memoize),
    "MEMOIZE": lambda m, _: m.memoize(len(m.memo)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.recall),
    "GLOBAL": lambda m, names: m.push_function(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.push_function(*m.pop_last(2)),
    "REDUCE": lambda m, _: m.call(),
    "BUILD": lambda m, _: m.set_state(),
}


class _PendingDtype:
    """A NumPy type whose byte order is still to come."""

    # Numbers and fixed-length text only: no objects, no fields, no sub-arrays.
    _PLAIN = re.compile(r"[<>|=]?(\?|b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[SU][1-9][0-9]{0,8})")

    def __init__(self, text: object, align: object = False, copy: object = True) -> None:
        if not isinstance(text, str) or not self._PLAIN.fullmatch(text):
            shown = repr(text[:60]) if isinstance(text, str) else type(text).__name__
            raise UnsafePickleError(f"it holds an array of type {shown}, only numbers and text are read")
        self.value = np.dtype(text)

    def set_state(self, state: object) -> None:
        """Take the byte order; anything beyond it makes the type one of fields or sub-arrays."""
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "|", "="):
            raise ValueError("the description of an array's type is broken")
        if any(part is not None for part in state[2:5]):
            raise UnsafePickleError("it holds an array with named fields, only numbers and text are read")
        self.value = self.value.newbyteorder(state[1])


class _PendingArray:
    """An array whose shape, type and bytes are still to come."""

    value: Array | None = None

    def __init__(self, kind: object, shape: object, code: object) -> None:
        if kind is not _NDARRAY:
            raise UnsafePickleError("it holds a variant of an array, only plain arrays are read")

    def set_state(self, state: object) -> None:
        """Take shape, type and bytes."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("the description of an array is broken")
        _, shape, dtype, fortran, data = state
        self.value = _array(data, dtype, shape, "F" if fortran else "C")


def _array(data: object, dtype: object, shape: object, order: object) -> Array:
    if isinstance(data, str):  # text of Python 2, where bytes and text were one
        data = data.encode("latin-1")
    if not isinstance(dtype, _PendingDtype) or not isinstance(data, bytes | bytearray):
        raise UnsafePickleError("it holds an array of Python objects, only numbers and text are read")
    lengths = shape if isinstance(shape, tuple) else (None,)
    if len(lengths) > 32 or not all(type(length) is int and 0 <= length < 2**62 for length in lengths):
        raise ValueError("the shape of an array is broken")
    if math.prod(lengths) * dtype.value.itemsize != len(data):
        raise ValueError(f"an array of shape {lengths} and type {dtype.value} has {len(data)} bytes of data")
    # The copy owns its memory and can be written to.
    return np.ndarray(lengths, dtype.value, data, order="F" if order == "F" else "C").copy(order="K")


def _scalar(dtype: object, data: object = b"") -> Any:
    return _array(data, dtype, (), "C")[()]


def _bytes(data: object = b"", encoding: object = "latin-1") -> bytes:
    if isinstance(data, bytes):
        return data
    # A number here would be a length to allocate, a list would be iterated.
    if not isinstance(data, str) or encoding not in ("latin1", "latin-1"):
        raise UnsafePickleError("it makes bytes out of something else than Latin-1 text")
    return data.encode("latin-1")


def _set(members: object = ()) -> set[Any]:
    if not isinstance(members, list | tuple):
        raise UnsafePickleError("it makes a set out of something that is not a list")
    return {_check_key(member, len(members)) for member in members}


_NDARRAY = _Function(None)
_FUNCTIONS = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Function(_PendingDtype),
    ("_codecs", "encode"): _Function(_bytes),
}
for _core in ("numpy.core", "numpy._core"):  # the names of NumPy 1 and 2
    _FUNCTIONS[f"{_core}.multiarray", "_reconstruct"] = _Function(_PendingArray)
    _FUNCTIONS[f"{_core}.multiarray", "scalar"] = _Function(_scalar)
    _FUNCTIONS[f"{_core}.numeric", "_frombuffer"] = _Function(_array)
for _builtins in ("builtins", "__builtin__"):  # the names of Python 3 and 2
    _FUNCTIONS[_builtins, "set"] = _Function(_set)
    _FUNCTIONS[_builtins, "frozenset"] = _Function(lambda members=(): frozenset(_set(members)))
    _FUNCTIONS[_builtins, "bytes"] = _Function(_bytes)
    _FUNCTIONS[_builtins, "bytearray"] = _Function(lambda *arguments: bytearray(_bytes(*arguments)))
    _FUNCTIONS[_builtins, "complex"] = _Function(lambda real, imag: complex(float(real), float(imag)))


class _ArrayFiller:
    """Puts arrays in the place of what stood for them.

    Lists in a pickle can hold the same list many times over, and so on: a few hundred bytes then stand for
    more than any memory holds, once they are walked through. So what is walked through is counted.

    Args:
        max_values: values in all, counted as often as they occur.
    """

    def __init__(self, max_values: int) -> None:
        self._max_values = max_values
        self._done: dict[int, tuple[Any, int] | None] = {}

    def fill(self, value: Any, depth: int = 0) -> tuple[Any, int]:
        """The value with its arrays, and how many values it holds."""
        if isinstance(value, _PendingArray):
            if value.value is None:
                raise ValueError("it holds an array without data")
            return value.value, 1
        if isinstance(value, _Function | _PendingDtype | _Mark):
            raise UnsafePickleError("it holds a function or a type, only plain data is read")
        if type(value) not in (list, tuple, dict):
            return value, 1
        if depth > _MAX_DEPTH:
            raise UnsafePickleError(f"it is nested more than {_MAX_DEPTH} deep")
        if id(value) in self._done:
            known = self._done[id(value)]
            if known is None:
                raise UnsafePickleError("it contains itself")
            return known
        self._done[id(value)] = None  # begun
        parts = [self.fill(part, depth + 1) for part in (value.values() if type(value) is dict else value)]
        items, count = [part for part, _ in parts], 1 + sum(size for _, size in parts)
        if count > self._max_values:
            raise UnsafePickleError("it uses the same data over and over")
        result: Any = value
        if type(value) is list:
            value[:] = items
        elif type(value) is dict:
            value.update(zip(value, items, strict=True))
        else:
            result = tuple(items)
        self._done[id(value)] = result, count
        return result, count
