"""The examples in the documentation do what they show."""

from __future__ import annotations

import doctest

import pytest

from gqe.formats import atomic, ground_truth, names, numpy_files, safe_pickle, vectors


@pytest.mark.parametrize("module", [atomic, ground_truth, names, numpy_files, safe_pickle, vectors])
def test_examples(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
