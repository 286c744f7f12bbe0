"""What decides whether a measured cell is still right."""

from __future__ import annotations

from pathlib import Path

import gqe
from gqe.aggregators import Mean
from gqe.query_options import QueryOptions
from gqe.reproduce.measuring import model_checksum


def test_a_model_with_another_contrast_is_another_model(tmp_path: Path) -> None:
    for name, contrast in (("a", 0.0), ("b", 0.4), ("c", 0.4)):
        gqe.Expander([Mean(3)], query_options=QueryOptions(contrast)).save_pretrained(
            tmp_path / name, {"note": name}
        )
    a, b, c = (model_checksum(str(tmp_path / name)) for name in "abc")
    assert a != b
    assert b == c
