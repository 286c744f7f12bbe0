"""Clients that say little, or read nothing, are closed in time and take no place from others."""

from __future__ import annotations

import json
import re
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from gqe.server import Settings
from gqe.server.runner import limit_connections
from server.worlds import build, serving, vectors, wait_until

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
HEAD = b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    settings = Settings(timeout=1, max_connections=20, rate=0)
    with serving(build(tmp_path_factory.mktemp("connections") / "index", n=400), settings) as running:
        yield running


def connected(served, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), timeout=20)
    connection.sendall(sent)
    return connection


def answer_of(connection: socket.socket, dribble: bytes = b"") -> bytes:
    """All that comes until the connection is closed, while a little is sent now and then."""
    until, received = time.monotonic() + 20, b""
    connection.settimeout(0.2)
    while time.monotonic() < until:
        try:
            part = connection.recv(4096)
            received += part
            if not part:
                return received
        except TimeoutError:
            try:
                connection.sendall(dribble)
            except OSError:
                return received
        except OSError:
            return received
    raise AssertionError("the connection is still open")


@pytest.mark.parametrize(
    ("sent", "dribble", "said"),
    [
        (b"", b"", b""),
        (b"GET / HTTP/1.1\r\nx", b"y", b"408"),
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n", b"408"),
        (HEAD + b"content-length: 1000\r\n\r\n", b" ", b"408"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n", b"408"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000, b"a: b\r\n", b"431"),
        (GET.replace(b"/", b"/" + b"a" * 20_000, 1) + b"\r\n", b"", b"431"),
        (GET + b"a: b\r\n" * 101 + b"\r\n", b"", b"431"),
        (HEAD + "content-length: ²\r\n\r\n".encode("latin-1"), b"", b"400"),
        (HEAD + b"content-length: -1\r\n\r\n", b"", b"400"),
        (b"\x16\x03\x01\r\n\r\n", b"", b"400"),
    ],
)
def test_who_does_not_ask_is_closed(served, sent, dribble, said) -> None:
    with connected(served, sent) as connection:
        answer = answer_of(connection, dribble)
    assert answer.split(b" ")[1:2] == ([said] if said else [])
    if said:
        assert b"application/problem+json" in answer


def test_an_answer_that_nobody_reads_is_dropped(tmp_path) -> None:
    body = json.dumps({"vectors": vectors(200).tolist(), "k": 1000}).encode()
    with serving(build(tmp_path / "index", n=1000), Settings(timeout=2)) as served, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(served.url.rpartition(":")[2])))
        client.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        time.sleep(5)  # the answer is larger than what the system keeps for us
        received = answer_of(client)
    length = re.search(rb"content-length: (\d+)", received)
    assert length is not None
    assert 0 < len(received) < int(length[1])


def test_idle_connections_give_way_to_those_that_ask(served) -> None:
    silent = [connected(served) for _ in range(20)]
    halves = [connected(served, HEAD + b"content-length: 9\r\n\r\n{") for _ in range(20)]
    for _ in range(5):
        assert httpx.post(served.url + "/v1/search", json={"ids": [1]}).status_code == 200
    for connection in (*silent, *halves):
        connection.close()
    wait_until(lambda: served.get("/health").status_code == 200)


def test_many_connections_at_once_are_no_more_than_allowed(tmp_path) -> None:
    with serving(build(tmp_path / "index"), Settings(max_connections=20)) as served:
        address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
        silent = [socket.socket() for _ in range(120)]
        for connection in silent:  # none waits for another, so that many come in one turn of the loop
            connection.setblocking(False)
            connection.connect_ex(address)
        assert httpx.get(served.url + "/health", timeout=20).status_code == 200

        def few() -> bool:
            return sum(_is_open(connection) for connection in silent) <= 20

        wait_until(few, seconds=10)  # far less than the time that a silent connection has
        for connection in silent:
            connection.close()


def _is_open(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_connections_leave_files_for_the_index() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
        assert 500 < limit_connections(1000) < 800
        assert limit_connections(100) == 100
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        assert limit_connections(1000) == 16
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_flood_takes_no_more_files_than_it_may(served, caplog) -> None:
    code = (
        "import resource, socket, sys, time\n"
        "most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\n"
        "each = [socket.create_connection(('127.0.0.1', int(sys.argv[1]))) for _ in range(400)]\n"
        "time.sleep(0.2)"
    )
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 120, before[1]))
    try:
        subprocess.run([sys.executable, "-c", code, served.url.rpartition(":")[2]], check=True, timeout=60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "Too many open files" not in caplog.text
    assert httpx.get(served.url + "/ready").status_code == 200
