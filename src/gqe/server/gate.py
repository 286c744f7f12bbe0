"""Every request passes here first: who it is, how often, how large; every answer last."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from gqe.server.problems import Refused, problem, unexpected
from gqe.server.settings import Settings
from gqe.server.tokens import READ, WRITE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gqe.server.metrics import Metrics

GUARDED = ("/v1/", "/metrics")
"""Where paths begin that need a token, if there are any."""
_OPEN = ("/health", "/ready")
_WRITING = ("/v1/items", "/v1/items/remove")
_MOST_CLIENTS = 10_000
_DROP_BYTES = 4 << 20
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


class Buckets:
    """A bucket of tokens for each client: it fills steadily, a request takes one.

    Args:
        rate: Tokens a second; 0 for no limit.
        burst: Size of a bucket.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float) -> float:
        """0 if the client may go on, else the seconds to wait."""
        if self.rate <= 0:
            return 0.0
        left, then = self._left.pop(client, (float(self.burst), now))
        left = min(float(self.burst), left + (now - then) * self.rate)
        allowed = left >= 1
        self._left[client] = (left - 1 if allowed else left, now)
        if len(self._left) > _MOST_CLIENTS:
            self._left.popitem(last=False)  # who was away longest has a full bucket anyway
        return 0.0 if allowed else (1 - left) / self.rate


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        self.metrics.under_way.inc()
        status = 0
        body = _Body(receive, self.settings, Headers(scope=scope))

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
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
            await body.drop()
            await problem(error.status_code, str(error.detail), error.headers)(scope, receive, answer)
        except Exception as error:
            if status:
                raise
            await unexpected(error)(scope, receive, answer)
        finally:
            self.metrics.under_way.dec()
            route = getattr(scope.get("route"), "path", None) or "other"
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - begun)

    def _admit(self, scope: Scope) -> None:
        """Refuse who may not come in, before anything of the body is read."""
        settings, headers, path = self.settings, Headers(scope=scope), scope["path"]
        if settings.hosts is not None and _host(headers.get("host", "")) not in settings.hosts:
            raise Refused(421, "this service does not answer to this name; see --name")
        client = scope["client"][0] if scope.get("client") else "unknown"
        if path in _OPEN:
            return
        wait = self.buckets.take(client, time.monotonic())
        if wait:
            later = {"retry-after": str(max(1, math.ceil(wait)))}
            raise Refused(429, "too many requests from this client; slow down", later)
        self._check_scope(scope["method"], path, headers)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > settings.most_body:
            raise Refused(413, f"body: larger than {settings.most_body} bytes; send less at once")

    def _check_scope(self, method: str, path: str, headers: Headers) -> None:
        needed = WRITE if path in _WRITING and method not in ("GET", "HEAD") else READ
        if needed == WRITE and self.settings.read_only:
            raise Refused(403, "this service is read-only")
        tokens = self.settings.tokens
        if tokens is None or not path.startswith(GUARDED):
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        challenge = {"www-authenticate": 'Bearer realm="gqe"'}
        allowed = tokens.scopes(token.strip()) if kind.lower() == "bearer" else None
        if allowed is None:
            raise Refused(401, "a valid token is needed: Authorization: Bearer TOKEN", challenge)
        if needed not in allowed:
            raise Refused(403, f"this token does not allow to {needed}")


class _Body:
    """Reads a request's body up to its limits of size and time."""

    def __init__(self, receive: Receive, settings: Settings, headers: Headers) -> None:
        self.receive, self.settings = receive, settings
        self.seen = 0
        self.whole = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers

    async def __call__(self) -> Message:
        if self.whole:
            return await self.receive()
        try:
            async with asyncio.timeout(self.settings.timeout):
                message = await self.receive()
        except TimeoutError:
            raise Refused(408, "the request did not arrive in time") from None
        if message["type"] == "http.request":
            self.seen += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
            if self.seen > self.settings.most_body:
                raise Refused(413, f"body: larger than {self.settings.most_body} bytes; send less at once")
        return message

    async def drop(self) -> None:
        """Pass over a little of what is left: closing at once would cut off the answer of who still sends."""
        dropped = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DROP_SECONDS):
                while not self.whole and dropped < _DROP_BYTES:
                    message = await self.receive()
                    dropped += len(message.get("body", b""))
                    self.whole = not message.get("more_body", False)


def _host(text: str) -> str:
    """The name in a Host header, without its port."""
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0].lower()
