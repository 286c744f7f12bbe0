"""Checks around every request: host, origin, rate, token and size; headers and metrics of every response."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import re
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from gqe.server.problems import RETRY_SOON, problem_of
from gqe.server.settings import READ, WRITE, Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gqe.server.service import Metrics

MAX_HEAD_BYTES = 16 << 10
"""Size of a request's head, the address included."""
_MAX_HEADERS = 100
_MAX_CLIENTS = 10_000
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{1,5})?")
_PUBLIC_PATHS = ("/", "/health", "/ready", "/openapi.json")
_PUBLIC_FOLDER = "/page/"
_UNLIMITED_PATHS = ("/health", "/ready")
# Any other method or path needs the scope `write`.
_READ_METHODS = ("GET", "HEAD")
_READ_PATHS = (
    "/v1/search",
    "/v1/search/picture",
    "/v1/describe",
    "/v1/embed",
    "/v1/explain",
    "/v1/items/describe",
)
# Only larger bodies count towards `max_total_body_bytes`.
_SMALL_BODY = 64 << 10
# How much of a refused body is still read.
_DRAIN_BYTES, _DRAIN_SECONDS = 16 << 20, 1.0
_SECURITY_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class GuardMiddleware:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self.rate_limiter = RateLimiter(settings.rate, settings.burst)
        self.body_bytes_left = settings.max_total_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        self.metrics.under_way.inc()
        status = 0
        body = _LimitedBody(self, receive, Headers(scope=scope))

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                await body.drain()
                status = message["status"]
                headers = [*message["headers"], *_SECURITY_HEADERS]
                if not any(name == b"cache-control" for name, _ in message["headers"]):
                    headers.append((b"cache-control", b"no-store"))
                if not body.complete:  # nobody will read the rest
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, body, send_guarded)
        except Exception as error:
            if status:
                raise  # too late for another response
            await problem_of(error)(scope, receive, send_guarded)
        finally:
            body.release()
            self.metrics.under_way.dec()
            route = getattr(scope.get("route"), "path", None) or "other"
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - start)

    def _check(self, scope: Scope) -> None:
        """Refuse a request by its head, before anything of its body is read."""
        settings, headers = self.settings, Headers(scope=scope)
        path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
        _check_host(headers, settings.hosts)
        if "\0" in path:  # no file can be called so, and older versions of Starlette fail on it
            raise HTTPException(404)
        sizes = [len(name) + len(value) for name, value in scope["headers"]]
        address = len(scope["path"]) + len(scope["query_string"])
        if len(sizes) > _MAX_HEADERS or sum(sizes) + address > MAX_HEAD_BYTES:
            raise HTTPException(431, f"more than {_MAX_HEADERS} headers, or {MAX_HEAD_BYTES} bytes of them")
        if path in _UNLIMITED_PATHS:
            return
        client = client_key(scope["client"][0]) if scope.get("client") else "unknown"
        wait = self.rate_limiter.acquire(client, time.monotonic())
        if wait:
            retry = {"retry-after": str(max(1, math.ceil(wait)))}
            raise HTTPException(429, "too many requests from this client; slow down", retry)
        if _is_protected(path):
            _check_origin(headers)
        self._check_scope(scope["method"], path, headers)
        length = headers.get("content-length", "0")
        if re.fullmatch("[0-9]+", length) is None:
            raise HTTPException(400, "content-length: is not a number")
        if len(length) > 18 or int(length) > settings.max_body_bytes:
            raise self.body_too_large()

    def _check_scope(self, method: str, path: str, headers: Headers) -> None:
        needed = READ if method in _READ_METHODS or path in _READ_PATHS else WRITE
        if needed == WRITE and self.settings.read_only:
            raise HTTPException(403, "this service is read-only")
        tokens = self.settings.tokens
        if tokens is None or not _is_protected(path):
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        scopes = tokens.scopes(token.strip()) if kind.lower() == "bearer" else None
        if scopes is None:
            challenge = {"www-authenticate": 'Bearer realm="gqe"'}
            raise HTTPException(401, "a valid token is needed: Authorization: Bearer TOKEN", challenge)
        if needed not in scopes:
            raise HTTPException(403, f"this token does not allow to {needed}")

    def body_too_large(self) -> HTTPException:
        """What is raised for a larger body than allowed."""
        limit = self.settings.max_body_bytes
        return HTTPException(413, f"body: larger than {limit} bytes; send less at once")


