"""Pickles are read as data; nothing in them is ever run."""

from __future__ import annotations

import collections
import contextlib
import datetime
import math
import os
import pickle
import struct
import subprocess
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gqe.errors import InputError
from gqe.formats import safe_pickle


def load(folder: Path, content: bytes) -> object:
    path = folder / "a.pkl"
    path.write_bytes(content)
    return safe_pickle.load(path)


def same(left: object, right: object) -> bool:
    """Equality with types, nan, and array contents."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return left == right


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.binary().map(bytearray)
    | st.complex_numbers(allow_nan=False)
    | st.sampled_from(
        [np.float32(1.5), np.int64(-3), np.bool_(True), np.float16(2), np.str_("é"), np.bytes_(b"a")]
    )
)
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text()) | st.none() | st.binary()
arrays = st.sampled_from(
    [np.dtype(t) for t in ("f4", "f8", ">f4", ">i8", "i2", "u1", "?", "c8", "f2", "U3", "S2")]
).flatmap(
    lambda dtype: st.sampled_from([(0,), (3,), (2, 3), (), (2, 0, 3), (1, 2, 2)]).map(
        lambda shape: np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    )
)
values = st.recursive(
    scalars | arrays | arrays.map(np.asfortranarray),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.frozensets(keys)
    ),
    max_leaves=12,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=values, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
@example(value=2**300, protocol=2)
@example(value=b"", protocol=2)
@example(value=[{1, 2}, frozenset({3})], protocol=4)
@example(value=[{1, 2}, frozenset({3})], protocol=2)
@example(value=list(range(3000)), protocol=0)
def test_plain_data_is_read_like_pickle_reads_it(tmp_path, value, protocol):
    assert same(load(tmp_path, pickle.dumps(value, protocol)), value)


@pytest.mark.parametrize("protocol", range(6))
def test_things_referred_to_twice_stay_one(tmp_path, protocol):
    array, names = np.arange(3.0), ["a"]
    found = load(tmp_path, pickle.dumps({"a": array, "b": [array, (names, array)], "c": names}, protocol))
    assert found["a"] is found["b"][0] is found["b"][1][1]
    assert found["c"] is found["b"][1][0]
    found["a"][0] = 7  # arrays own their memory
    assert found["b"][0][0] == 7


def test_spellings_of_numpy_1_and_2(tmp_path):
    value = {"a": np.arange(6.0).reshape(2, 3), "b": np.float32(3)}
    for protocol in range(4):
        new = pickle.dumps(value, protocol)
        old = new.replace(b"numpy._core.", b"numpy.core.")
        if not np.__version__.startswith("1."):
            assert old != new
        assert same(load(tmp_path, old), value)


def test_pickles_of_python_2(tmp_path):
    # As written by Python 2 with protocol 0 (text instructions) and 2 (short strings).
    data = np.array([1.0, -2.5], "<f8").tobytes()
    state_0 = (
        b"(I1\n(I2\ntp4\ncnumpy\ndtype\n(S'f8'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\nS"
        + repr(data)[1:].encode()
        + b"\ntb."
    )
    array_0 = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR" + state_0
    np.testing.assert_array_equal(load(tmp_path, array_0), [1.0, -2.5])
    state_2 = (
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89U"
        + bytes([len(data)])
        + data
        + b"tb."
    )
    array_2 = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R" + state_2
    np.testing.assert_array_equal(load(tmp_path, array_2), [1.0, -2.5])
    assert load(tmp_path, b"(lp0\nS'all_souls'\np1\naS'caf\\xe9'\naI01\naL5L\na.") == [
        "all_souls",
        "café",
        True,
        5,
    ]
    assert load(tmp_path, b"\x80\x02]q\x00(U\x03abcT\x02\x00\x00\x00\xe9\xe8e.") == ["abc", "éè"]


class Bomb:
    """Creates the sentinel when unpickled by anything less careful."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.function, self.arguments


class WithState:
    pass


