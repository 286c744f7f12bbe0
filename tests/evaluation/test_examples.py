"""The examples in the docstrings run as printed."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("metrics", "ground_truth", "protocol", "quality")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    outcome = doctest.testmod(importlib.import_module(f"gqe.evaluation.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
