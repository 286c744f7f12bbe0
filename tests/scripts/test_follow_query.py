"""Every kind of query goes down the same few files."""

from __future__ import annotations

import follow_query
import pytest


@pytest.fixture(scope="module")
def ways(tmp_path_factory):
    return follow_query.ways(tmp_path_factory.mktemp("ways"))


@pytest.mark.parametrize("kind", ["Expander", "Index", "store", "HTTP"])
def test_the_way_of_a_query_is_short_and_shared(ways, kind):
    assert follow_query.problems(ways[kind]) == []


def test_longer_and_winding_ways_are_told():
    winding = ["models.py", "retrieval.py", "index/target.py", "retrieval.py", "expansion.py"]
    assert "retrieval.py is entered twice" in follow_query.problems(winding)
    long = [f"{i}.py" for i in range(7)] + ["retrieval.py", "expansion.py"]
    assert follow_query.problems(long) == ["9 files come before the aggregator, at most 8 may"]
    assert "its core files are ['expansion.py'], not" in follow_query.problems(["expansion.py"])[0]
