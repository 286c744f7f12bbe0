"""The soak runs, and its oracle sees what is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SOURCE = importlib.util.spec_from_file_location("soak_oracle", FOLDER / "soak_oracle.py")
assert SOURCE is not None
assert SOURCE.loader is not None
soak_oracle = importlib.util.module_from_spec(SOURCE)
SOURCE.loader.exec_module(soak_oracle)
Answer, Content, Items, Query = (
    getattr(soak_oracle, name) for name in ("Answer", "Content", "Items", "Query")
)


def test_a_short_run_finds_nothing() -> None:
    tiny = ["--seconds", "5", "--items", "100", "--dim", "8", "--method", "aqe-g"]
    done = subprocess.run(
        [sys.executable, str(FOLDER / "soak.py"), *tiny],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=300,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert done.returncode == 0, done.stderr
    assert found["verify"] == "sound"
    assert found["acknowledged"]["in all"] > 0
    assert found["answers that were checked"]["in all"] > 0
    assert any("of the service" in fault for fault in found["faults"])


VECTORS = np.eye(6, dtype=np.float32)
QUERY = np.asarray([3, 2, 1.5, 1, 0, 0], np.float32)


@pytest.fixture
def oracle():
    """Items 0 to 3 in version 1; item 4 comes with version 3, item 0 goes with version 5."""
    made = soak_oracle.Oracle(Items([0, 1, 2, 3], VECTORS[:4], [0, 1, 0, 1]), grace=0.0)
    new = Items([4], QUERY[None], [0])
    made.store(made.send(), new, [], 3, known=True, service=True)
    made.store(made.send(), None, [0], 5, known=True, service=True)
    return made


@pytest.mark.parametrize(
    ("floor", "ids", "right"),
    [
        (1, [0, 1], True),
        (1, [4, 0], True),
        (1, [4, 1], True),
        (2, [0, 1], True),
        (3, [0, 1], False),  # 4 was acknowledged before
        (5, [4, 0], False),  # the removal of 0 was acknowledged before
        (1, [1, 2], False),  # no version has neither 0 nor 4
        (1, [0, 2], False),
        (1, [1, 0], False),
        (1, [0], False),
        (1, [0, 0], False),
        (1, [0, 9], False),
        (1, None, False),
    ],
)
def test_an_answer_is_that_of_one_version(oracle, floor, ids, right) -> None:
    vectors = dict(enumerate([*VECTORS[:4], QUERY]))
    scores = [float(vectors.get(i, QUERY) @ QUERY) for i in ids or []]
    assert oracle.is_right(Query(2, QUERY), Answer(ids, scores), floor, time.monotonic()) == right


def test_scores_filters_and_ids_are_compared(oracle) -> None:
    now = time.monotonic()
    assert not oracle.is_right(Query(1, QUERY), Answer([4], [1.0]), 5, now)
    assert oracle.is_right(Query(2, QUERY, years=[1]), Answer([1, 3], [2.0, 1.0]), 5, now)
    assert not oracle.is_right(Query(2, QUERY, years=[1]), Answer([4, 3], [16.25, 1.0]), 5, now)
    assert oracle.is_right(Query(1, id=1), Answer([4], [2.0]), 5, now)
    assert not oracle.is_right(Query(1, id=1), Answer([1], [1.0]), 5, now)
    assert oracle.is_right(Query(1, id=0), Answer(None, []), 5, now)
    assert not oracle.is_right(Query(1, id=1), Answer(None, []), 5, now)


def test_a_change_without_acknowledgement_may_be_in_any_version_since(oracle) -> None:
    now = time.monotonic()
    sent = oracle.send()
    assert not oracle.is_decided(time.monotonic())
    oracle.store(sent, None, [4], 7, known=False, service=False)
    assert oracle.is_decided(time.monotonic())
    for ids, scores in (([4, 1], [16.25, 2.0]), ([1, 2], [2.0, 1.5])):
        assert oracle.is_right(Query(2, QUERY), Answer(ids, scores), 5, time.monotonic())
    assert not oracle.is_right(Query(2, QUERY), Answer([1, 2], [2.0, 1.5]), 5, now)  # it was not sent yet
    assert not oracle.is_right(Query(2, QUERY), Answer([4, 1], [16.25, 2.0]), 7, time.monotonic())


@pytest.mark.parametrize(
    ("version", "ids", "changed", "different"),
    [
        (1, [0, 1, 2, 3], None, {}),
        (5, [1, 2, 3, 4], None, {}),
        (5, [1, 2, 3], None, {"missing": 1}),
        (5, [0, 1, 2, 3, 4], None, {"still there": 1}),
        (5, [1, 2, 3, 4], 2, {"wrong vector": 1}),
    ],
)
def test_content_is_that_of_its_version(oracle, version, ids, changed, different) -> None:
    vectors = np.stack([-VECTORS[i] if i == changed else [*VECTORS[:4], QUERY][i] for i in ids])
    found = oracle.differences(Content(version, np.asarray(ids), vectors))
    assert {kind: count for kind, count in found.items() if count} == different
