"""The check of row dimensions in .fvecs files too large to look at every row."""

from __future__ import annotations

import numpy as np
import pytest

from gqe.errors import InputError
from gqe.formats import convert, read_vectors, vecs, write_vectors


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A file that counts as large: 1000 rows, of which 10 are looked at."""
    monkeypatch.setattr(vecs, "_CHECK_ALL_BELOW_BYTES", 100)
    monkeypatch.setattr(vecs, "_ROWS_CHECKED", 10)
    path = tmp_path / "large.fvecs"
    write_vectors(path, np.arange(4000.0).reshape(1000, 4))
    return path


def test_a_row_of_another_length_shifts_the_rest_and_is_noticed(large):
    content = large.read_bytes()
    row = 20
    longer = np.array(
        [9, 1, 2, 3, 4, 5, 6, 7, 8, 9], "<i4"
    ).tobytes()  # dimension 9 takes the bytes of two rows
    assert len(longer) == 2 * row
    shorter = np.array([2, 1, 2], "<i4").tobytes() + np.array([5, 1, 2, 3, 4, 5, 6], "<i4").tobytes()[:-4]
    for changed in (
        content[: 500 * row] + shorter + content[501 * row : -(len(shorter) - row)],
        content[: 999 * row] + longer[:row],
    ):
        assert len(changed) % row == 0
        large.write_bytes(changed)
        with pytest.raises(InputError, match="all rows must have the same"):
            read_vectors(large)


def test_convert_looks_at_every_row(large, tmp_path):
    content = bytearray(large.read_bytes())
    content[501 * 20] = 9  # the dimension of one row between those looked at
    large.write_bytes(content)
    assert read_vectors(large).shape == (1000, 4)
    with pytest.raises(InputError, match="row 501 has the dimension 9, row 0 has 4"):
        convert(large, tmp_path / "b.npy")
    assert not (tmp_path / "b.npy").exists()
