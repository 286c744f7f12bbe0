"""The examples in docstrings are right."""

from __future__ import annotations

import doctest

import pytest

from gqe.server import app, expanders, settings


@pytest.mark.parametrize("module", [app, expanders, settings])
def test_examples(module) -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
