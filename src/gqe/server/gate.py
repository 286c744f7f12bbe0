"""Every request passes here first: who it is, how often, how large; every answer last."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from gqe.server.callers import Buckets, check_host, check_origin, client_of
from gqe.server.connections import HEAD_BYTES
from gqe.server.problems import LATER, Refused, problem, unexpected
from gqe.server.settings import Settings
from gqe.server.tokens import READ, WRITE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gqe.server.metrics import Metrics

_PUBLIC = ("/", "/health", "/ready", "/openapi.json")
_PUBLIC_FOLDER = "/page/"
_UNCOUNTED = ("/health", "/ready")
# Whatever else is sent anywhere else needs to be allowed to write.
_READING_METHODS = ("GET", "HEAD")
_READING_PATHS = ("/v1/search", "/v1/search/picture", "/v1/describe", "/v1/explain")
_MOST_HEADERS = 100
# Bytes of a body that are always taken; only larger ones share a room.
_SMALL = 64 << 10
_DROP_BYTES = 16 << 20
_DROP_SECONDS = 1.0
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_ALWAYS = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]


class Gate:
    """ASGI middleware around the whole app.

    Args:
        app: What to guard.
        settings: Limits and tokens.
        metrics: Where to count.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self.buckets = Buckets(settings.rate, settings.burst)
        self.room = _Room(settings.most_bodies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        self.metrics.under_way.inc()
        status = 0
        body = _Body(receive, self.settings, Headers(scope=scope), self.room)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                await body.drop()
                status = message["status"]
                headers = [*message["headers"], *_ALWAYS]
                if not any(name == b"cache-control" for name, _ in message["headers"]):
                    headers.append((b"cache-control", b"no-store"))
                if not body.whole:  # nobody will read the rest
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
            await send(message)

        try:
            self._admit(scope)
            await self.app(scope, body, answer)
        except Refused as error:
            if status:
                raise  # too late for another answer
            await problem(error.status_code, str(error.detail), error.headers)(scope, receive, answer)
        except Exception as error:
            if status:
                raise
            await unexpected(error)(scope, receive, answer)
        finally:
            body.forget()
            self.metrics.under_way.dec()
            route = getattr(scope.get("route"), "path", None) or "other"
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - begun)

    def _admit(self, scope: Scope) -> None:
        """Refuse who may not come in, before anything of the body is read."""
        settings, headers = self.settings, Headers(scope=scope)
        path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
        check_host(headers, settings.hosts)
        if "\0" in path:  # no file can be called so, and older versions of Starlette fail on it
            raise Refused(404, "there is nothing at this address; /openapi.json lists what there is")
        sizes = [len(name) + len(value) for name, value in scope["headers"]]
        address = len(scope["path"]) + len(scope["query_string"])
        if len(sizes) > _MOST_HEADERS or sum(sizes) + address > HEAD_BYTES:
            raise Refused(431, f"more than {_MOST_HEADERS} headers, or {HEAD_BYTES} bytes of them")
        if path in _UNCOUNTED:
            return
        client = client_of(scope["client"][0]) if scope.get("client") else "unknown"
        wait = self.buckets.take(client, time.monotonic())
        if wait:
            later = {"retry-after": str(max(1, math.ceil(wait)))}
            raise Refused(429, "too many requests from this client; slow down", later)
        if is_guarded(path):
            check_origin(headers)
        self._check_scope(scope["method"], path, headers)
        length = headers.get("content-length", "0")
        if re.fullmatch("[0-9]+", length) is None:
            raise Refused(400, "content-length: is not a number")
        if len(length) > 18 or int(length) > settings.most_body:
            raise Refused(413, f"body: larger than {settings.most_body} bytes; send less at once")

    def _check_scope(self, method: str, path: str, headers: Headers) -> None:
        needed = READ if method in _READING_METHODS or path in _READING_PATHS else WRITE
        if needed == WRITE and self.settings.read_only:
            raise Refused(403, "this service is read-only")
        tokens = self.settings.tokens
        if tokens is None or not is_guarded(path):
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        challenge = {"www-authenticate": 'Bearer realm="gqe"'}
        allowed = tokens.scopes(token.strip()) if kind.lower() == "bearer" else None
        if allowed is None:
            raise Refused(401, "a valid token is needed: Authorization: Bearer TOKEN", challenge)
        if needed not in allowed:
            raise Refused(403, f"this token does not allow to {needed}")


def is_guarded(path: str) -> bool:
    """Whether a path needs a token, if there are any, and is closed to pages from elsewhere."""
    return path not in _PUBLIC and not path.startswith(_PUBLIC_FOLDER)


class _Room:
    """Bytes that large bodies may hold, all together.

    Args:
        size: How many.
    """

    def __init__(self, size: int) -> None:
        self.left = size

    def take(self, size: int) -> None:
        """Hold more of them."""
        if size > self.left:
            raise Refused(503, "too many large requests at once; come back later", LATER)
        self.left -= size


class _Body:
    """Reads a request's body up to its limits of size and time."""

    def __init__(self, receive: Receive, settings: Settings, headers: Headers, room: _Room) -> None:
        self.receive, self.settings, self.room = receive, settings, room
        self.seen = self.held = 0
        self.until = asyncio.get_running_loop().time() + settings.timeout
        self.whole = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers

    async def __call__(self) -> Message:
        if self.whole:
            return await self.receive()
        try:
            async with asyncio.timeout_at(self.until):
                message = await self.receive()
        except TimeoutError:
            raise Refused(408, "the request did not arrive in time") from None
        if message["type"] == "http.request":
            self.seen += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
            if self.seen > self.settings.most_body:
                raise Refused(413, f"body: larger than {self.settings.most_body} bytes; send less at once")
            if self.seen > _SMALL:
                self.forget()  # who is refused holds nothing: of many that come together some are answered
                self.room.take(self.seen)
                self.held = self.seen
        return message

    def forget(self) -> None:
        """Give back what is held."""
        self.room.left += self.held
        self.held = 0

    async def drop(self) -> None:
        """Pass over a little of what is left: closing at once would cut off the answer of who still sends."""
        self.forget()
        dropped = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DROP_SECONDS):
                while not self.whole and dropped < _DROP_BYTES:
                    message = await self.receive()
                    dropped += len(message.get("body", b""))
                    self.whole = not message.get("more_body", False)