def bombs(sentinel: Path) -> dict[str, object]:
    touch = f"touch {sentinel}"
    code = f"open({str(sentinel)!r}, 'w')"
    system = Bomb(os.system, touch)
    objects = np.empty(1, object)
    objects[0] = system
    nested_objects = np.empty((1, 1), object)
    nested_objects[0, 0] = [objects]
    structured = np.empty(1, [("x", object)])
    structured[0]["x"] = system
    instance = WithState()
    instance.attribute = system
    return {
        "system": system,
        "eval": Bomb(eval, code),
        "exec": Bomb(exec, code),
        "open": Bomb(open, str(sentinel), "w"),
        "popen": Bomb(subprocess.Popen, ["touch", str(sentinel)]),
        "in a list": [1, [system]],
        "in a dictionary": {"gnd": [{"easy": system}]},
        "in a set": {Bomb(os.system, touch)},
        "as a key": {Bomb(os.system, touch): 1},
        "in an object array": objects,
        "in an object array in an object array": nested_objects,
        "in a structured array": structured,
        "in an object's state": instance,
        "map": Bomb(map, eval, [code]),
        "getattr": Bomb(getattr, "x", "upper"),
        "import": Bomb(__import__, "os"),
        "np.load": Bomb(np.load, str(sentinel)),
        "ordered": collections.OrderedDict(a=1),
        "datetime": datetime.datetime(2020, 1, 1),
        "function": os.system,
        "class": dict,
        "memmap": np.memmap,
        "masked": np.ma.array([1], mask=[True]),
        "record": np.rec.array([(1,)], dtype=[("a", "i4")]),
        "dtype": np.dtype("f4"),
        "dates": np.array(["2020"], "M8[Y]"),
        "range": range(3),
        "slice": slice(3),
        "ellipsis": ...,
    }


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", bombs(Path("x")))
def test_nothing_in_a_pickle_is_run(tmp_path, name, protocol):
    sentinel = tmp_path / "sentinel"
    content = pickle.dumps(bombs(sentinel)[name], protocol)
    with pytest.raises(InputError, match=r"a\.pkl: this pickle is refused: it ") as caught:
        load(tmp_path, content)
    assert "\n" not in str(caught.value)
    assert not sentinel.exists()


def test_the_bombs_do_go_off_elsewhere(tmp_path):
    sentinel = tmp_path / "sentinel"
    for name in ("system", "eval", "in an object array", "in an object array in an object array"):
        pickle.loads(pickle.dumps(bombs(sentinel)[name]))
        assert sentinel.exists()
        sentinel.unlink()


def short_string(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'touch sentinel'\ntR.",
        b"\x80\x04"
        + short_string("os")
        + short_string("system")
        + b"\x93"
        + short_string("touch sentinel")
        + b"\x85R.",
        b"(S'touch sentinel'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'touch sentinel'\no.",  # OBJ
        b"cos\nsystem\n)\x81.",  # NEWOBJ
        b"cos\nsystem\n)}\x92.",  # NEWOBJ_EX
        b"Psomething\n.",  # PERSID
        b"N\x51.",  # BINPERSID
        b"\x82\x01.",  # EXT1
        b"\x97.",  # NEXT_BUFFER
        b"cnumpy\ndtype\n(S'O'\nI0\nI1\ntR.",
        b"cnumpy\ndtype\n(S'f4,O'\nI0\nI1\ntR.",
        b"cnumpy\ndtype\n(S'(1000000,1000000)f4'\nI0\nI1\ntR.",
        b"c__builtin__\ngetattr\n(N S'x'\ntR.",
        b"cbuiltins\nbytearray\n(I99999999999\ntR.",  # would reserve that many bytes
        b"cbuiltins\nbytes\n(I99999999999\ntR.",
        b"c_codecs\nencode\n(Vx\nVrot13\ntR.",
        b"cnumpy\nndarray\n(I9\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I0\ntS'b'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n}S'__defaults__'\nNsb.",  # state set on a function
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O'\nI0\nI1\ntRI5\ntR.",
        b"\x80\x05cnumpy.core.multiarray\nscalar.__globals__\n.",
        b"cnumpy\n__builtins__.eval\n.",
    ],
)
def test_handmade_attacks_are_refused(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="this pickle is refused"):
        load(tmp_path, content)
    assert not (tmp_path / "sentinel").exists()


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
FLOAT = b"cnumpy\ndtype\n(S'f4'\nI0\nI1\ntR"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (FLOAT + b"(I3\nS'x'\nNNNI-1\nI-1\nI0\ntb.", "description of an array's type is broken"),
        (FLOAT + b"I3\nb.", "description of an array's type is broken"),
        (FLOAT + b"(I3\nS'<'\nNS'a'\nNI-1\nI-1\nI0\ntb.", "named fields"),
        (RECONSTRUCT + b".", "array without data"),
        (RECONSTRUCT + b"(I1\n(I1\nttb.", "description of an array is broken"),
        (RECONSTRUCT + b"(I1\n(I1\nt" + FLOAT + b"I00\n(lNatb.", "array of Python objects"),
        (RECONSTRUCT + b"(I1\n(I1\ntNI00\nS'abcd'\ntb.", "array of Python objects"),
        (RECONSTRUCT + b"(I1\n(I-1\nt" + FLOAT + b"I00\nS''\ntb.", "shape of an array is broken"),
        (RECONSTRUCT + b"(I1\nI1\n" + FLOAT + b"I00\nS'abcd'\ntb.", "shape of an array is broken"),
        (b"cbuiltins\nset\n(Vabc\ntR.", "a set out of something that is not a list"),
        (b"NNa.", "a list was expected"),
        (b"g7\n.", "do not fit together"),
        (b"h\x07.", "do not fit together"),
        (b"}(Nu.", "a key has no value"),
        (b"Sabc\n.", "text without quotes"),
        (b"2.", "not a readable pickle"),
        (b"\x80\x63N.", "protocol 99"),
    ],
)
def test_instructions_that_do_not_fit(tmp_path, content, reason):
    with pytest.raises(InputError, match=reason):
        load(tmp_path, content)