def _is_protected(path: str) -> bool:
    """Whether a path needs a token, if there are any, and is closed to pages of other origins."""
    return path not in _PUBLIC_PATHS and not path.startswith(_PUBLIC_FOLDER)


def _check_host(headers: Headers, hosts: tuple[str, ...] | None) -> None:
    """Refuse a Host that is not ours, as pages of other sites send by DNS rebinding."""
    if hosts is None:
        return
    matches = [_HOST.fullmatch(value.lower()) for value in headers.getlist("host")]
    if len(matches) != 1 or matches[0] is None or matches[0][1] not in hosts:
        raise HTTPException(421, "this service does not answer to this name; see --name")


def _check_origin(headers: Headers) -> None:
    """Refuse a request of a page of another origin; what comes from no browser passes.

    All current browsers send Sec-Fetch-Site; older ones, and those that reach us over plain HTTP from another
    machine, send Origin.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        allowed = site in ("same-origin", "none")
    else:
        host = headers.get("host", "").lower()
        allowed = origin is None or (host != "" and origin.lower().partition("://")[2] == host)
    if not allowed:
        raise HTTPException(403, "a page from elsewhere may not use this service; let proxies pass Host on")


def client_key(address: str) -> str:
    """What requests are counted by: an IPv4 address, or an IPv6 network, all of which one client can have."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


class RateLimiter:
    """A token bucket per client: it fills steadily, a request takes one token.

    Args:
        rate: Tokens per second; 0 for no limit.
        burst: Size of a bucket.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def acquire(self, client: str, now: float) -> float:
        """0 if a request is allowed, else the seconds to wait."""
        if self.rate <= 0:
            return 0.0
        tokens, updated = self._buckets.pop(client, (float(self.burst), now))
        tokens = min(float(self.burst), tokens + (now - updated) * self.rate)
        allowed = tokens >= 1
        self._buckets[client] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)  # the client that was away longest has a full bucket anyway
        return 0.0 if allowed else (1 - tokens) / self.rate


class _LimitedBody:
    """The ASGI `receive` of a request, with limits of size and time."""

    def __init__(self, guard: GuardMiddleware, receive: Receive, headers: Headers) -> None:
        self.guard, self.receive = guard, receive
        self.received = self.reserved = 0
        self.deadline = asyncio.get_running_loop().time() + guard.settings.timeout
        self.complete = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers

    async def __call__(self) -> Message:
        if self.complete:
            return await self.receive()
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self.receive()
        except TimeoutError:
            raise HTTPException(408, "the request did not arrive in time") from None
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
            if self.received > self.guard.settings.max_body_bytes:
                raise self.guard.body_too_large()
            if self.received > _SMALL_BODY:
                self._reserve()
        return message

    def _reserve(self) -> None:
        self.release()  # a refused body reserves nothing: of many that come together some are answered
        if self.received > self.guard.body_bytes_left:
            raise HTTPException(503, "too many large requests at once; come back later", RETRY_SOON)
        self.guard.body_bytes_left -= self.received
        self.reserved = self.received

    def release(self) -> None:
        """Release what is reserved."""
        self.guard.body_bytes_left += self.reserved
        self.reserved = 0

    async def drain(self) -> None:
        """Read some of the rest: closing at once would cut off the response of a client that still sends."""
        self.release()
        drained = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while not self.complete and drained < _DRAIN_BYTES:
                    message = await self.receive()
                    drained += len(message.get("body", b""))
                    self.complete = not message.get("more_body", False)
