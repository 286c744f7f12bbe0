"""Whatever a body holds, it costs little, and what is wrong with it is said in one line."""

from __future__ import annotations

import http.client
import socket
import threading
import time

import pytest

from gqe.server import Settings
from server.test_uploads import resident
from server.worlds import build, serving, vectors, wait_until


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    columns = {"year": list(range(120)), "name": [str(i) for i in range(120)]}
    with serving(build(tmp_path_factory.mktemp("bodies") / "index", metadata=columns)) as running:
        yield running


def send(served, content: bytes, path: str = "/v1/search"):
    return served.client.post(path, content=content, headers={"content-type": "application/json"})


LARGE = {
    "empty texts": b'{"ids": [' + b'"",' * 1_300_000 + b'""]}',
    "lists": b'{"ids": [' + b"[]," * 1_300_000 + b"1]}",
    "objects": b'{"like": [' + b"{}," * 99_000 + b"1]}",
    "texts for numbers": b'{"vectors": [[' + b'"a",' * 1_000_000 + b"1]]}",
    "fields": b"{" + b",".join(b'"%d":1' % i for i in range(90_000)) + b"}",
    "bounds": b'{"ids":[1],"filter":{"year":{' + b",".join(b'"%d":1' % i for i in range(90_000)) + b"}}}",
    "values": b'{"ids":[1],"filter":{"year":[' + b'[0],"",' * 40_000 + b"1]}}",
    "columns": b'{"vectors":[[1]],"metadata":{' + b",".join(b'"%d":0' % i for i in range(90_000)) + b"}}",
}


@pytest.mark.parametrize("name", LARGE)
def test_large_bodies_cost_little(served, name) -> None:
    before, begun = resident(), time.perf_counter()
    answer = send(served, LARGE[name], "/v1/items" if name == "columns" else "/v1/search")
    assert answer.status_code == 422, answer.text
    assert time.perf_counter() - begun < 5  # some took a minute
    assert resident() - before < 200 << 20  # and gigabytes


def test_a_large_body_keeps_nobody_waiting(served) -> None:
    stop, slowest = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            begun = time.perf_counter()
            assert served.get("/health").status_code == 200
            slowest.append(time.perf_counter() - begun)

    other = threading.Thread(target=ask)
    other.start()
    for _ in range(3):
        assert send(served, LARGE["empty texts"]).status_code == 422
    stop.set()
    other.join()
    assert max(slowest) < 3


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"", 422, "body: is empty"),
        (b'{"ids": [1],}', 400, "body: is not valid JSON: trailing comma at line 1 column 13"),
        (b'{"ids": ["\xff"]}', 400, "body: is not valid JSON: invalid unicode code point at line 1"),
        (b"[" * 100_000, 400, "body: is not valid JSON: recursion limit"),
        (b'{"ids": [' + b"9" * 5000 + b"]}", 400, "body: is not valid JSON: number out of range"),
        (b'{"ids": [1], "filter": {"year": NaN}}', 400, "body: NaN and Infinity are not JSON"),
        (b'{"vectors": [[-Infinity]]}', 400, "body: NaN and Infinity are not JSON"),
        (b'{"ids": [1], "filter": {"year": 1e999}}', 422, "filter.year: Input should be a finite number"),
        (b'{"ids": [1], "filter": {"name": "' + b"a" * 2000 + b'"}}', 422, "filter.name: String should have"),
        (
            b'{"ids": [1], "filter": {"year": ["a", []]}}',
            422,
            "filter.year.1: expected true or false, a",
        ),
        (b'{"ids": [1], "filter": {"year": {"near": 3}}}', 422, "filter.year.near: Input should be 'gt'"),
        (b'{"ids": [1], "filter": {"year": null}}', 422, "filter.year: expected true or false, a whole"),
        (b'{"ids": [-1]}', 422, "ids.0: Input should be greater than or equal to 0"),
        (b'{"ids": [""]}', 422, "ids.0: String should have at least 1 character"),
        (b'{"ids": [1.5]}', 422, "ids.0: expected a whole number or a text"),
        (b'{"ids": [1], "k": 1000000000}', 422, "k: Input should be less than"),
        (b'{"ids": [1], "k": 1e9}', 422, "k: expected a whole number"),
        (b'{"ids": [1], "method": "alpha:rounds=99999999"}', 422, "rounds: expected a whole number of"),
        (b'{"ids": [1], "method": "alpha:k=99999999"}', 422, "k: expected a whole number of at most"),
        (b'{"ids": [1], "rerank": "diffusion:iterations=99999999"}', 422, "rerank: 'diffusion:iter"),
        (b'{"ids": [1], "a\\nb": 1}', 422, "a b: Extra inputs are not permitted"),
        (b"[1]", 422, "body: expected an object"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(served, content, status, said) -> None:
    answer = send(served, content)
    assert answer.status_code == status
    assert answer.json()["detail"].startswith(said)
    assert len(answer.json()["detail"].splitlines()) == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["a" * 2000], "metadata.name.0: String should have at most 1000"),
        ([[]], "metadata.name.0: ex"),
    ],
)
def test_metadata_that_does_not_fit(served, values, said) -> None:
    content = {"vectors": vectors(1).tolist(), "metadata": {"year": [1], "name": values}}
    answer = served.post("/v1/items", content)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(said)