def test_instructions_that_python_writes_rarely(tmp_path):
    assert load(tmp_path, b"(I1\nI2\nd.") == {1: 2}
    assert load(tmp_path, b"}I1\nI2\ns.") == {1: 2}
    assert load(tmp_path, b"(I1\nI2\nt0N.") is None
    assert load(tmp_path, b"N(I1\nI2\n1.") is None
    assert load(tmp_path, b"I1\n2\x86.") == (1, 1)


def test_array_types_that_lie_about_their_size(tmp_path):
    good = pickle.dumps(np.arange(3, dtype="<f4"), 2)
    assert same(load(tmp_path, good), np.arange(3, dtype="<f4"))
    for old, new in [
        (b"f4", b"f8"),
        (b"f4", b"i1"),
        (b"K\x03\x85", b"K\x09\x85"),
        (b"K\x03\x85", b"K\x02\x85"),
    ]:
        assert old in good
        with pytest.raises(InputError, match="bytes of data"):
            load(tmp_path, good.replace(old, new, 1))


def test_deep_nesting_is_refused_not_a_crash(tmp_path):
    deep_list = b"]" * 100_000 + b"a" * 99_999 + b"."
    deep_tuple = b")" + b"\x85" * 200_000 + b"."
    deep_key = b"})" + b"\x85" * 200_000 + b"Ns."  # hashing this would exhaust the stack
    for content in (deep_list, deep_tuple, deep_key):
        with pytest.raises(InputError, match=r"nested more than 100 deep|as a key"):
            load(tmp_path, content)
    assert load(tmp_path, b"]" * 50 + b"a" * 49 + b".") is not None


def test_a_thing_that_contains_itself_is_refused(tmp_path):
    endless: list[object] = []
    endless.append(endless)
    round_tuple: tuple[object, ...] = ([],)
    round_tuple[0].append(round_tuple)
    for value in (endless, round_tuple, {"a": endless}):
        with pytest.raises(InputError, match="contains itself"):
            load(tmp_path, pickle.dumps(value, 4))


