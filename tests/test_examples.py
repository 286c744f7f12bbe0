"""The examples in the docstrings do what they show."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest

MODULES = [
    "gqe",
    "gqe.aggregators.averaging",
    "gqe.embeddings",
    "gqe.methods",
    "gqe.models",
    "gqe.neighbors.graph",
    "gqe.integrations.faiss",
    "gqe.neighbors.search",
    "gqe.retrieval",
    "gqe.training.contrastive",
    "gqe.training.forward",
    "gqe.training.mining",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    outcome = doctest.testmod(module, extraglobs={"np": np})
    assert outcome.attempted > 0
    assert outcome.failed == 0