def test_an_empty_text_is_a_value(served) -> None:
    content = {"vectors": vectors(1, seed=8).tolist(), "metadata": {"year": [1], "name": [""]}}
    added = served.post("/v1/items", content).json()["ids"]
    found = served.post("/v1/search", {"ids": [1], "filter": {"name": ""}}).json()
    assert found["results"][0]["ids"] == added
    served.post("/v1/items/remove", {"ids": added})


def test_large_bodies_share_a_room_and_small_ones_do_not(tmp_path) -> None:
    settings = Settings(max_total_body_bytes=300_000)
    body = b" " * 200_000 + b'{"ids": [1]}'
    with serving(build(tmp_path / "index"), settings) as served:
        arrived, go_on = threading.Event(), threading.Event()

        def slowly():
            yield body[:150_000]
            arrived.set()
            go_on.wait(20)
            yield body[150_000:]

        answers = []
        thread = threading.Thread(target=lambda: answers.append(send(served, slowly()).status_code))
        thread.start()
        arrived.wait(20)
        wait_until(lambda: send(served, body).status_code == 503)
        assert send(served, b'{"ids": [1]}').status_code == 200
        go_on.set()
        thread.join()
        assert answers == [200]
        assert send(served, body).status_code == 200  # the room was given back


def test_a_refused_body_gives_its_room_back_at_once(tmp_path) -> None:
    """Or large requests that come together would all be refused, for the sake of each other."""
    head = (
        b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"connection: close\r\ncontent-length: 200000\r\n\r\n"
    )
    body = b'{"ids": [1]}'.ljust(200_000)
    with serving(build(tmp_path / "index"), Settings(max_total_body_bytes=300_000)) as served:
        place = ("127.0.0.1", int(served.url.rpartition(":")[2]))
        with socket.create_connection(place, 20) as first, socket.create_connection(place, 20) as second:
            first.sendall(head + body[:150_000])
            second.sendall(head + body[:10_000])
            time.sleep(0.2)
            second.sendall(body[10_000:170_000])  # too much for the room; the rest never comes
            time.sleep(0.3)
            first.sendall(body[150_000:])
            assert first.makefile("rb").readline().split()[1] == b"200"
            assert second.makefile("rb").readline().split()[1] == b"503"


@pytest.mark.parametrize(("kind", "status"), [("text/plain", 415), ("multipart/form-data; boundary=b", 400)])
def test_who_sends_much_still_hears_what_is_wrong(served, kind, status) -> None:
    """Even where the service stops reading early: closing at once would cut off its answer."""
    part = b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n1\r\n'
    path = "/v1/search" if status == 415 else "/v1/describe"
    connection = http.client.HTTPConnection("127.0.0.1", int(served.url.rpartition(":")[2]), timeout=20)
    connection.request("POST", path, part * 100_000, {"content-type": kind})
    assert connection.getresponse().status == status
    connection.close()
