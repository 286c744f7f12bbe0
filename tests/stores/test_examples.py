"""The examples in the docstrings of the stores do what they show."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest


@pytest.mark.parametrize("name", ["opening", "address"])
def test_examples(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(f"gqe.stores.{name}"), extraglobs={"np": np})
    assert outcome.attempted > 0
    assert outcome.failed == 0
