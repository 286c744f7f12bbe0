"""Vectors in safetensors files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from gqe.errors import InputError
from gqe.formats import read_vectors

TABLE = np.arange(12).reshape(4, 3)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_tensors_are_mapped(tmp_path, dtype):
    path = tmp_path / "a.safetensors"
    table = TABLE.astype(dtype)
    save_file({"other": np.arange(5), "table": table}, path, metadata={"made": "here"})
    found = read_vectors(path)
    assert isinstance(found, np.memmap)
    assert found.dtype == table.dtype
    np.testing.assert_array_equal(found, table)


def test_which_tensor_is_taken(tmp_path):
    path = tmp_path / "a.safetensors"
    save_torch_file(
        {"a": torch.ones(2, 3), "b": torch.zeros(2, 3), "c": torch.ones(2, 3, dtype=torch.bfloat16)}, path
    )
    assert read_vectors(path, key="b").sum() == 0
    with pytest.raises(InputError, match="choose one with key: 'a', 'b'"):
        read_vectors(path)
    with pytest.raises(InputError, match="'c' is not a table of numbers"):
        read_vectors(path, key="c")