def test_memory_stays_in_proportion_to_the_file(tmp_path):
    big = struct.pack("<I", 2**32 - 1)
    long = struct.pack("<Q", 2**62)
    doubled = b"]q\x00" + b"".join(
        b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(60)
    )
    text = b"X" + struct.pack("<I", 1_000_000) + b"x" * 200_000 + b"q\x00"
    encode = b"c_codecs\nencode\nq\x01"
    contents = {
        "a memo index": b"Nr" + big + b".",
        "a length of text": b"X" + big + b"x.",
        "a length of bytes": b"\x8e" + long + b"x.",
        "a length of a bytearray": b"\x96" + long + b"x.",
        "a frame": b"\x80\x04\x95" + long + b"N.",
        "a number of bytes of a number": b"\x8b" + struct.pack("<i", 2**31 - 1) + b"x.",
        "a negative length": b"T" + struct.pack("<i", -5) + b"x.",
        "lists of lists twice": doubled + b".",
        "the same text again and again": text + encode + b"h\x01h\x00\x85R" * 10_000 + b".",
    }
    for content in contents.values():
        tracemalloc.start()
        began = time.perf_counter()
        with contextlib.suppress(InputError):
            load(tmp_path, content)
        assert tracemalloc.get_traced_memory()[1] < 50e6
        tracemalloc.stop()
        assert time.perf_counter() - began < 5


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(min_size=1, max_size=200))
def test_garbage_raises_nothing_but_input_error(tmp_path, content):
    with contextlib.suppress(InputError):
        load(tmp_path, content)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_cut_anywhere_is_refused(tmp_path, protocol):
    value = {"imlist": ["a", "é"], "gnd": [{"easy": [1, 2, 300], "bbx": [1.5, None], "x": np.arange(3)}]}
    content = pickle.dumps(value, protocol)
    for length in range(1, len(content)):
        with pytest.raises(InputError, match=r"a\.pkl"):
            load(tmp_path, content[:length])


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        safe_pickle.load(tmp_path / "absent.pkl")
    with pytest.raises(InputError, match="is empty"):
        load(tmp_path, b"")
    with pytest.raises(InputError, match="is a folder"):
        safe_pickle.load(tmp_path)


def shared(depth: int, wrap: bytes) -> bytes:
    """A list (tuple) of twice the same list (tuple) of twice the same one and so on."""
    start = b"]" if wrap == b"l" else b")"
    return start + b"".join(b"q%c0(h%ch%c%c" % (i, i, i, ord(wrap)) for i in range(depth))


ENDLESS = {
    "shown as the type of an array": b"\x80\x02cnumpy\ndtype\n" + shared(90, b"l") + b"\x85R.",
    "shown as a module": b"\x80\x04" + shared(90, b"l") + b"\x8c\x01x\x93.",
    "hashed as a module": b"\x80\x04" + shared(90, b"t") + b"\x8c\x01x\x93.",
    "hashed as an encoding": b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00a" + shared(90, b"t") + b"tR.",
    "walked through": b"\x80\x02" + shared(90, b"l") + b".",
    "deep as a module": b"\x80\x04)" + b"\x85" * 200_000 + b"\x8c\x01x\x93.",
    "deep": b"\x80\x04)" + b"\x85" * 200_000 + b".",
    "deep lists": b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_file_that_stands_for_endless_work_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="this pickle is refused"):
        load(tmp_path, ENDLESS[name])


def test_shapes_of_enormous_numbers_are_refused(tmp_path):
    number = b"\x8b" + struct.pack("<i", 40_000) + b"\x7f" * 40_000
    array = b"\x80\x04cnumpy.core.numeric\n_frombuffer\n(C\x04abcdcnumpy\ndtype\n(X\x02\x00\x00\x00f4tR("
    with pytest.raises(InputError, match="shape of an array is broken"):
        load(tmp_path, array + number * 20 + b"tX\x01\x00\x00\x00CtR.")


def test_numbers_made_to_have_the_same_hash_are_refused(tmp_path):
    keys = (pickle.dumps(number * (2**61 - 1), 2)[2:-1] + b"N" for number in range(1, 20_000))
    with pytest.raises(InputError, match="neither text nor whole numbers"):
        load(tmp_path, b"\x80\x02(" + b"".join(keys) + b"d.")
    assert len(load(tmp_path, pickle.dumps(dict.fromkeys(range(20000), 0)))) == 20_000
    assert len(load(tmp_path, pickle.dumps({(number, 1): 0 for number in range(5_000)}))) == 5_000
