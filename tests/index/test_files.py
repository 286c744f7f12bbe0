"""The checksum of a file does not depend on how it was written."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gqe.index import files


def by_hand(content: bytes, piece: int) -> str:
    parts = [content[at : at + piece] for at in range(0, len(content), piece)] or [b""]
    digests = [hashlib.blake2b(part, digest_size=16).digest() for part in parts]
    return hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()


@given(cuts=st.lists(st.integers(0, 40), max_size=8), length=st.integers(0, 40))
def test_a_checksum_does_not_depend_on_the_portions(cuts: list[int], length: int) -> None:
    content = bytes(range(length))
    ends = [0, *sorted(min(cut, length) for cut in cuts), length]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_PIECE", 8)
        checksum = files.Checksum()
        for start, stop in pairwise(ends):
            checksum.update(content[start:stop])
            assert checksum.hexdigest() == by_hand(content[:stop], 8)


def test_one_changed_byte_changes_it() -> None:
    content = bytearray(np.random.default_rng(0).bytes(3 * files._PIECE + 5))
    before = files.Checksum()
    before.update(memoryview(content))
    assert before.hexdigest() == by_hand(bytes(content), files._PIECE)
    for place in (0, files._PIECE, 3 * files._PIECE + 4):
        content[place] ^= 1
        after = files.Checksum()
        after.update(memoryview(content))
        assert after.hexdigest() != before.hexdigest()
        content[place] ^= 1


def test_a_written_array_has_the_record_of_its_file(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(700, 300)).astype(np.float32)
    for at in (0, 1, 350):  # written at once, or gone on with
        path = tmp_path / f"{at}.npy"
        first = files.ArrayWriter(path, array.dtype, array.shape)
        first.append(array[:at])
        first.flush()
        first.append(array[at : at + 20])  # not noted, so it is cut off
        first.abandon()
        if not at:
            with pytest.raises(FileExistsError):  # it might be anybody's
                files.ArrayWriter(path, array.dtype, array.shape)
            path.unlink()
        writer = files.ArrayWriter(path, array.dtype, array.shape, at)
        for start in range(at, 700, 90):
            writer.append(array[start : start + 90])
        record = writer.record()
        assert record == files.record_of(path)  # others may read it already
        assert writer.close() == record
        np.testing.assert_array_equal(np.load(path), array)
