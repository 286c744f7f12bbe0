"""`gqe serve` in front of a vector database: it answers as the connection does, and says what it cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="needs the service: pip install 'gqe[serve]'")
from PIL import Image

import gqe
from gqe.errors import InputError
from gqe.server import Settings, read_tokens
from gqe.server.opening import open_served
from gqe.server.pictures import FolderPictures
from gqe.server.store_engine import StoreEngine
from server.worlds import Served, describer, free_port, jpeg, serving, wait_until
from stores.engines import DIM, QUERIES, TABLE, Engine, Milvus, N, Postgres, expanders, vectors

IDS = list(range(N))


def attached(engine: Engine, stack: str = "affinity", ids: list[Any] = IDS) -> str:
    url = engine.create(ids, TABLE)
    with gqe.connect(url, device="cpu") as items:
        items.attach(expanders()[stack], exact=True)
    if isinstance(engine, Milvus):
        engine.release(url)
    return url


@pytest.fixture(scope="module", params=["pgvector", "qdrant", "milvus", "qdrant_server", "milvus_server"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine = request.getfixturevalue({"pgvector": "postgres"}.get(request.param, request.param))
    folder = tmp_path_factory.mktemp("pictures")
    Image.new("RGB", (300, 200), "red").save(folder / "5.png")
    connection = gqe.connect(attached(engine), device="cpu")
    parts = {"describe": describer(), "pictures": FolderPictures(folder)}
    with serving(StoreEngine(connection, "items"), Settings(poll_seconds=0.05), **parts) as running:
        yield running


def items_of(served: Served) -> gqe.stores.Connection:
    connection: gqe.stores.Connection = served.app.state.service.engine.connection
    return connection


def assert_same(answer: httpx.Response, found: Any) -> None:
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [each["ids"] for each in results] == found.ids.tolist()
    np.testing.assert_allclose([each["scores"] for each in results], found.scores, atol=1e-5)


def test_every_way_to_search_equals_the_connection(served: Served) -> None:
    items, exact = items_of(served), {"exact": True}
    asked = {"vectors": QUERIES.tolist(), "k": 7} | exact
    assert_same(served.post("/v1/search", asked), items.search(QUERIES, 7, **exact))
    assert_same(served.post("/v1/search", asked | {"expand": False}), items.search(QUERIES, 7, expand=False))
    alpha = items.search(QUERIES, 7, expander=gqe.expander("alpha", k=4), **exact)
    assert_same(served.post("/v1/search", asked | {"method": "alpha:k=4"}), alpha)
    expected = gqe.expander("alpha", k=4).fit(TABLE, device="cpu").search(QUERIES, 7)
    assert alpha.ids.tolist() == expected.ids.tolist()
    chosen = {"year": [2001, 2002]}
    found = items.search(QUERIES, 7, filter=chosen, **exact)
    assert_same(served.post("/v1/search", asked | {"filter": chosen}), found)
    reordered = items.search(QUERIES, 7, rerank="reciprocal", **exact)
    assert_same(served.post("/v1/search", asked | {"rerank": "reciprocal"}), reordered)
    assert reordered.ids.tolist() != items.search(QUERIES, 7, **exact).ids.tolist()
    later = {"year": {"gte": 2003}}
    assert_same(
        served.post("/v1/search", asked | {"filter": later}), items.search(QUERIES, 7, filter=later, **exact)
    )
    own = served.post("/v1/search", {"ids": [3, 60, 3], "k": 5} | exact)
    assert_same(own, items.search(TABLE[[3, 60, 3]], 5, exclude=[3, 60, 3], **exact))
    query = TABLE[3] - 0.5 * TABLE[9]
    liked = served.post("/v1/search", {"like": [{"id": 3}], "dislike": [{"id": 9}], "k": 5} | exact)
    kept = [i for i in items.search(query, 6, **exact).ids.tolist() if i != 9][:5]
    assert liked.json()["results"][0]["ids"] == kept
    picture = {"picture": ("a.jpg", jpeg(), "image/jpeg")}
    vector = served.client.post("/v1/describe", files=picture).json()["vector"]
    by_picture = served.client.post("/v1/search/picture", files=picture, data={"k": "3"})
    assert_same(by_picture, items.search(np.array([vector], np.float32), 3))


def test_metadata_are_the_fields_of_the_database(served: Served) -> None:
    items = items_of(served)
    told = served.post("/v1/items/describe", {"ids": [60, 3]}).json()["items"]
    assert [each["id"] for each in told] == [60, 3]
    assert [each["metadata"] for each in told] == items.get([60, 3])
    assert told[1]["metadata"]["year"] == 2003
    asked = {"vectors": QUERIES.tolist(), "k": 7, "exact": True}
    answer = served.post("/v1/search", asked | {"with_metadata": True})
    found = items.search(QUERIES, 7, exact=True)
    assert_same(answer, found)
    for result in answer.json()["results"]:
        assert result["metadata"] == items.get(result["ids"])
    assert "metadata" not in served.post("/v1/search", asked).json()["results"][0]
    missing = served.post("/v1/items/describe", {"ids": [3, 999]})
    assert missing.status_code == 422
    assert "no item 999 in items" in missing.json()["detail"]


def test_explanations_hold_the_weights(served: Served) -> None:
    asked = {"vectors": QUERIES[:1].tolist(), "first": 4, "second": 2}
    graph = served.post("/v1/explain", asked).json()
    said = items_of(served).explain(QUERIES[:1], top=N)
    whole = dict(zip(said.ids[0].tolist(), said.weights[0].tolist(), strict=True))
    assert graph["nodes"][0]["id"] is None
    for node in graph["nodes"][1:]:
        assert node["weight"] == pytest.approx(whole.get(node["id"], 0.0), abs=1e-4)
    assert {node["hop"] for node in graph["nodes"]} == {0, 1, 2}
    assert sum(edge["source"] == 0 for edge in graph["edges"]) == 4
    flat = served.post("/v1/explain", asked | {"method": "aqe:k=4"}).json()
    assert [edge["weight"] for edge in flat["edges"]] == pytest.approx([0.2] * 4, abs=1e-5)


def test_the_page_has_what_it_needs(served: Served) -> None:
    about = served.get("/v1/about").json()
    assert about["title"] == "items"
    assert about["items"] == N
    assert about["expansion"] == "affinity"
    assert about["methods"] == ["index", "none", "aqe", "aqewd", "alpha"]
    assert about["methods_with_k"] == ["aqe", "aqewd", "alpha"]
    assert about["rerankers"] == ["reciprocal", "superglobal", "egt", "diffusion"]
    assert (about["pictures"], about["describes"]) == (True, True)
    assert len(about["examples"]) == 24
    assert served.get("/v1/items", params={"start": 118}).json()["ids"] == [118, 119]
    assert served.get("/v1/picture", params={"id": 5}).headers["content-type"] == "image/jpeg"
    assert served.get("/v1/picture", params={"id": 6}).status_code == 404
    assert served.get("/health").status_code == 200
    assert f"gqe_items {N}.0" in served.get("/metrics").text


@pytest.mark.parametrize(
    ("path", "content", "named"),
    [
        ("/v1/search", {"ids": [1], "rerank": "csa"}, "rerank"),
        ("/v1/search", {"ids": [1], "method": "index:k=5"}, "other settings"),
        ("/v1/search", {"ids": [1], "method": "aqe-g"}, "not offered"),
        ("/v1/search", {"ids": [999]}, "no item 999 in items"),
        ("/v1/search", {"ids": ["a"]}, "whole numbers"),
        ("/v1/search", {"ids": [1], "filter": {"colour": 1}}, "no field 'colour'"),
        ("/v1/search", {"ids": [1], "filter": {"year": {"near": 1}}}, "filter"),
        ("/v1/items", {"vectors": [[1.0] * DIM]}, "does not number its items"),
        ("/v1/items", {"vectors": [[1.0] * DIM], "ids": [3]}, "there already"),
        ("/v1/items", {"vectors": [[1.0] * 3], "ids": [999]}, "16 dimensions"),
        ("/v1/items/remove", {"ids": [999]}, "no item 999 in items"),
    ],
)
def test_what_it_cannot_do_is_one_line(served: Served, path: str, content: Any, named: str) -> None:
    answer = served.post(path, content)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert named in answer.json()["detail"]
    assert "://" not in answer.text  # where the database is concerns nobody outside


def test_added_items_are_found_and_removed_ones_are_not(served: Served) -> None:
    new = vectors(2, seed=77)
    content = {"vectors": new.tolist(), "ids": [800, 801], "metadata": {"year": [2050, 2051]}}
    assert served.post("/v1/items", content).json()["items"] == N + 2
    asked = {"vectors": new.tolist(), "k": 1, "expand": False}
    assert [each["ids"] for each in served.post("/v1/search", asked).json()["results"]] == [[800], [801]]
    assert served.post("/v1/search", asked | {"expand": True}).status_code == 200
    assert served.post("/v1/items/remove", {"ids": [800, 801]}).json()["items"] == N
    assert served.post("/v1/search", {"ids": [800]}).status_code == 422
    assert len(items_of(served)) == N


NUMBERS = st.floats(-10, 10, width=32)
NAMES = st.one_of(st.integers(0, 130), st.integers(0, 2**63 - 1), st.text(min_size=1, max_size=5))
ROWS = st.lists(st.lists(NUMBERS, min_size=DIM, max_size=DIM), min_size=1, max_size=2)
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.text(min_size=1), st.floats(-1e30, 1e30), st.booleans()
)
BOUNDS = st.dictionaries(st.sampled_from(["gt", "gte", "lt", "lte"]), VALUES)
FILTER = st.dictionaries(
    st.sampled_from(["year", "kind", "no", "id", "a b", "x'"]), st.one_of(VALUES, st.lists(VALUES), BOUNDS)
)
ASKED = st.one_of(
    st.fixed_dictionaries({"ids": st.lists(NAMES, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"vectors": ROWS}),
)
HOW = st.fixed_dictionaries(
    {},
    optional={
        "k": st.integers(1, 1000),
        "exact": st.booleans(),
        "method": st.sampled_from(["index", "none", "aqe", "alpha:k=64", "aqe-g"]),
        "filter": FILTER,
    },
)


def test_likely_requests_never_fail(served: Served) -> None:
    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(asked=ASKED, how=HOW, rows=ROWS, name=NAMES, year=VALUES | st.none())
    def requests(asked: Any, how: Any, rows: Any, name: Any, year: Any) -> None:
        found = served.post("/v1/search", asked | how)
        assert found.status_code in (200, 422), found.text
        new = {"vectors": rows[:1], "ids": [name], "metadata": {"year": [year]}}
        added = served.post("/v1/items", new)
        assert added.status_code in (200, 422), added.text
        explained = served.post("/v1/explain", {"vectors": rows[:1]})
        assert explained.status_code in (200, 422), explained.text
        if added.status_code == 200:
            assert served.post("/v1/items/remove", {"ids": [name]}).status_code == 200
        assert "Traceback" not in found.text + added.text + explained.text

    requests()
    assert len(items_of(served)) == N


def test_a_sync_elsewhere_is_seen(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gqe.server.store_engine._LOOK_EVERY", 0.05)
    monkeypatch.setattr("gqe.server.store_engine._LOOK_SHARE", 1.0)
    url = attached(postgres, "flat")
    with serving(StoreEngine(gqe.connect(url, device="cpu"), "items"), Settings(poll_seconds=0.02)) as served:
        with gqe.connect(url, device="cpu") as other:
            other.upsert(vectors(3, seed=5), [500, 501, 502])
            wait_until(lambda: served.get("/v1/about").json()["items"] == N + 3)
            other.attach(expanders()["affinity"], anew=True)
        wait_until(lambda: served.get("/v1/about").json()["expansion"] == "affinity")
        assert served.post("/v1/search", {"ids": [500]}).status_code == 200


def test_a_lost_connection_is_made_anew(postgres: Postgres) -> None:
    with serving(gqe.connect(attached(postgres), device="cpu")) as served:
        expected = served.post("/v1/search", {"ids": [3]}).json()
        postgres.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        assert served.post("/v1/search", {"ids": [3]}).json() == expected


def test_a_database_out_of_reach_is_503_until_it_is_back(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gqe.server.store_engine._LOOK_EVERY", 0.05)
    monkeypatch.setattr("gqe.server.store_engine._LOOK_SHARE", 1.0)
    url = attached(postgres)
    with serving(StoreEngine(gqe.connect(url, device="cpu"), "items"), Settings(poll_seconds=0.02)) as served:
        store = items_of(served).store
        monkeypatch.setitem(store._database.address.options, "host", "/no/such/place")
        store._database.connection.close()
        answer = served.post("/v1/search", {"ids": [3]})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["detail"] == "the database is out of reach; come back later"
        new = {"vectors": vectors(1).tolist(), "ids": [700]}
        assert served.post("/v1/items", new).status_code == 503
        wait_until(lambda: served.get("/ready").status_code == 503)
        assert served.get("/health").status_code == 200
        monkeypatch.undo()
        wait_until(lambda: served.get("/ready").status_code == 200)
        assert served.post("/v1/search", {"ids": [3]}).status_code == 200
        assert served.post("/v1/items", new).status_code == 200


def test_a_store_without_levels_is_not_served(postgres: Postgres) -> None:
    with pytest.raises(InputError, match="nothing is attached yet; run gqe store attach"):
        open_served(postgres.create(IDS[:3], TABLE[:3]))


def test_an_empty_store_is_served(postgres: Postgres) -> None:
    url = postgres.create([], TABLE[:0])
    with gqe.connect(url, device="cpu") as items:
        items.attach(expanders()["affinity"], exact=True)
    with serving(open_served(url, device="cpu").engine) as served:
        asked = {"vectors": QUERIES[:1].tolist()}
        assert served.post("/v1/search", asked).json()["results"] == [{"ids": [], "scores": []}]
        assert served.post("/v1/explain", asked).json()["edges"] == []
        assert served.post("/v1/items", asked | {"ids": [1]}).json()["items"] == 1
        assert served.post("/v1/search", asked).json()["results"][0]["ids"] == [1]


def test_gqe_serve_killed_under_load_keeps_what_it_acknowledged(postgres: Postgres, tmp_path: Path) -> None:
    url, port = attached(postgres), free_port()
    command = [sys.executable, "-c", "from gqe.cli import main; main()", "serve", url, "--device", "cpu"]
    command += ["--port", str(port), "--pictures", str(tmp_path)]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    address, acknowledged = f"http://127.0.0.1:{port}", []

    def answers() -> bool:
        assert process.poll() is None
        try:
            return httpx.get(address + "/ready").status_code == 200
        except httpx.TransportError:
            return False

    def load() -> None:
        number = 1000
        try:
            while True:
                content = {"vectors": vectors(1, seed=number).tolist(), "ids": [number]}
                if httpx.post(address + "/v1/items", json=content).status_code == 200:
                    acknowledged.append(number)
                number += 1
        except httpx.TransportError:
            return

    wait_until(answers)
    writer = threading.Thread(target=load)
    writer.start()
    wait_until(lambda: len(acknowledged) >= 20)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    writer.join()
    with gqe.connect(url, device="cpu") as items:
        there = set(np.concatenate(list(items.store.names())).tolist())
        assert set(acknowledged) <= there
        assert items.sync().added == len(there) - N


def test_no_secret_reaches_the_page(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GQE_TOKENS", "read a-token-that-may-read")
    url = attached(postgres)
    opened = open_served(url + "&application_name=hidden", device="cpu")
    with serving(opened.engine, Settings(tokens=read_tokens(None))) as served:
        assert served.post("/v1/search", {"ids": [3]}).status_code == 401
        answer = served.get("/v1/about", headers={"authorization": "Bearer a-token-that-may-read"})
        assert answer.json()["title"] == url.partition("table=")[2]
        assert "hidden" not in answer.text


def test_the_page_shows_a_store(postgres: Postgres, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = Path("/usr/bin/chromium")
    if not chromium.exists():
        pytest.skip("there is no /usr/bin/chromium")
    names = [f"{i:03d}.jpg" for i in range(N)]
    for number, name in enumerate(names[:40]):
        (tmp_path / name).write_bytes(jpeg(number))
    opened = open_served(attached(postgres, ids=names), tmp_path, device="cpu")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    complaints: list[str] = []
    with (
        serving(opened.engine, pictures=opened.pictures) as served,
        playwright.sync_playwright() as started,
        started.chromium.launch(executable_path=str(chromium), args=flags) as browser,
    ):
        page = browser.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(served.url)
        page.locator("#examples button").first.click()
        page.locator("#after .card").first.wait_for()
        page.locator("#graph svg").wait_for()
        assert page.locator("#before .card").count() == 12
        assert page.locator("#neighbors").is_disabled()  # what is attached has its K
        assert page.locator("#rerank").is_visible()
        assert not page.locator("#drop").is_visible()  # nobody said how pictures were described
        page.locator("#method").select_option("alpha")
        page.locator("#neighbors").select_option("8")
        page.locator("#status", has_text="results").wait_for()
        page.locator("#after .card").nth(1).get_by_text("Dislike").click()
        page.locator("#refine").click()
        page.locator("#status", has_text="results").wait_for()
        assert not page.locator("#error").is_visible()
    assert complaints == []
