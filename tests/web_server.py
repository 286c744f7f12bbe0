"""A small HTTP server that can misbehave on demand."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Site:
    """What the server offers and how it behaves; `seen` lists (method, path, range header)."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True  # honour Range
    if_range: bool = True  # honour If-Range
    validators: str = "etag"  # what proves the version: "etag", "modified" or ""
    changed: str = "Mon, 01 Jan 2018 00:00:00 GMT"  # the time of change it tells
    cuts: list[int] = field(default_factory=list)  # close the next connections after so many bytes
    errors: list[int] = field(default_factory=list)  # statuses of the next answers
    claims: dict[str, int] = field(default_factory=dict)  # sizes to claim in answer to HEAD
    slow: float = 0.0  # seconds before every block
    block: int = 1 << 16
    keep_open: float = 0.0  # seconds before the connection is closed after the last byte
    conditions: list[str | None] = field(default_factory=list)  # If-Range headers of the requests
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)
    address: str = ""

    def gets(self) -> list[tuple[str, str | None]]:
        """(path, range header) of the GET requests."""
        return [(path, asked) for method, path, asked in self.seen if method == "GET"]

    def tag(self, path: str) -> str:
        return self.changed if self.validators == "modified" else f'"{len(self.files[path])}"'


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        site, path = self.site, self.path
        site.seen.append((self.command, path, self.headers.get("Range")))
        site.conditions.append(self.headers.get("If-Range"))
        if body and site.errors:
            status = site.errors.pop(0)
            self.send_response(status)
            self.send_header("Retry-After", "0")
            self.end_headers()
            return
        if path not in site.files:
            self.send_error(404)
            return
        content, begin, status = site.files[path], 0, 200
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = not site.if_range or self.headers.get("If-Range") in (None, site.tag(path))
        if asked and site.ranges and same:
            begin, status = int(asked[1]), 206
            if begin >= len(content):
                self.send_error(416)
                return
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        if site.validators:
            name = "ETag" if site.validators == "etag" else "Last-Modified"
            self.send_header(name, site.tag(path))
        length = len(content) - begin
        self.send_header("Content-Length", str(length if body else site.claims.get(path, length)))
        self.end_headers()
        if body:
            self._send(content[begin:])

    def _send(self, content: bytes) -> None:
        site = self.site
        end = site.cuts.pop(0) if site.cuts else len(content)
        try:
            for place in range(0, min(end, len(content)), site.block):
                time.sleep(site.slow)
                self.wfile.write(content[place : min(place + site.block, end)])
                self.wfile.flush()
            time.sleep(site.keep_open)
        except OSError:
            pass  # the client went away


@contextmanager
def serving(**behaviour: object) -> Iterator[Site]:
    """A server on this machine for as long as the context lasts."""
    site = Site(**behaviour)  # type: ignore[arg-type]
    handler = type("Handler", (_Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    site.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
