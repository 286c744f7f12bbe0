"""A server that speaks S3, and a proxy in front of it that fails in the ways of networks and servers."""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

BUCKET = "bucket"
KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "hidden-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "2",  # what fails for good shall do so soon
}

# What goes wrong with a request, by its method and path: "error" is answered 500; "slow" comes a few bytes at
# a time; "cut" ends the connection when half has been sent; "half" stores half and says that all went well.
Fault = Callable[[str, str], str | None]


def serve(host: str, port: int = 0) -> Any:
    """Start the server; its objects are gone with it."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(host, port, verbose=False)
    server.start()
    put(server.get_host_and_port()[1], f"/{BUCKET}")
    return server


def put(port: int, path: str, content: bytes = b"") -> None:
    """Store an object, or make a bucket."""
    server = http.client.HTTPConnection("127.0.0.1", port)
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"}
    server.request("PUT", path, content, signed)
    answer = server.getresponse()
    assert answer.status == 200, answer.read()
    server.close()


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a server, unless there is a fault.

    Attributes:
        fault: what goes wrong from now on.
        met: faults that requests met: kind, method and path.
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.port, self.fault, self.met = port, (lambda method, path: None), list[tuple[str, str, str]]()
        self.fault: Fault


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_GET(self) -> None:
        server, path = self.server, self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = server.fault(self.command, path)
        if fault is not None:
            server.met.append((fault, self.command, path))
        if fault == "error":
            self.answer(500, [], b"<Error><Code>InternalError</Code><Message>by the test</Message></Error>")
            return
        headers = dict(self.headers.items())
        if fault == "half" and self.command == "PUT":
            body = body[: len(body) // 2]
            headers["Content-Length"] = str(len(body))
        behind = http.client.HTTPConnection("127.0.0.1", server.port)
        try:
            if fault == "cut" and self.command == "PUT":
                behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in headers.items():
                    behind.putheader(name, value)
                behind.endheaders(body[: len(body) // 2])
                self.close_connection = True
                return
            behind.request(self.command, self.path, body, headers)
            found = behind.getresponse()
            content = found.read()
        finally:
            behind.close()
        self.answer(found.status, found.getheaders(), content, fault)

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def answer(
        self, status: int, headers: list[tuple[str, str]], content: bytes, fault: str | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), len(content))
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "cut":
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        elif fault == "slow":
            step = max(1, len(content) // 20)
            for start in range(0, len(content), step):
                self.wfile.write(content[start : start + step])
                self.wfile.flush()
                time.sleep(0.005)
        else:
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def s3() -> Iterator[Proxy]:
    """A server behind a proxy, known to this process and those that it starts."""
    server = serve("127.0.0.1")
    proxy = Proxy(server.get_host_and_port()[1])
    Thread(target=proxy.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in KEYS.items():
            environment.setenv(name, value)
        environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.server_address[1]}")
        try:
            yield proxy
        finally:
            proxy.shutdown()
            proxy.server_close()
            server.stop()


if __name__ == "__main__":
    serve("0.0.0.0", int(sys.argv[1]))
    for file in map(Path, sys.argv[2:]):
        put(int(sys.argv[1]), f"/{BUCKET}/{file.name}", file.read_bytes())
    print("ready", flush=True)
    Event().wait()
