"""Whatever the schema allows, and what it does not: never a 5xx, always what is promised."""

from __future__ import annotations

import doctest
import json
import re
from contextlib import suppress
from importlib.resources import files

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from gqe.server import Settings, app, expanders
from gqe.server import settings as server_settings
from server.worlds import DIM, build, describer, embedder, serving

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

CASES = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    path = tmp_path_factory.mktemp("schema") / "index"
    index = build(path, metadata={"year": list(range(120)), "name": [str(i) for i in range(120)]})
    with serving(index, Settings(rate=0), describe=describer(), embed=embedder()) as running:
        yield running


@pytest.fixture(scope="module")
def schema(served):
    return schemathesis.openapi.from_dict(served.get("/openapi.json").json())


def test_every_route_holds_its_schema(served, schema) -> None:
    conformance = schemathesis.specs.openapi.checks
    checks = [
        schemathesis.checks.not_a_server_error,
        conformance.status_code_conformance,
        conformance.content_type_conformance,
        conformance.response_schema_conformance,
    ]
    seen: dict[str, set[int]] = {}

    def one(case) -> None:
        response = case.call(base_url=served.url)
        seen.setdefault(case.operation.label, set()).add(response.status_code)
        case.validate_response(response, checks=checks)

    for result in schema.get_all_operations():
        for mode in schemathesis.GenerationMode:
            with suppress(Unsatisfiable):  # nothing can be wrong where nothing is asked
                CASES(given(case=result.ok().as_strategy(generation_mode=mode))(one))()
    assert len(seen) == 14
    assert {status for statuses in seen.values() for status in statuses} >= {200, 404, 422}


NUMBERS = st.floats(-10, 10, width=32)
IDS = st.one_of(st.integers(0, 130), st.integers(0, 2**63 - 1), st.text(min_size=1, max_size=5))
VECTORS = st.lists(NUMBERS, min_size=DIM, max_size=DIM)
EXAMPLE = st.fixed_dictionaries({"id": st.integers(0, 130)}, optional={"weight": st.floats(0.01, 100)})
ASKED = st.one_of(
    st.fixed_dictionaries({"ids": st.lists(IDS, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"vectors": st.lists(VECTORS, min_size=1, max_size=3)}),
    st.fixed_dictionaries(
        {"like": st.lists(EXAMPLE, min_size=1, max_size=3)},
        optional={"dislike": st.lists(EXAMPLE, max_size=3), "dislike_weight": st.floats(0, 10)},
    ),
)
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.text(min_size=1), st.floats(-1e30, 1e30), st.booleans()
)
HOW = st.fixed_dictionaries(
    {},
    optional={
        "k": st.integers(1, 1100),
        "expand": st.booleans(),
        "exact": st.booleans(),
        "method": st.sampled_from(["index", "none", "aqe", "alpha-g:k=3", "aqewd:k=64", "index:k=1", "no"]),
        "rerank": st.sampled_from([None, "superglobal", "egt", "reciprocal", "no"]),
        "filter": st.dictionaries(
            st.sampled_from(["year", "name", "no"]), st.one_of(VALUES, st.lists(VALUES))
        ),
    },
)


def test_likely_searches_never_fail(served) -> None:
    reached = set()

    @settings(CASES, max_examples=80)
    @given(asked=ASKED, how=HOW)
    def search(asked, how) -> None:
        answer = served.post("/v1/search", asked | how)
        assert answer.status_code in (200, 422), answer.text
        reached.add(answer.status_code)
        if answer.status_code == 200:
            for hits in answer.json()["results"]:
                assert len(hits["ids"]) == len(hits["scores"]) <= how.get("k", 10)
                assert hits["scores"] == sorted(hits["scores"], reverse=True)

    search()
    assert reached == {200, 422}


@settings(CASES, max_examples=30)
@given(
    rows=st.lists(VECTORS, min_size=1, max_size=3),
    ids=st.none() | st.lists(st.integers(100, 140), min_size=1, max_size=3),
    years=st.lists(VALUES | st.none(), min_size=1, max_size=3),
    removed=st.lists(IDS, min_size=1, max_size=2),
)
def test_likely_changes_never_fail(served, rows, ids, years, removed) -> None:
    names = [None] * len(years)
    content = {"vectors": rows, "ids": ids, "metadata": {"year": years, "name": names}}
    assert served.post("/v1/items", content).status_code in (200, 422)
    assert served.post("/v1/items/remove", {"ids": removed}).status_code in (200, 422)
    assert served.post("/v1/explain", {"vectors": rows[:1]}).status_code in (200, 422)


def test_the_schema_names_every_route_and_promises_problems(served) -> None:
    paths = served.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        *("/health", "/ready", "/metrics", "/v1/about", "/v1/search", "/v1/search/picture", "/v1/describe"),
        *("/v1/embed", "/v1/explain", "/v1/items", "/v1/items/describe", "/v1/items/remove", "/v1/picture"),
    }
    for route in paths.values():
        for operation in route.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert list(response["content"]) == ["application/problem+json"]
    assert "HTTPValidationError" not in json.dumps(paths)


def test_the_page_names_no_outside_address() -> None:
    for file in files("gqe.server").joinpath("page").iterdir():
        found = set(re.findall(r"https?://[^\s\"')]+", file.read_text(encoding="utf-8")))
        assert found <= {"http://www.w3.org/2000/svg"}, file.name


@pytest.mark.parametrize("module", [app, expanders, server_settings])
def test_examples_in_docstrings_are_right(module) -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
