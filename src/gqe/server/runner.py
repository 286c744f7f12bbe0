"""uvicorn with limits of its own: how many connections, and how long they may wait; run until a signal.

uvicorn waits for the head of a request, and for a client to read a response, as long as it takes. Every open
connection is an open file; a process that has too many of them can no longer open its index.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from gqe.errors import InputError
from gqe.server.middleware import MAX_HEAD_BYTES
from gqe.server.problems import raw_problem
from gqe.server.settings import Settings

log = logging.getLogger(__name__)

_INTERRUPTED = 130  # the exit status after Ctrl+C
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# Connections that the system accepts before we see them.
_BACKLOG = 128
# Connections that asyncio accepts per iteration of its loop, and iterations until a surplus one is closed.
_ACCEPTS, _ITERATIONS = 16, 4
# Open files that are reserved for the index, pictures and whatever else the process needs.
_RESERVED_FILES = 256
_MIN_CONNECTIONS = 16
# Bytes read at once: what one connection sends must not delay the others.
_READ_BYTES = 32 << 10
# Seconds between checks of a connection.
_CHECK_INTERVAL = 1.0
# A whole request may take so many times `timeout`, the limit of each part: body, picture, search, response.
_PARTS = 4


def restrict_settings(settings: Settings, host: str, names: Sequence[str] = ()) -> Settings:
    """Settings for an address: without tokens, a service that others can reach is read-only.

    A service without tokens that only this machine can reach answers only to host names of this machine,
    which protects it from DNS rebinding by pages of other sites.

    Args:
        settings: As wanted.
        host: Address to listen at.
        names: More host names to answer to, as of a proxy in front.
    """
    if settings.tokens is not None:
        return settings
    if _is_loopback(host):
        return replace(settings, hosts=(*_LOOPBACK_NAMES, *(name.lower() for name in names)))
    if not settings.read_only:
        log.warning("%s can be reached by others and there are no tokens: changes are refused", host)
    return replace(settings, read_only=True)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_proxies(addresses: Sequence[str]) -> list[str]:
    """Addresses of proxies, each of them an IP address."""
    for address in addresses:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise InputError(f"--proxy: {address!r} is not an IP address; give that of the proxy") from None
    return list(addresses)


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket at an address; port 0 takes any that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named, asyncio sends at once; otherwise responses wait 40 ms for a delayed ACK.
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--host {host} --port {port}: {reason}; choose another address or port") from None
    return bound


def create_server(app: FastAPI, *, proxies: Sequence[str] = (), grace: int = 30) -> uvicorn.Server:
    """A server with the limits that an ASGI app cannot have: connections, and the time they may take.

    Args:
        app: See `create_app`.
        proxies: Addresses of proxies whose X-Forwarded-For is trusted.
        grace: Seconds that requests have to finish after a signal.
    """
    config = uvicorn.Config(
        app,
        http=_limited_protocol(app.state.service.settings),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES + _READ_BYTES,  # the limit of the protocol comes first
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        timeout_keep_alive=15,
        timeout_graceful_shutdown=grace,
        backlog=_ACCEPTS,
    )
    return _Server(config)


def run(app: FastAPI, bound: socket.socket, *, proxies: Sequence[str] = ()) -> None:
    """Serve until SIGTERM or SIGINT; requests and writes that were accepted are finished first.

    A second SIGINT ends the process at once: what was acknowledged is stored.

    Args:
        app: See `create_app`.
        bound: See `bind_socket`.
        proxies: See `create_server`.
    """
    server = create_server(app, proxies=proxies)
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            os._exit(_INTERRUPTED)
        received.append(number)
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.run(sockets=[bound])
    if received[:1] == [signal.SIGINT]:
        raise KeyboardInterrupt


class _Server(uvicorn.Server):
    """Leaves signals to `run`."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`; asyncio's backlog is the number of connections it accepts per iteration."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_BACKLOG)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See `uvicorn.Server`."""
        yield


def limit_connections(wanted: int) -> int:
    """As many as wanted, but never so many that no file could be opened any longer."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(_MIN_CONNECTIONS, min(wanted, files - _ITERATIONS * _ACCEPTS - _RESERVED_FILES))


def _limited_protocol(settings: Settings) -> type[asyncio.Protocol]:
    """The HTTP protocol of uvicorn, of httptools if that is installed, else of h11, with limits."""
    limits = {"timeout": settings.timeout, "max_connections": limit_connections(settings.max_connections)}
    return type("LimitedProtocol", (_LimitedMixin, AutoHTTPProtocol), limits)


class _LimitedMixin(asyncio.Protocol):
    """Comes before an HTTP protocol of uvicorn.

    Attributes:
        timeout: Seconds for the head of a request; `_PARTS` times as many for all of it.
        max_connections: Of all instances.
    """

    timeout: float
    max_connections: int
    # Of uvicorn's protocols:
    cycle: Any
    connections: set[Any]
    loop: asyncio.AbstractEventLoop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._transport: Any = transport  # no asyncio.Transport with uvloop
        if hasattr(transport, "max_size"):
            transport.max_size = _READ_BYTES
        self._since, self._head_bytes = self.loop.time(), 0
        self._timer = self.loop.call_later(min(_CHECK_INTERVAL, self.timeout), self._check)
        if len(self.connections) > self.max_connections and not self._evict():
            self._refuse(503, "too many connections; come back later")

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        if self._between_requests():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self._transport.is_closing():
                self._refuse(431, f"the head of the request is larger than {MAX_HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what it cannot parse."""
        self._refuse(400, "this is not a request of HTTP/1.1")

    def on_response_complete(self) -> None:
        """Called by uvicorn after a response."""
        self._since, self._head_bytes = self.loop.time(), 0
        super().on_response_complete()  # type: ignore[misc]

    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _evict(self) -> bool:
        """Abort the connection whose client has let us wait longest, if there is one."""
        # Connections that are being closed stay in the set for some iterations of the loop.
        others = [each for each in self.connections if each is not self and not each._transport.is_closing()]
        if len(others) < self.max_connections:
            return True
        waiting = [each for each in others if each._between_requests() or each.cycle.more_body]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda each: (each._transport.get_write_buffer_size() > 0, each._since))
        oldest._transport.abort()
        return True

    def _check(self) -> None:
        """Close the connection if its time is over."""
        between = self._between_requests()
        if self.loop.time() - self._since > self.timeout * (1 if between else _PARTS):
            if not self._head_bytes or self._transport.is_closing() or not between:
                self._transport.abort()
                return
            self._refuse(408, "the request did not arrive in time")
        self._timer = self.loop.call_later(min(_CHECK_INTERVAL, self.timeout), self._check)

    def _refuse(self, status: int, detail: str) -> None:
        self._transport.write(raw_problem(status, detail))
        self._transport.close()
