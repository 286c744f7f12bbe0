"""The examples in the docstrings of the stores do what they show."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest


@pytest.mark.parametrize("name", ["gqe.stores", "gqe.stores.address"])
def test_examples(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name), extraglobs={"np": np})
    assert outcome.attempted > 0
    assert outcome.failed == 0
