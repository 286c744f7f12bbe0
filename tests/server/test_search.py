"""Every way to search gives what the index gives."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pytest

from gqe.index import Index
from gqe.models import expander
from gqe.server import Settings
from server.worlds import DIM, build, embedder, serving, vectors

QUERIES = vectors(4, seed=3)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    index = build(tmp_path_factory.mktemp("search") / "index", metadata={"year": list(range(120))})
    index.remove([7, 8])
    with serving(index, Settings(max_k=50, max_vectors=20)) as running:
        yield running


@pytest.fixture(scope="module")
def index(served) -> Index:
    return Index.open(served.app.state.service.engine.index.path, device="cpu")


def assert_same(answer, found) -> None:
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert len(results) == len(found.ids)
    for result, ids, scores in zip(results, found.ids, found.scores, strict=True):
        assert result["ids"] == ids.tolist()
        np.testing.assert_allclose(result["scores"], scores, atol=1e-5)


@pytest.mark.parametrize("expand", [True, False])
def test_by_vectors(served, index, expand) -> None:
    answer = served.post("/v1/search", {"vectors": QUERIES.tolist(), "k": 7, "expand": expand})
    assert_same(answer, index.search(QUERIES, 7, expand=expand))


def test_by_id_leaves_the_item_out(served, index) -> None:
    rows = [3, 60]
    answer = served.post("/v1/search", {"ids": rows, "k": 5})
    assert_same(answer, index.search(vectors(120)[rows], 5, exclude=rows))


@pytest.mark.parametrize("rerank", ["reciprocal"])
def test_reranked(tmp_path, rerank) -> None:
    index = build(tmp_path / "index", expander=expander("aqe-g", k=24))
    expected = index.search(QUERIES, 5, rerank=rerank)
    with serving(index) as served:
        assert rerank in served.get("/v1/about").json()["rerankers"]
        answer = served.post("/v1/search", {"vectors": QUERIES.tolist(), "k": 5, "rerank": rerank})
        assert_same(answer, expected)


def test_filtered(served, index) -> None:
    chosen = {"year": [1, 50, 60, 70]}
    answer = served.post("/v1/search", {"vectors": QUERIES.tolist(), "k": 4, "filter": chosen})
    assert_same(answer, index.search(QUERIES, 4, filter=chosen))


def test_filtered_by_bounds(served, index) -> None:
    chosen = {"year": {"gte": 20, "lt": 90}}
    answer = served.post("/v1/search", {"vectors": QUERIES.tolist(), "k": 9, "filter": chosen})
    assert_same(answer, index.search(QUERIES, 9, filter={"year": list(range(20, 90))}))


def test_places_without_an_item_are_left_out(served) -> None:
    answer = served.post("/v1/search", {"vectors": QUERIES[:1].tolist(), "k": 4, "filter": {"year": 60}})
    assert answer.json()["results"][0]["ids"] == [60]


@pytest.mark.parametrize(
    "method",
    [
        "aqe:k=5",
        "alpha",
        "aqe-g:k=3",
        "index:k=2",
        "index:rounds=2",
        "index:k=3:contrast=0.4:rounds=2",
        "alpha:k=8:alpha=1:rounds=3",
        "aqe-g:k=3:levels=3",
        "index+superglobal",
        "alpha:k=4:rounds=2+superglobal",
    ],
)
def test_other_methods_equal_the_expander_bound_to_the_same_items(served, index, method) -> None:
    made = expander(method.replace("index", "aqe-g"))
    rows = index.ids
    expected = made.fit(vectors(120)[rows], device="cpu").search(QUERIES, 6)
    answer = served.post("/v1/search", {"vectors": QUERIES.tolist(), "k": 6, "method": method})
    assert_same(answer, expected._replace(ids=rows[expected.ids]))


def test_more_results_than_items_gives_all(tmp_path) -> None:
    with serving(build(tmp_path / "index", n=5)) as served:
        answer = served.post("/v1/search", {"ids": [1], "k": 100})
        assert sorted(answer.json()["results"][0]["ids"]) == [0, 2, 3, 4]


def test_an_empty_index_finds_nothing(tmp_path) -> None:
    empty = Index.build(np.empty((0, DIM), np.float32), "aqe", tmp_path / "index", device="cpu")
    with serving(empty) as served:
        answer = served.post("/v1/search", {"vectors": QUERIES[:2].tolist()})
        assert answer.json()["results"] == [{"ids": [], "scores": []}] * 2
        added = served.post("/v1/items", {"vectors": QUERIES.tolist()})
        assert added.json()["ids"] == [0, 1, 2, 3]
        assert served.post("/v1/search", {"ids": [0], "k": 1}).json()["results"][0]["ids"] != []


def test_examples_are_a_mean_of_liked_minus_disliked(served, index) -> None:
    table = vectors(120)
    liked, disliked = (2 * table[3] + 1 * QUERIES[0]) / 3, table[9]
    query = liked - 0.7 * disliked
    query /= np.linalg.norm(query)
    expected = index.search(query[None], 9)
    kept = [i for i in expected.ids[0].tolist() if i != 9][:8]
    answer = served.post(
        "/v1/search",
        {
            "like": [{"id": 3, "weight": 2}, {"vector": QUERIES[0].tolist()}],
            "dislike": [{"id": 9}],
            "dislike_weight": 0.7,
            "k": 8,
        },
    )
    assert answer.json()["results"][0]["ids"] == kept


def test_examples_that_cancel_are_refused(served) -> None:
    answer = served.post("/v1/search", {"like": [{"id": 3}], "dislike": [{"id": 3}], "dislike_weight": 1})
    assert answer.status_code == 422
    assert "cancel" in answer.json()["detail"]


@pytest.mark.parametrize("method", ["index", "aqe:k=4", "alpha-g:k=6"])
def test_the_explanation_shows_the_weights_of_the_expansion(served, index, method) -> None:
    asked = {"vectors": QUERIES[:1].tolist(), "method": method, "first": 4, "second": 2}
    graph = served.post("/v1/explain", asked).json()
    nodes, edges = graph["nodes"], graph["edges"]
    assert (nodes[0]["id"], nodes[0]["hop"], nodes[0]["weight"]) == (None, 0, 1.0)
    name, _, k = method.partition(":k=")
    made = expander("aqe-g" if name == "index" else name, **({"k": int(k)} if k else {}))
    rows = index.ids
    weights = made.fit(vectors(120)[rows], device="cpu").weights(QUERIES[:1])
    whole = dict(zip(rows[weights.indices].tolist(), weights.data.tolist(), strict=True))
    assert graph["items_with_weight"] == len(whole)
    for node in nodes[1:]:
        assert node["weight"] == pytest.approx(whole.get(node["id"], 0.0), abs=1e-5)
    first = [edge for edge in edges if edge["source"] == 0]
    assert len(first) == 4
    assert {nodes[edge["target"]]["hop"] for edge in first} == {1}
    for source in {edge["source"] for edge in edges} - {0}:
        assert sum(edge["source"] == source for edge in edges) == 2
    if method == "index":  # the mean over a query and ten neighbours: the nearest come first
        near = index.search(QUERIES[:1], 4, expand=False).ids[0].tolist()
        assert [nodes[edge["target"]]["id"] for edge in first] == near
        assert [edge["weight"] for edge in edges] == pytest.approx([1 / 11] * len(edges), abs=1e-5)


def test_explaining_no_expansion_is_refused(served) -> None:
    answer = served.post("/v1/explain", {"ids": [3], "method": "none"})
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({}, "one of"),
        ({"ids": [1], "vectors": [[1.0] * DIM]}, "one of"),
        ({"ids": [7]}, "no item 7"),
        ({"ids": ["a"]}, "whole numbers"),
        ({"vectors": [[1.0]]}, "row 0"),
        ({"vectors": [[0.0] * DIM]}, "vectors"),
        ({"vectors": [["a"] * DIM]}, "vectors"),
        ({"vectors": [[1e40] * DIM]}, "vectors"),
        ({"ids": [1], "k": 51}, "at most 50"),
        ({"ids": [1], "k": 0}, "k"),
        ({"ids": list(range(30, 51))}, "at most 20"),
        ({"ids": [1], "method": "sql"}, "not offered"),
        ({"ids": [1], "method": "/etc/passwd"}, "method"),
        ({"ids": [1], "method": "aqe:k=999"}, "k=999 is not offered here; the largest is"),
        ({"ids": [1], "method": "index:rounds=4"}, "rounds=4 is not offered here; the largest is 3"),
        ({"ids": [1], "method": "aqe-g:levels=9"}, "levels=9 is not offered here; the largest is 3"),
        ({"ids": [1], "method": "index:alpha=2"}, "has no setting 'alpha'"),
        ({"ids": [1], "method": "index:temperature=2"}, "takes k, contrast and rounds"),
        ({"ids": [1], "method": "none:k=2"}, "none: has no setting 'k'"),
        ({"ids": [1], "method": "aqe:k=2:k=3"}, "given twice"),
        ({"ids": [1], "method": "aqe:k=1.5"}, "k: expected a whole number"),
        ({"ids": [1], "method": "aqe+csa"}, "'csa' is not offered"),
        ({"ids": [1], "method": "aqe+egt:k=9"}, "method"),
        ({"ids": [1], "method": "aqe+egt", "rerank": "egt"}, "names a re-ranker already"),
        ({"ids": [1], "rerank": "csa:model=/etc/passwd"}, "not offered"),
        ({"ids": [1], "filter": {"colour": "red"}}, "colour"),
        ({"ids": [1], "filter": {"colour": {"lt": 1}}}, "colour"),
        ({"ids": [1], "filter": {"year": {"lt": "x"}}}, "year"),
        ({"ids": [1], "filter": {"year": {}}}, "year"),
        ({"ids": [1], "typo": 1}, "typo"),
        ({"like": [{"id": 1, "vector": [1.0] * DIM}]}, "not both"),
        ({"vectors": [[1.0] * DIM], "dislike": [{"id": 1}]}, "dislike"),
        ({"like": [{"id": 1}] * 101}, "at most 100"),
    ],
)
def test_mistakes_are_one_line_of_problem_json(served, content, named) -> None:
    answer = served.post("/v1/search", content)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == 422
    assert named in problem["detail"]
    assert "\n" not in problem["detail"]


def test_many_results_at_once_are_refused(tmp_path) -> None:
    settings = Settings(max_k=1000, max_vectors=1000)
    with serving(build(tmp_path / "index", n=600), settings) as served:
        answer = served.post("/v1/search", {"vectors": vectors(500).tolist(), "k": 500})
        assert answer.status_code == 422
        assert "ask for less" in answer.json()["detail"]


def test_with_metadata(served, index) -> None:
    request = {"vectors": QUERIES.tolist(), "k": 7, "with_metadata": True}
    answer = served.post("/v1/search", request)
    found = index.search(QUERIES, 7, with_metadata=True)
    assert_same(answer, found)
    assert [result["metadata"] for result in answer.json()["results"]] == found.metadata
    liked = {"like": [{"id": 3}], "dislike": [{"id": 4}], "k": 50, "with_metadata": True}
    (result,) = served.post("/v1/search", liked).json()["results"]
    assert [row["year"] for row in result["metadata"]] == result["ids"]
    assert (
        "metadata" not in served.post("/v1/search", request | {"with_metadata": False}).json()["results"][0]
    )
    assert served.post("/v1/search", request | {"with_metadata": "yes"}).status_code == 422


def test_a_text_is_embedded_as_it_says(tmp_path) -> None:
    with serving(build(tmp_path / "index"), embed=embedder()) as served:
        answer = served.post("/v1/embed", {"text": "a word"})
        np.testing.assert_allclose(answer.json()["vector"], embedder()("a word"), atol=1e-6)
        assert served.get("/v1/about").json()["embeds"]


def test_texts_are_refused_where_nothing_is_known_of_them(served) -> None:
    answer = served.post("/v1/embed", {"text": "a word"})
    assert (answer.status_code, answer.json()["detail"][:5]) == (422, "text:")
    assert not served.get("/v1/about").json()["embeds"]


def test_items_are_described_by_metadata_and_label(tmp_path) -> None:
    moments = [date(2020, 1, 1) + timedelta(i) for i in range(120)]
    index = build(tmp_path / "index", metadata={"year": list(range(120)), "day": moments})
    with serving(index, labels={3: 1}) as served:
        items = served.post("/v1/items/describe", {"ids": [3, 5]}).json()["items"]
        assert items[0] == {"id": 3, "metadata": {"year": 3, "day": "2020-01-04"}, "label": 1}
        assert items[1]["label"] is None
        missing = served.post("/v1/items/describe", {"ids": [3, 500]})
        assert missing.status_code == 422
        assert "500" in missing.json()["detail"]
