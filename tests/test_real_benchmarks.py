"""The hand-crafted methods on real pictures and sentences stand where they are known to stand."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import gqe
from gqe.methods import parse_method

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "benchmarks"
SETS = ("image/val", "image/test-signs", "image/test-fruits", "text/val", "text/test-intents")

# mAP of each set, with the settings chosen on its val: pictures, sentences.
KNOWN = {
    ("none", "none"): (62.2, 41.4, 77.5, 85.5, 83.2),
    ("aqe:k=6", "aqe:k=12"): (67.3, 47.2, 78.2, 91.2, 87.9),
    ("aqewd:k=8", "aqewd:k=16"): (67.2, 47.4, 78.3, 91.1, 88.3),
    ("alpha:k=6:alpha=1", "alpha:k=12:alpha=1"): (67.2, 47.2, 78.3, 91.1, 88.1),
    ("aqe-g:k=4", "aqe-g:k=12"): (68.5, 50.0, 78.5, 91.7, 87.0),
    ("alpha-g:k=6:alpha=3", "alpha-g:k=12:alpha=3"): (68.4, 49.3, 78.4, 92.0, 88.1),
    ("dba-aqe:k=6", "dba-aqe:k=16"): (69.1, 49.7, 76.6, 90.9, 89.0),
    ("dba-alpha:k=8:alpha=3", "dba-alpha:k=16:alpha=3"): (70.7, 50.2, 80.3, 93.1, 91.2),
}
CASES = [
    pytest.param(name, methods[name.startswith("text")], expected[i], id=f"{name}-{methods[0].split(':')[0]}")
    for methods, expected in KNOWN.items()
    for i, name in enumerate(SETS)
]


@cache
def benchmark(name: str) -> tuple[dict[str, np.ndarray], gqe.NeighborGraph]:
    """A set, and a graph of its database that serves every K below."""
    path = FOLDER / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"the real benchmarks are not here: {path} is missing")
    with np.load(path) as file:
        content = dict(file)
    return content, gqe.knn(content["database"], 16)


@pytest.mark.parametrize(("name", "text", "expected"), CASES)
def test_known_map(name, text, expected):
    content, graph = benchmark(name)
    method = parse_method(text)
    expander = gqe.Expander(method.stack()).fit(content["database"], graph)
    database = expander.augment() if method.dba else content["database"].astype(np.float32)
    database = database / np.linalg.norm(database, axis=1, keepdims=True)
    scores = expander.expand(content["queries"]) @ database.T
    reached = gqe.evaluate(scores, (content["query_labels"], content["database_labels"])).map
    assert reached == pytest.approx(expected, abs=0.1)
