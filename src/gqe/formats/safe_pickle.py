"""Read pickle files as data.

A pickle is a list of instructions for a small stack machine, some of which call any function the file names.
This is such a machine without those: it knows the instructions for plain values and containers, and builds
NumPy arrays itself. Whatever a file contains, nothing of it is imported or run, and the memory it takes is in
proportion to its size. (Python's own machine, even restricted, reserves memory by numbers in the file.)
"""

from __future__ import annotations

import codecs
import mmap
import os
import struct
from collections.abc import Callable
from typing import Any

from gqe.errors import InputError
from gqe.formats.checks import existing_file, explaining
from gqe.formats.pickled_values import (
    Finishing,
    Mark,
    Named,
    PendingArray,
    PendingDtype,
    Refused,
    hashable,
    named,
)


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
    with explaining(found, "pickle"):
        try:
            with (
                found.open("rb") as stream,
                mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                return Finishing(8 * len(data)).of(_Machine(data).run())
        except Refused as error:
            raise InputError(f"{path}: this pickle is refused: {error}; store it as .json or .npz") from error


class _Machine:
    """Runs the harmless instructions of one pickle."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.used_for_building = 0

    def run(self) -> Any:
        while (code := self.take(1)) != b".":
            instruction = _INSTRUCTIONS.get(code)
            if instruction is None:
                raise Refused(f"it holds the instruction {code!r}, which is not for plain data")
            instruction(self)
        return self.pop()

    # Reading

    def take(self, length: int) -> bytes:
        taken = self.data[self.position : self.position + length]
        if len(taken) != length:
            raise ValueError("it ends too early")
        self.position += length
        return taken

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.position)
        if end < 0:
            raise ValueError("it ends too early")
        line = self.data[self.position : end]
        self.position = end + 1
        return line

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def counted(self, layout: str) -> bytes:
        length: int = self.number(layout)
        if length < 0:
            raise ValueError("it holds a negative length")
        return self.take(length)

    # The stack

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or isinstance(self.stack[-1], Mark):
            raise ValueError("its instructions do not fit together")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise ValueError(f"its instructions do not fit together: a {kind.__name__} was expected")
        return self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        for place in range(len(self.stack) - 1, -1, -1):
            if isinstance(self.stack[place], Mark):
                items = self.stack[place + 1 :]
                del self.stack[place:]
                return items
        raise ValueError("its instructions do not fit together")

    def pop_last(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def memoize(self, index: int) -> None:
        value = self.pop()
        self.memo[index] = value
        self.push(value)

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise ValueError("its instructions do not fit together")
        self.push(self.memo[index])

    # Containers and values

    def extend_list(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def extend_set(self, items: list[Any]) -> None:
        target = self.top(set)
        target.update(hashable(item, len(target) + len(items)) for item in items)

    def extend_dict(self, items: list[Any]) -> None:
        target = self.top(dict)
        target.update(_pairs(items, len(target)))

    def push_name(self, module: object, name: object) -> None:
        self.push(named(module, name))

    def call(self) -> None:
        function, arguments = self.pop_last(2)
        if not isinstance(function, Named) or function.build is None or type(arguments) is not tuple:
            raise Refused("it calls something that is not a function for plain data")
        self.account_for(arguments)
        self.push(function.build(*arguments))

    def set_state(self) -> None:
        state = self.pop()
        pending = self.pop()
        if not isinstance(pending, PendingArray | PendingDtype):
            raise Refused("it sets the state of an object that is not an array")
        self.account_for(state)
        pending.set_state(state)
        self.push(pending)

    def account_for(self, arguments: object) -> None:
        """Stop a small file that builds value after value from the same long text until memory is full."""
        if isinstance(arguments, tuple):
            self.used_for_building += sum(
                len(a) for a in arguments if isinstance(a, str | bytes | bytearray | list | tuple)
            )
        if self.used_for_building > 8 * len(self.data):
            raise Refused("it uses the same data over and over")


def _pairs(items: list[Any], already: int = 0) -> dict[Any, Any]:
    if len(items) % 2:
        raise ValueError("its instructions do not fit together: a key has no value")
    size = already + len(items) // 2
    return {hashable(key, size): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _frozen(items: list[Any]) -> frozenset[Any]:
    return frozenset(hashable(item, len(items)) for item in items)


def _integer(line: bytes) -> int | bool:
    return {b"00": False, b"01": True}.get(line, int(line))  # how protocols 0 and 1 write truth values


def _python_2_text(line: bytes) -> str:
    line = line.strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError("it holds text without quotes")
    return codecs.escape_decode(line[1:-1])[0].decode("latin-1")


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _utf8(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


_INSTRUCTIONS: dict[bytes, Callable[[_Machine], None]] = {
    # protocol and framing: nothing to do
    b"\x80": lambda m: _known_protocol(m.number("<B")),
    b"\x95": lambda m: m.number("<Q"),
    # numbers
    b"I": lambda m: m.push(_integer(m.line())),
    b"L": lambda m: m.push(int(m.line().removesuffix(b"L"))),
    b"F": lambda m: m.push(float(m.line())),
    b"J": lambda m: m.push(m.number("<i")),
    b"K": lambda m: m.push(m.number("<B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"G": lambda m: m.push(m.number(">d")),
    b"\x8a": lambda m: m.push(_signed(m.counted("<B"))),
    b"\x8b": lambda m: m.push(_signed(m.counted("<i"))),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    # text and bytes
    b"S": lambda m: m.push(_python_2_text(m.line())),
    b"T": lambda m: m.push(m.counted("<i").decode("latin-1")),
    b"U": lambda m: m.push(m.counted("<B").decode("latin-1")),
    b"V": lambda m: m.push(m.line().decode("raw-unicode-escape")),
    b"X": lambda m: m.push(_utf8(m.counted("<I"))),
    b"\x8c": lambda m: m.push(_utf8(m.counted("<B"))),
    b"\x8d": lambda m: m.push(_utf8(m.counted("<Q"))),
    b"B": lambda m: m.push(m.counted("<I")),
    b"C": lambda m: m.push(m.counted("<B")),
    b"\x8e": lambda m: m.push(m.counted("<Q")),
    b"\x96": lambda m: m.push(bytearray(m.counted("<Q"))),
    # containers
    b"]": lambda m: m.push([]),
    b"}": lambda m: m.push({}),
    b")": lambda m: m.push(()),
    b"\x8f": lambda m: m.push(set()),
    b"(": lambda m: m.push(Mark()),
    b"l": lambda m: m.push(m.pop_to_mark()),
    b"d": lambda m: m.push(_pairs(m.pop_to_mark())),
    b"t": lambda m: m.push(tuple(m.pop_to_mark())),
    b"\x85": lambda m: m.push(tuple(m.pop_last(1))),
    b"\x86": lambda m: m.push(tuple(m.pop_last(2))),
    b"\x87": lambda m: m.push(tuple(m.pop_last(3))),
    b"\x91": lambda m: m.push(_frozen(m.pop_to_mark())),
    b"a": lambda m: m.extend_list(m.pop_last(1)),
    b"e": lambda m: m.extend_list(m.pop_to_mark()),
    b"s": lambda m: m.extend_dict(m.pop_last(2)),
    b"u": lambda m: m.extend_dict(m.pop_to_mark()),
    b"\x90": lambda m: m.extend_set(m.pop_to_mark()),
    # the stack and the memo
    b"0": lambda m: _ignore(m.pop()),
    b"1": lambda m: _ignore(m.pop_to_mark()),
    b"2": lambda m: m.push(m.stack[-1]),
    b"p": lambda m: m.memoize(int(m.line())),
    b"q": lambda m: m.memoize(m.number("<B")),
    b"r": lambda m: m.memoize(m.number("<I")),
    b"\x94": lambda m: m.memoize(len(m.memo)),
    b"g": lambda m: m.recall(int(m.line())),
    b"h": lambda m: m.recall(m.number("<B")),
    b"j": lambda m: m.recall(m.number("<I")),
    # names and what is built through them; `named` lets only those of plain data pass
    b"c": lambda m: m.push_name(_utf8(m.line()), _utf8(m.line())),
    b"\x93": lambda m: m.push_name(*m.pop_last(2)),
    b"R": _Machine.call,
    b"b": _Machine.set_state,
}


def _known_protocol(version: int) -> None:
    if version > 5:
        raise ValueError(f"it is of protocol {version}, 0 to 5 are known")


def _ignore(value: object) -> None:
    pass
