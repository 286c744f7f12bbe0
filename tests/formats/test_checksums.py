from __future__ import annotations

import numpy as np
import torch

from gqe.formats.checksums import checksum

ROWS = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)


def test_the_same_values_give_the_same_checksum_wherever_they_are() -> None:
    assert checksum(ROWS) == checksum(torch.from_numpy(ROWS)) == checksum(np.asfortranarray(ROWS))


def test_types_shapes_order_and_every_value_count() -> None:
    late = ROWS.copy()
    late[4999, 2] += 1e-3
    half = torch.from_numpy(ROWS).bfloat16()
    others = [ROWS.astype(np.float64), ROWS.reshape(3, 5000), late, ROWS[:4096], half, half + 1]
    found = {checksum(each) for each in [ROWS, *others]}
    assert len(found) == 1 + len(others)
    assert checksum(ROWS, late) != checksum(late, ROWS)
